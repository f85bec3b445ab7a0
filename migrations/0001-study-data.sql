-- Studies and everything below them (interface.md §2, decisions §1–2).
--
-- Identifiers sort by creation in byte order, hence collate "C". Timestamps keep milliseconds, the precision of the
-- interface, so that what a client reads compares equal to what is stored. `attributes` is json and not jsonb: it is
-- kept as the service wrote it (JSON.stringify, no white space) and handed out again without being rendered anew.

-- The role that the service works as. It belongs to the cluster: another database, or an administrator for an owner who
-- may create no roles, may have made it already.
do $$
begin
  if not exists (select from pg_roles where rolname = 'sds_service') then
    create role sds_service nologin;
  end if;
exception
  when duplicate_object or unique_violation then null;
end
$$;
do $$
begin
  execute format('grant sds_service to %I', current_user);
exception
  when insufficient_privilege then
    if not pg_has_role(current_user, 'sds_service', 'member') then
      raise;
    end if;
end
$$;

create table studies (
  study_id text collate "C" primary key,
  name text collate "C" not null,
  site_id text collate "C",
  attributes json not null,
  created_date timestamptz(3) not null default now(),
  updated_date timestamptz(3) not null default now(),
  version integer not null default 1,
  -- A deleted study answers 404 at once; what lies below it is purged afterwards, in steps (decisions §3).
  deleted_date timestamptz(3)
);
create index studies_created on studies (created_date, study_id) where deleted_date is null;
create index studies_updated on studies (updated_date, study_id) where deleted_date is null;
create index studies_name on studies (name, study_id) where deleted_date is null;
create index studies_site on studies (site_id) where deleted_date is null and site_id is not null;
create index studies_deleted on studies (deleted_date) where deleted_date is not null;

create table subjects (
  study_id text collate "C" not null references studies,
  subject_id text collate "C" not null,
  name text collate "C" not null,
  attributes json not null,
  created_date timestamptz(3) not null default now(),
  updated_date timestamptz(3) not null default now(),
  version integer not null default 1,
  primary key (study_id, subject_id),
  constraint subject_name_taken unique (study_id, name)
);
create index subjects_created on subjects (study_id, created_date, subject_id);
create index subjects_updated on subjects (study_id, updated_date, subject_id);

create table organs (
  study_id text collate "C" not null,
  organ_id text collate "C" not null,
  subject_id text collate "C" not null,
  name text collate "C" not null,
  attributes json not null,
  created_date timestamptz(3) not null default now(),
  updated_date timestamptz(3) not null default now(),
  version integer not null default 1,
  primary key (study_id, organ_id),
  -- What lies on an organ refers to it together with its subject, so that the two cannot disagree.
  unique (study_id, subject_id, organ_id),
  constraint organ_name_taken unique (study_id, subject_id, name),
  constraint organ_subject foreign key (study_id, subject_id) references subjects
);
create index organs_created on organs (study_id, created_date, organ_id);
create index organs_updated on organs (study_id, updated_date, organ_id);
create index organs_name on organs (study_id, name, organ_id);

create table slides (
  study_id text collate "C" not null references studies,
  slide_id text collate "C" not null,
  subject_id text collate "C",
  organ_id text collate "C",
  file_name text collate "C" not null,
  attributes json not null,
  created_date timestamptz(3) not null default now(),
  updated_date timestamptz(3) not null default now(),
  version integer not null default 1,
  primary key (study_id, slide_id),
  unique (study_id, subject_id, slide_id),
  constraint slide_subject foreign key (study_id, subject_id) references subjects,
  constraint slide_organ foreign key (study_id, subject_id, organ_id) references organs (study_id, subject_id, organ_id),
  constraint slide_organ_needs_subject check (organ_id is null or subject_id is not null),
  -- A hash index, as a file name of 1,024 characters is longer than a B-tree takes. Study ids are of one length, so
  -- the joined text is unambiguous.
  constraint slide_file_name_taken exclude using hash ((study_id || file_name) with =)
);
create index slides_created on slides (study_id, created_date, slide_id);
create index slides_updated on slides (study_id, updated_date, slide_id);
-- A prefix is enough to read slides nearly sorted by name; PostgreSQL sorts the few with equal prefixes.
create index slides_file_name on slides (study_id, (left(file_name, 200)));
create index slides_subject on slides (study_id, subject_id, organ_id);

create table findings (
  study_id text collate "C" not null,
  finding_id text collate "C" not null,
  subject_id text collate "C" not null,
  organ_id text collate "C" not null,
  slide_id text collate "C",
  name text collate "C" not null,
  severity text collate "C",
  attributes json not null,
  created_date timestamptz(3) not null default now(),
  updated_date timestamptz(3) not null default now(),
  version integer not null default 1,
  primary key (study_id, finding_id),
  constraint finding_organ foreign key (study_id, subject_id, organ_id) references organs (study_id, subject_id, organ_id),
  constraint finding_slide foreign key (study_id, subject_id, slide_id) references slides (study_id, subject_id, slide_id)
);
create index findings_created on findings (study_id, created_date, finding_id);
create index findings_updated on findings (study_id, updated_date, finding_id);
create index findings_name on findings (study_id, name, finding_id);
create index findings_organ on findings (study_id, subject_id, organ_id);
create index findings_slide on findings (study_id, slide_id) where slide_id is not null;
create index findings_severity on findings (study_id, severity) where severity is not null;

create table scores (
  study_id text collate "C" not null,
  score_id text collate "C" not null,
  subject_id text collate "C" not null,
  organ_id text collate "C",
  name text collate "C" not null,
  -- A JSON number or string, as it was sent.
  value json not null,
  unit text collate "C",
  attributes json not null,
  created_date timestamptz(3) not null default now(),
  updated_date timestamptz(3) not null default now(),
  version integer not null default 1,
  primary key (study_id, score_id),
  constraint score_subject foreign key (study_id, subject_id) references subjects,
  constraint score_organ foreign key (study_id, subject_id, organ_id) references organs (study_id, subject_id, organ_id)
);
create index scores_created on scores (study_id, created_date, score_id);
create index scores_updated on scores (study_id, updated_date, score_id);
create index scores_name on scores (study_id, name, score_id);
create index scores_organ on scores (study_id, subject_id, organ_id, score_id);

create table codes (
  study_id text collate "C" primary key references studies,
  codes_id text collate "C" not null,
  code_lists json not null,
  attributes json not null,
  created_date timestamptz(3) not null default now(),
  updated_date timestamptz(3) not null default now(),
  version integer not null default 1
);

-- How many records of a kind a study has, so that totals need no scan. Several rows ("slots") a study and kind: a
-- writer adds to a slot that no other holds (skip locked), or opens one, so writers never wait for each other; the
-- total is the sum. The studies themselves are counted under the study_id ''.
create table record_counts (
  slot bigint generated always as identity primary key,
  study_id text collate "C" not null,
  kind text collate "C" not null,
  n bigint not null
) with (fillfactor = 50);
create index record_counts_study on record_counts (study_id, kind);

-- Bytes in the object store that nothing refers to any more; a row goes when its object is gone.
create table object_purges (
  object_key text collate "C" primary key,
  requested_date timestamptz(3) not null default now()
);

grant select, insert, update, delete on
  studies, subjects, organs, slides, findings, scores, codes, record_counts, object_purges
  to sds_service;
grant select on sds_migrations to sds_service;
