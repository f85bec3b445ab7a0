import type { Db, Tx } from '../db/database.ts';
import { prepared } from '../db/statement.ts';
import type { Claim } from '../jobs/kind.ts';
import { lockJob } from './job-queries.ts';
import { type FileStatus, type JobType, transitions } from './states.ts';

/** A job that a worker has claimed. */
export interface ClaimedJob extends Claim {
  type: JobType;
  studyId: string;
  credentialId: string;
  prefix: string | null;
  overwrite: boolean;
  /** Whether all its files are known. */
  isListed: boolean;
  /** Somebody asked to cancel it before this worker claimed it. */
  cancelRequested: boolean;
}

/** The worker still has the job: nobody took it over or ended it. Parameters are the job and its claim. */
const held = `status = 'RUNNING' and worker_id is not null and claims = `;

/** Takes the oldest job that waits, was handed back, or whose worker’s lease ran out, for `leaseMs`. */
export async function claimJob(db: Db, workerId: string, leaseMs: number): Promise<ClaimedJob | null> {
  const { claim, takeOver } = transitions;
  const text = `update image_jobs set status = '${claim.to[0]}', worker_id = $1,
      lease_until = now() + $2 * interval '1 ms', claims = claims + 1, bytes_per_second = null,
      started_date = coalesce(started_date, now()), event_no = event_no + 1
    where job_id = (
      select job_id from image_jobs
      where status = '${claim.from[0]}' or (status = '${takeOver.from[0]}' and (worker_id is null or lease_until < now()))
      order by created_date limit 1 for update skip locked)
    returning job_id as id, claims as attempt, type, study_id as "studyId", credential_id as "credentialId", prefix,
      overwrite, listed_date is not null as "isListed", cancel_requested_date is not null as "cancelRequested"`;
  const { rows } = await db.query<ClaimedJob>(prepared(text, [workerId, leaseMs]));
  return rows[0] ?? null;
}

/** Prolongs the lease to `leaseMs` from now; whether the job is to be cancelled, null where the worker has it no longer. */
export async function renewJob(db: Db, { id, attempt }: Claim, leaseMs: number): Promise<{ cancel: boolean } | null> {
  const text = `update image_jobs set lease_until = now() + $3 * interval '1 ms' where job_id = $1 and ${held} $2
    returning cancel_requested_date is not null as cancel`;
  const { rows } = await db.query<{ cancel: boolean }>(prepared(text, [id, attempt, leaseMs]));
  return rows[0] ?? null;
}

/** Lets another worker have the job at once. */
export async function handBackJob(db: Db, { id, attempt }: Claim): Promise<void> {
  const text = `update image_jobs set worker_id = null, lease_until = null, bytes_per_second = null,
    event_no = event_no + 1 where job_id = $1 and ${held} $2`;
  await db.query(prepared(text, [id, attempt]));
}

/**
 * Locks the job for a write of the worker that has it; false where it has it no longer. What is written then reaches the
 * disk soon instead of before the commit returns: all files of a job wait for this lock, and would wait for the disk one
 * after the other. Should the database lose it in a crash, the files are done again; see {@link writeThrough}.
 */
export async function lockHeld(tx: Tx, { id, attempt }: Claim): Promise<boolean> {
  return (
    (await lockJob(tx, id, `${held} $2 and set_config('synchronous_commit', 'off', true) = 'off'`, [attempt])) !== null
  );
}

/** Has the commit wait for the disk after all: for what somebody could act on that cannot be undone. */
export async function writeThrough(tx: Tx): Promise<void> {
  await tx.query(prepared('set local synchronous_commit to on', []));
}

/** A file that is to be done. */
export interface OpenFile {
  fileId: string;
  name: string;
  key: string;
  slideId: string | null;
  subjectId: string | null;
  organId: string | null;
  /** Tries so far; more than none where a worker died over it. */
  attempts: number;
  /** As the listing told it; null where there was none. */
  sizeBytes: number | null;
  etag: string | null;
  /** Whether the slide of its name has an image already. */
  hasImage: boolean;
  /** The image that its copy is going to be, where the key is recorded already ({@link recordKeys}). */
  imageId?: string;
}

/** Files that are PENDING or RUNNING, in order after one. */
export async function findOpenFiles(db: Db, jobId: string, after: string, limit: number): Promise<OpenFile[]> {
  const text = `select file_id as "fileId", name, key, slide_id as "slideId", subject_id as "subjectId",
      organ_id as "organId", attempts, size_bytes as "sizeBytes", etag, exists (
        select from image_jobs j, slides s join images i on i.study_id = s.study_id and i.slide_id = s.slide_id
        where j.job_id = $1 and (s.study_id || s.file_name) = (j.study_id || f.name)) as "hasImage"
    from image_files f where job_id = $1 and status in ('PENDING', 'RUNNING') and file_id > $2
    order by file_id limit $3`;
  const { rows } = await db.query<OpenFile>(prepared(text, [jobId, after, limit]));
  return rows;
}

/** Forgets what an unfinished listing found. */
export async function clearListing(tx: Tx, jobId: string): Promise<void> {
  await tx.query(prepared('delete from image_files where job_id = $1', [jobId]));
  const text = `update image_jobs set files_total = 0, files_completed = 0, files_skipped = 0, files_failed = 0,
      files_cancelled = 0, bytes_total = 0, bytes_transferred = 0, bytes_left = 0, listed_date = null,
      event_no = event_no + 1 where job_id = $1`;
  await tx.query(prepared(text, [jobId]));
}

/**
 * Changes a file of a job that is locked, under an event number of its own. Parameters of `set` and `where` are numbered
 * from $3 on. Files are found by their own id alone, so that no planner is led to read all those of the job.
 */
async function moveFile(
  tx: Tx,
  [jobId, fileId]: [string, string],
  set: string,
  values: unknown[],
  where = 'true',
): Promise<void> {
  const text = `with moved as (
      update image_files f set ${set}, event_no = (select event_no + 1 from image_jobs where job_id = $1)
      where f.file_id = $2 and ${where} returning 1)
    update image_jobs set event_no = event_no + 2 where job_id = $1 and exists (select from moved)`;
  await tx.query(prepared(text, [jobId, fileId, ...values]));
}

/** The file is being worked on from now on, and has this size. */
export function beginFile(tx: Tx, jobId: string, fileId: string, sizeBytes: number): Promise<void> {
  const set = `status = 'RUNNING', size_bytes = $3, started_date = coalesce(f.started_date, now()),
    attempts = greatest(f.attempts, 1)`;
  return moveFile(tx, [jobId, fileId], set, [sizeBytes], `f.status in ('PENDING', 'RUNNING')`);
}

/** Counts another try of a file. */
export async function countTry(tx: Tx, fileId: string, attempts: number): Promise<void> {
  await tx.query(prepared('update image_files set attempts = $2 where file_id = $1', [fileId, attempts]));
}

/** The job, while it is this worker's; nobody takes it over before what depends on that is written. */
const holdJob = `select from image_jobs where job_id = $1 and ${held} $2 for share`;

/**
 * Records where the copy of a file is going to stand, durably and before its first byte; what stood there of a worker
 * that died is purged. False where the worker has the job no longer.
 */
export async function recordKey(db: Db, { id, attempt }: Claim, fileId: string, objectKey: string): Promise<boolean> {
  const text = `with held as (${holdJob}), purged as (
      insert into object_purges (object_key) select object_key from image_files
      where file_id = $3 and object_key is not null and exists (select from held) on conflict do nothing)
    update image_files set object_key = $4 where file_id = $3 and status = 'RUNNING' and exists (select from held)`;
  return (await db.query(prepared(text, [id, attempt, fileId, objectKey]))).rowCount === 1;
}

/** Records the keys of many files that nobody has begun yet, in one go and as durably. */
export async function recordKeys(
  db: Db,
  { id, attempt }: Claim,
  files: { fileId: string; objectKey: string }[],
): Promise<boolean> {
  const text = `with held as (${holdJob}),
    given as (select * from json_to_recordset($3::json) as g ("fileId" text, "objectKey" text)),
    purged as (
      insert into object_purges (object_key) select f.object_key from image_files f join given g on f.file_id = g."fileId"
      where f.object_key is not null and exists (select from held) on conflict do nothing)
    update image_files f set object_key = g."objectKey" from given g
    where f.file_id = g."fileId" and f.status in ('PENDING', 'RUNNING') and exists (select from held)`;
  return (await db.query(prepared(text, [id, attempt, JSON.stringify(files)]))).rowCount === files.length;
}

/** How a file ended. */
export interface FileEnd {
  status: FileStatus & ('COMPLETED' | 'SKIPPED' | 'FAILED');
  errorMessage?: string;
  sha256?: string;
  slideId?: string;
  /** Whether the object that was written for it is now that of an image; it is purged otherwise. */
  kept?: boolean;
}

/** Writes the end of a file; the counters of the job follow. */
export async function endFile(tx: Tx, jobId: string, fileId: string, end: FileEnd): Promise<void> {
  if (!end.kept) {
    const purge = `insert into object_purges (object_key) select object_key from image_files
      where file_id = $1 and object_key is not null on conflict do nothing`;
    await tx.query(prepared(purge, [fileId]));
  }
  const { status, errorMessage = null, sha256 = null, slideId = null } = end;
  const set = `status = $3, error_message = $4, sha256 = coalesce($5, f.sha256), slide_id = coalesce($6, f.slide_id),
    started_date = coalesce(f.started_date, now()), attempts = greatest(f.attempts, 1), completed_date = now(),
    object_key = null,
    bytes_transferred = case $3 when 'COMPLETED' then coalesce(f.size_bytes, 0) else f.bytes_transferred end`;
  await moveFile(tx, [jobId, fileId], set, [status, errorMessage, sha256, slideId]);
}

/** Writes that files of a job that is locked are done and their objects those of images. */
export async function completeFiles(
  tx: Tx,
  jobId: string,
  files: { id: string; slideId: string; sizeBytes: number; sha256: string }[],
): Promise<void> {
  const text = `with done as (
      select d.*, row_number() over () as n
      from json_to_recordset($2::json) as d (id text, "slideId" text, "sizeBytes" bigint, sha256 text)),
    moved as (
      update image_files f set status = 'COMPLETED', error_message = null, sha256 = d.sha256, slide_id = d."slideId",
        size_bytes = d."sizeBytes", bytes_transferred = d."sizeBytes", object_key = null,
        started_date = coalesce(f.started_date, now()), attempts = greatest(f.attempts, 1), completed_date = now(),
        event_no = j.event_no + d.n
      from done d, image_jobs j where j.job_id = $1 and f.file_id = d.id returning 1)
    update image_jobs set event_no = event_no + 1 + (select count(*) from moved) where job_id = $1`;
  await tx.query(prepared(text, [jobId, JSON.stringify(files)]));
}

/** Tells how far files are; touches neither the state of the job nor what somebody else asked of it. */
export async function recordProgress(
  tx: Tx,
  jobId: string,
  files: { id: string; bytes: number }[],
  bytesPerSecond: number,
): Promise<void> {
  const text = `update image_files f set bytes_transferred = s.bytes
    from json_to_recordset($1::json) as s (id text, bytes bigint)
    where f.file_id = s.id and f.status = 'RUNNING' and f.bytes_transferred < s.bytes`;
  await tx.query(prepared(text, [JSON.stringify(files)]));
  const told = 'update image_jobs set bytes_per_second = $2, event_no = event_no + 1 where job_id = $1';
  await tx.query(prepared(told, [jobId, bytesPerSecond]));
}

/** The file that failed first, for the message of the job. */
export async function findFirstFault(db: Db, jobId: string): Promise<{ name: string; reason: string } | null> {
  const text = `select name, error_message as reason from image_files
    where job_id = $1 and status = 'FAILED' order by completed_date, file_id limit 1`;
  const { rows } = await db.query<{ name: string; reason: string }>(prepared(text, [jobId]));
  return rows[0] ?? null;
}
