-- Clients, signing keys (decisions §6) and the audit log (decisions §7).

create table clients (
  client_id text collate "C" primary key,
  name text not null,
  scopes text[] not null,
  -- scrypt, with its salt and cost parameters.
  secret_hash text not null,
  disabled boolean not null default false,
  created_date timestamptz(3) not null default now(),
  updated_date timestamptz(3) not null default now()
);

create table signing_keys (
  key_id text collate "C" primary key,
  -- The public half as a JWK (RFC 7517), published at /.well-known/jwks.json while tokens signed by it may live.
  public_jwk json not null,
  -- The private half as PKCS#8, encrypted by the master key of which master_key_id tells the version; destroyed when
  -- the key is retired, as it signs nothing more.
  encrypted_private_key bytea,
  master_key_id text not null,
  -- The names (`iss`) under which nodes sign with it: those of one cluster may differ, and change with its address.
  issuers text[] not null,
  -- The longest lifetime that a node gives to tokens signed by it, in seconds.
  token_ttl_s integer not null,
  created_date timestamptz(3) not null default now(),
  -- From when on no token is signed by it any more; null for the key in use.
  retired_date timestamptz(3),
  constraint signing_key_in_use_has_private_half check (encrypted_private_key is not null or retired_date is not null)
);
create unique index signing_keys_in_use on signing_keys ((true)) where retired_date is null;

grant select, insert, update on clients, signing_keys to sds_service;
grant delete on signing_keys to sds_service;

create table audit_events (
  sequence bigint generated always as identity primary key,
  event_id text collate "C" not null unique,
  recorded_date timestamptz(3) not null default now(),
  event text collate "C" not null,
  client_id text collate "C" not null,
  operation text not null,
  method text not null,
  path text not null,
  -- HTTP status of the answer; null for what a job leaves when it ends.
  status smallint,
  resource_type text collate "C",
  resource_id text collate "C",
  resource_ids text[],
  study_id text collate "C",
  request_id text not null,
  -- SHA-256 of what stands in audit_details for this event; null when there is nothing.
  details_sha256 bytea
);
create index audit_events_recorded on audit_events (recorded_date, event_id);
create index audit_events_study on audit_events (study_id, recorded_date, event_id) where study_id is not null;
create index audit_events_resource on audit_events (resource_id, recorded_date, event_id) where resource_id is not null;
create index audit_events_resources on audit_events using gin (resource_ids) where resource_ids is not null;

-- Reason and changes may hold personal data, so they stand beside the event, which holds only their salted hash: an
-- administrator can take them out and the log still verifies.
create table audit_details (
  event_id text collate "C" primary key,
  salt bytea not null,
  reason text,
  changes json
);

create function audit_refuse() returns trigger language plpgsql as $$
begin
  raise exception 'audit records cannot be changed or removed' using errcode = 'insufficient_privilege';
end
$$;
create trigger audit_events_immutable before update or delete on audit_events
  for each row execute function audit_refuse();
create trigger audit_events_not_truncated before truncate on audit_events
  for each statement execute function audit_refuse();
create trigger audit_details_immutable before update or delete on audit_details
  for each row execute function audit_refuse();
create trigger audit_details_not_truncated before truncate on audit_details
  for each statement execute function audit_refuse();

grant select, insert on audit_events, audit_details to sds_service;
