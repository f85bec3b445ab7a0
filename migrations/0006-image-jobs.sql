-- Image jobs (interface.md §3, decisions §5): an ingest copies objects of a cloud into the service's own store, a
-- transfer copies images of slides to a cloud.

create table image_jobs (
  job_id text collate "C" primary key,
  type text collate "C" not null check (type in ('INGEST', 'TRANSFER')),
  status text collate "C" not null default 'CREATED'
    check (status in ('CREATED', 'RUNNING', 'COMPLETED', 'FAILED', 'PARTIAL')),
  -- No foreign keys: the record of a job outlives its study and its credential.
  study_id text collate "C" not null,
  credential_id text collate "C" not null,
  client_id text collate "C" not null,
  -- The request that created or last retried it; stands in the event that the job leaves when it ends.
  request_id text not null,
  -- From 1; every retry adds one.
  attempt integer not null default 1,
  prefix text collate "C",
  overwrite boolean not null default false,
  -- When all files of the job stood in image_files; null while they are still to be listed.
  listed_date timestamptz(3),
  -- Counted from image_files by the trigger below.
  files_total bigint not null default 0,
  files_completed bigint not null default 0,
  files_skipped bigint not null default 0,
  files_failed bigint not null default 0,
  files_cancelled bigint not null default 0,
  bytes_total bigint not null default 0,
  bytes_transferred bigint not null default 0,
  -- Of files that are PENDING or RUNNING.
  bytes_left bigint not null default 0,
  -- As the worker measures it; null while nobody copies.
  bytes_per_second bigint,
  error_message text,
  cancel_requested_date timestamptz(3),
  created_date timestamptz(3) not null default now(),
  started_date timestamptz(3),
  completed_date timestamptz(3),
  -- SHA-256 of the Idempotency-Key, and of the body that came with it.
  key_hash bytea,
  body_hash bytea,
  -- Number of the last event of its stream. Every visible change of the job takes a new one under the lock of this row,
  -- a changed file one of its own before it; so whoever has seen number N has missed exactly what has a larger one.
  event_no bigint not null default 0,
  -- Who works on it, and until when that holds without being renewed; no worker while RUNNING: handed back.
  worker_id text collate "C",
  lease_until timestamptz,
  -- Counts the claims. A worker writes only under the claim it has, so that one that lost the job changes nothing.
  claims integer not null default 0,
  constraint image_jobs_worker check (status = 'RUNNING' or worker_id is null),
  constraint image_jobs_ended check ((completed_date is not null) = (status in ('COMPLETED', 'FAILED', 'PARTIAL'))),
  constraint image_jobs_counted
    check (files_completed + files_skipped + files_failed + files_cancelled <= files_total and bytes_left >= 0)
);
create index image_jobs_created on image_jobs (created_date, job_id);
create index image_jobs_study on image_jobs (study_id, created_date, job_id);
create index image_jobs_active on image_jobs (client_id) where status in ('CREATED', 'RUNNING');
create index image_jobs_waiting on image_jobs (created_date) where status in ('CREATED', 'RUNNING');
create unique index image_jobs_key on image_jobs (client_id, type, key_hash) where key_hash is not null;

create table image_files (
  job_id text collate "C" not null references image_jobs,
  file_id text collate "C" primary key,
  -- FILE NAME of the slide.
  name text collate "C" not null,
  -- Key of the object in the cloud.
  key text collate "C" not null,
  slide_id text collate "C",
  -- What the slide is linked to, where the ingest creates it.
  subject_id text collate "C",
  organ_id text collate "C",
  status text collate "C" not null default 'PENDING'
    check (status in ('PENDING', 'RUNNING', 'COMPLETED', 'SKIPPED', 'FAILED', 'CANCELLED')),
  size_bytes bigint,
  -- Version of the object in the cloud, as a listing gave it.
  etag text collate "C",
  bytes_transferred bigint not null default 0,
  sha256 text collate "C",
  attempts integer not null default 0,
  error_message text,
  started_date timestamptz(3),
  completed_date timestamptz(3),
  -- The object in the service's store that is being written for it: recorded before the first byte goes there, so that
  -- nothing is left behind by a worker that dies.
  object_key text collate "C",
  -- Number of the event that tells of its last change of status; 0 before the first.
  event_no bigint not null default 0
);
-- As of slides: a prefix is enough to read nearly sorted by name.
create index image_files_name on image_files (job_id, (left(name, 200)), file_id);
create index image_files_open on image_files (job_id, file_id) where status in ('PENDING', 'RUNNING');
create index image_files_events on image_files (job_id, event_no) where event_no > 0;

grant select, insert, update, delete on image_jobs, image_files to sds_service;

-- The counters of a job follow its files, whatever changes them. (Files are added and removed by the listing alone,
-- which counts them itself.)
create function image_files_counted() returns trigger language plpgsql as $$
begin
  update image_jobs j set
    files_completed = j.files_completed + d.completed,
    files_skipped = j.files_skipped + d.skipped,
    files_failed = j.files_failed + d.failed,
    files_cancelled = j.files_cancelled + d.cancelled,
    bytes_total = j.bytes_total + d.total,
    bytes_transferred = j.bytes_transferred + d.transferred,
    bytes_left = j.bytes_left + d.bytes_left
  from (
    select job_id,
      coalesce(sum(sign) filter (where status = 'COMPLETED'), 0) as completed,
      coalesce(sum(sign) filter (where status = 'SKIPPED'), 0) as skipped,
      coalesce(sum(sign) filter (where status = 'FAILED'), 0) as failed,
      coalesce(sum(sign) filter (where status = 'CANCELLED'), 0) as cancelled,
      sum(sign * coalesce(size_bytes, 0)) as total,
      sum(sign * bytes_transferred) as transferred,
      coalesce(sum(sign * greatest(coalesce(size_bytes, 0) - bytes_transferred, 0))
        filter (where status in ('PENDING', 'RUNNING')), 0) as bytes_left
    from (
      select job_id, status, size_bytes, bytes_transferred, 1 as sign from after_it
      union all select job_id, status, size_bytes, bytes_transferred, -1 from before_it) changes
    group by job_id) d
  where j.job_id = d.job_id
    -- Not for nothing: whoever writes to the job holds up everybody else who does.
    and (completed, skipped, failed, cancelled, total, transferred, d.bytes_left) <> (0, 0, 0, 0, 0, 0, 0);
  return null;
end
$$;
create trigger image_files_counted after update on image_files
  referencing old table as before_it new table as after_it for each statement execute function image_files_counted();

-- Watchers of a job's stream, on whichever node (`sds_image_jobs`).
create function image_job_changed() returns trigger language plpgsql as $$
begin
  perform pg_notify('sds_image_jobs', new.job_id);
  return null;
end
$$;
create trigger image_job_changed after update of event_no on image_jobs
  for each row when (new.event_no > old.event_no) execute function image_job_changed();

-- Workers: as of exports (migration 0003).
create function image_job_waits() returns trigger language plpgsql as $$
begin
  perform pg_notify('sds_jobs', 'image');
  return null;
end
$$;
create trigger image_job_waits after insert or update of status, worker_id on image_jobs
  for each row when (new.status in ('CREATED', 'RUNNING') and new.worker_id is null) execute function image_job_waits();

create function image_job_cancelled() returns trigger language plpgsql as $$
begin
  perform pg_notify('sds_jobs_cancel', new.job_id);
  return null;
end
$$;
create trigger image_job_cancelled after update of cancel_requested_date on image_jobs
  for each row when (old.cancel_requested_date is null and new.cancel_requested_date is not null)
  execute function image_job_cancelled();

-- The active jobs of a deleted study are cancelled (decisions §3).
create function study_image_jobs_cancelled() returns trigger language plpgsql as $$
begin
  update image_jobs set cancel_requested_date = now(), event_no = event_no + 1
  where study_id = new.study_id and status in ('CREATED', 'RUNNING') and cancel_requested_date is null;
  return null;
end
$$;
create trigger study_image_jobs_cancelled after update of deleted_date on studies
  for each row when (old.deleted_date is null and new.deleted_date is not null)
  execute function study_image_jobs_cancelled();

-- A preview of the image, made when it is first asked for: its object, or why there can be none.
alter table images
  add column thumbnail_key text collate "C",
  add column thumbnail_error text;

-- The objects of an image that goes, or that another takes the place of, are purged.
create function image_lets_go() returns trigger language plpgsql as $$
begin
  insert into object_purges (object_key)
    select key from unnest(array[old.object_key, old.thumbnail_key]) as key
    where key is not null on conflict do nothing;
  return null;
end
$$;
create trigger image_lets_go after delete on images for each row execute function image_lets_go();
