-- Cloud credentials (decisions §5).

-- The master key that secrets are to be encrypted by. Whoever encrypts one holds the row until its transaction ends, so
-- that none is stored under the old key once a rotation has named the new one.
create table master_key (
  only_one boolean primary key default true check (only_one),
  -- A hash of it; the key itself is outside of the database.
  key_id text collate "C" not null,
  changed_date timestamptz(3) not null default now()
);

create table credentials (
  credential_id text collate "C" primary key,
  name text collate "C" not null,
  provider text collate "C" not null,
  -- Members by provider; nothing here is secret.
  settings json not null,
  -- The secret members as JSON, encrypted by the master key of that id; null where the provider has none.
  encrypted_secret bytea,
  master_key_id text collate "C",
  -- What the last :validate found.
  last_validation json,
  created_date timestamptz(3) not null default now(),
  updated_date timestamptz(3) not null default now(),
  version integer not null default 1,
  constraint credential_secret_has_key check ((encrypted_secret is null) = (master_key_id is null))
);

grant select, insert, update on master_key to sds_service;
grant select, insert, update, delete on credentials to sds_service;
