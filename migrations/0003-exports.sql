-- Export jobs (interface.md §2–4, decisions §4).

create table export_jobs (
  export_id text collate "C" primary key,
  study_id text collate "C" not null references studies,
  format text collate "C" not null check (format in ('JSON', 'XLSX')),
  status text collate "C" not null default 'QUEUED' check (status in ('QUEUED', 'IN_PROGRESS', 'COMPLETED', 'FAILED')),
  records_written bigint not null default 0,
  total_records bigint,
  error_message text,
  client_id text collate "C" not null,
  created_date timestamptz(3) not null default now(),
  started_date timestamptz(3),
  completed_date timestamptz(3),
  file_size_bytes bigint,
  sha256 text collate "C",
  -- Where the file stands in the object store: a key of its own for each attempt, written before the first byte goes there.
  object_key text collate "C",
  -- Who works on it, and until when that holds without being renewed (a lease: a host may vanish).
  worker_id text collate "C",
  lease_until timestamptz,
  -- Counts the claims. Every write of a worker names the attempt it works on, so that one that lost the job without
  -- noticing changes nothing.
  attempt integer not null default 0,
  -- How often a worker had to take it over from another that died.
  takeovers smallint not null default 0,
  constraint export_jobs_worker check ((status = 'IN_PROGRESS') = (worker_id is not null and lease_until is not null)),
  constraint export_jobs_file check (status <> 'COMPLETED'
    or (object_key is not null and file_size_bytes is not null and sha256 is not null and records_written = total_records))
);
create index export_jobs_study on export_jobs (study_id, created_date, export_id);
-- One active job a study, whatever the format (interface.md §8).
create unique index export_jobs_one_active on export_jobs (study_id) where status in ('QUEUED', 'IN_PROGRESS');
create index export_jobs_waiting on export_jobs (created_date) where status in ('QUEUED', 'IN_PROGRESS');

grant select, insert, update, delete on export_jobs to sds_service;

-- Wakes the workers of all nodes: `sds_jobs` when there is something to do (its payload says what), `sds_jobs_cancel`
-- with the id of a job that somebody works on and that is not wanted any more.

create function export_job_waits() returns trigger language plpgsql as $$
begin
  perform pg_notify('sds_jobs', 'export');
  return null;
end
$$;
create trigger export_job_waits after insert or update of status on export_jobs
  for each row when (new.status = 'QUEUED') execute function export_job_waits();

-- A file that a job lets go of is purged, whoever deleted the job or took it over.
create function export_job_lets_go() returns trigger language plpgsql as $$
begin
  if old.object_key is not null then
    insert into object_purges (object_key) values (old.object_key) on conflict do nothing;
  end if;
  if tg_op = 'DELETE' and old.status = 'IN_PROGRESS' then
    perform pg_notify('sds_jobs_cancel', old.export_id);
  end if;
  return null;
end
$$;
create trigger export_job_deleted after delete on export_jobs
  for each row execute function export_job_lets_go();
create trigger export_job_file_changed after update of object_key on export_jobs
  for each row when (old.object_key is distinct from new.object_key) execute function export_job_lets_go();

-- The exports of a deleted study go with it, the active ones too (decisions §3); the rest is left to the purge.
create function study_deleted() returns trigger language plpgsql as $$
begin
  delete from export_jobs where study_id = new.study_id;
  perform pg_notify('sds_jobs', 'purge of studies');
  return null;
end
$$;
create trigger study_deleted after update of deleted_date on studies
  for each row when (old.deleted_date is null and new.deleted_date is not null) execute function study_deleted();

create function object_purge_waits() returns trigger language plpgsql as $$
begin
  -- Not without need: notifications make transactions commit one after the other.
  if exists (select from added) then
    perform pg_notify('sds_jobs', 'purge of objects');
  end if;
  return null;
end
$$;
create trigger object_purge_waits after insert on object_purges
  referencing new table as added for each statement execute function object_purge_waits();
