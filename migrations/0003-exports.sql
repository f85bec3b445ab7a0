-- Export jobs (interface.md §2–4, decisions §4).

create table export_jobs (
  export_id text collate "C" primary key,
  study_id text collate "C" not null references studies,
  format text not null check (format in ('JSON', 'XLSX')),
  status text collate "C" not null default 'QUEUED' check (status in ('QUEUED', 'IN_PROGRESS', 'COMPLETED', 'FAILED')),
  records_written bigint not null default 0,
  total_records bigint,
  error_message text,
  client_id text collate "C" not null,
  created_date timestamptz(3) not null default now(),
  started_date timestamptz(3),
  completed_date timestamptz(3),
  file_size_bytes bigint,
  sha256 text,
  -- Where the file stands in the object store; written before the first byte goes there.
  object_key text collate "C",
  -- Who works on it, and until when that holds without being renewed (a lease: a host may vanish).
  worker_id text,
  lease_until timestamptz,
  -- How often a worker had to take it over from another that died.
  takeovers smallint not null default 0
);
create index export_jobs_study on export_jobs (study_id, created_date, export_id);
create unique index export_jobs_one_active on export_jobs (study_id) where status in ('QUEUED', 'IN_PROGRESS');
create index export_jobs_waiting on export_jobs (created_date) where status in ('QUEUED', 'IN_PROGRESS');

grant select, insert, update, delete on export_jobs to sds_service;
