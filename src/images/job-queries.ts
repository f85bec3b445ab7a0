import type { Provider } from '../credentials/schemas.ts';
import type { Db, Tx } from '../db/database.ts';
import { type Page, type PageRequest, pageOf, pageSql } from '../db/paging.ts';
import { prepared } from '../db/statement.ts';
import { newId } from '../lib/id.ts';
import { isoDate } from '../studies/kinds.ts';
import { activeStatuses, type FileCounts, type JobStatus, type JobType, transitions } from './states.ts';

/** A list of statuses in SQL. */
export const listed = (statuses: readonly string[]) => statuses.map((status) => `'${status}'`).join(', ');

/** Members of the job record (decisions §5), as SQL over the alias `r`. Rows become JSON without spaces, as all else. */
export const jobMembers = `r.job_id as "jobId", r.type, r.status, r.study_id as "studyId",
  r.credential_id as "credentialId", r.client_id as "clientId", r.attempt,
  (select row_to_json(f) from (select r.files_total as total, r.files_completed as completed,
    r.files_skipped as skipped, r.files_failed as failed, r.files_cancelled as cancelled) f) as files,
  (select row_to_json(b) from (select r.bytes_total as total, r.bytes_transferred as transferred) b) as bytes,
  r.error_message as "errorMessage", ${isoDate('r.cancel_requested_date')} as "cancelRequestedDate",
  ${isoDate('r.created_date')} as "createdDate", ${isoDate('r.started_date')} as "startedDate",
  ${isoDate('r.completed_date')} as "completedDate"`;

/** Members of a file record, as SQL over the alias `r`. */
export const fileMembers = `r.file_id as "fileId", r.name, r.key, r.slide_id as "slideId", r.status,
  r.size_bytes as "sizeBytes", r.bytes_transferred as "bytesTransferred", r.sha256, r.attempts,
  r.error_message as "errorMessage", ${isoDate('r.started_date')} as "startedDate",
  ${isoDate('r.completed_date')} as "completedDate"`;

/** One job as JSON text, the way it leaves the service; null where there is none. */
export async function findJob(db: Db, jobId: string): Promise<{ record: string; studyId: string } | null> {
  const text = `select row_to_json(q)::text as record, q."studyId"
    from (select ${jobMembers} from image_jobs r where r.job_id = $1) q`;
  const { rows } = await db.query<{ record: string; studyId: string }>(prepared(text, [jobId]));
  return rows[0] ?? null;
}

const jobFilters: Record<string, string> = { studyId: 'r.study_id', status: 'r.status', type: 'r.type' };

export async function listJobs(db: Db, filters: Record<string, string>, request: PageRequest): Promise<Page> {
  const values: unknown[] = [];
  const conditions = Object.entries(jobFilters).flatMap(([name, column]) =>
    filters[name] === undefined ? [] : `${column} = $${values.push(filters[name])}`,
  );
  const where = ['true', ...conditions].join(' and ');
  const { text, page } = pageSql({
    members: jobMembers,
    table: 'image_jobs',
    joins: '',
    where,
    total: `select count(*) from image_jobs r where ${where}`,
    sort: ['r.created_date'],
    keyMember: 'createdDate',
    idColumn: 'r.job_id',
    idMember: 'jobId',
    request,
    values,
  });
  const { rows } = await db.query<Parameters<typeof pageOf>[0]>({ text: `select ${text}`, values });
  return pageOf(rows[0] as Parameters<typeof pageOf>[0], page);
}

/** Files of a job by name, and its study; null where there is no such job. */
export async function listJobFiles(
  db: Db,
  jobId: string,
  status: string | undefined,
  request: PageRequest,
): Promise<{ page: Page; studyId: string } | null> {
  const values: unknown[] = [jobId];
  const where = `r.job_id = $1${status === undefined ? '' : ` and r.status = $${values.push(status)}`}`;
  const { text, page } = pageSql({
    members: fileMembers,
    table: 'image_files',
    joins: '',
    where,
    total:
      status === undefined
        ? 'select files_total from image_jobs where job_id = $1'
        : `select count(*) from image_files r where ${where}`,
    // The prefix is what the index holds (migration 0006).
    sort: ['left(r.name, 200)', 'r.name'],
    keyMember: 'name',
    idColumn: 'r.file_id',
    idMember: 'fileId',
    request,
    values,
  });
  const study = '(select study_id from image_jobs where job_id = $1) as "studyId"';
  const { rows } = await db.query<{ studyId: string | null } & Parameters<typeof pageOf>[0]>({
    text: `select ${study}, ${text}`,
    values,
  });
  const row = rows[0];
  return row?.studyId ? { page: pageOf(row, page), studyId: row.studyId } : null;
}

/** Holds up other starts and retries of the client until the transaction ends: its limit and its keys are looked at. */
export async function lockClient(tx: Tx, clientId: string): Promise<void> {
  await tx.query(prepared(`select pg_advisory_xact_lock(hashtextextended('image jobs of ' || $1, 0))`, [clientId]));
}

/** The job that a client started with this key at this endpoint before. */
export async function findByKey(
  tx: Tx,
  clientId: string,
  type: JobType,
  keyHash: Buffer,
): Promise<{ jobId: string; bodyHash: Buffer } | null> {
  const text = `select job_id as "jobId", body_hash as "bodyHash" from image_jobs
    where client_id = $1 and type = $2 and key_hash = $3`;
  const { rows } = await tx.query<{ jobId: string; bodyHash: Buffer }>(prepared(text, [clientId, type, keyHash]));
  return rows[0] ?? null;
}

export async function countActive(tx: Tx, clientId: string): Promise<number> {
  const text = `select count(*) as n from image_jobs where client_id = $1 and status in (${listed(activeStatuses)})`;
  const { rows } = await tx.query<{ n: number }>(prepared(text, [clientId]));
  return rows[0]?.n ?? 0;
}

/** Whether the study is there; it and stays so until the transaction ends, or its deletion sees what is written now. */
export async function holdStudy(tx: Tx, studyId: string): Promise<boolean> {
  const text = 'select from studies where study_id = $1 and deleted_date is null for share';
  return (await tx.query(prepared(text, [studyId]))).rowCount === 1;
}

/** The same for a credential: its provider, null where it is not there. */
export async function holdCredential(tx: Tx, credentialId: string): Promise<Provider | null> {
  const text = 'select provider from credentials where credential_id = $1 for share';
  const { rows } = await tx.query<{ provider: Provider }>(prepared(text, [credentialId]));
  return rows[0]?.provider ?? null;
}

export interface NewJob {
  type: JobType;
  studyId: string;
  credentialId: string;
  clientId: string;
  requestId: string;
  prefix: string | null;
  overwrite: boolean;
  key: { keyHash: Buffer; bodyHash: Buffer } | null;
}

/** Creates a job without files; they are added, or are listed when it runs. */
export async function insertJob(tx: Tx, job: NewJob): Promise<string> {
  const jobId = newId();
  const text = `insert into image_jobs (job_id, type, study_id, credential_id, client_id, request_id, prefix, overwrite,
    key_hash, body_hash) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`;
  const { type, studyId, credentialId, clientId, requestId, prefix, overwrite, key } = job;
  const values = [jobId, type, studyId, credentialId, clientId, requestId, prefix, overwrite];
  await tx.query(prepared(text, [...values, key?.keyHash ?? null, key?.bodyHash ?? null]));
  return jobId;
}

/** One file to be worked on. */
export interface NewFile {
  name: string;
  key: string;
  sizeBytes?: number | undefined;
  /** Version of the source, where the listing tells it. */
  etag?: string | undefined;
  slideId?: string | undefined;
  subjectId?: string | null | undefined;
  organId?: string | null | undefined;
}

/** Adds files to a job that is locked or new; `complete`: these were the last. */
export async function addFiles(tx: Tx, jobId: string, files: NewFile[], complete: boolean): Promise<void> {
  const text = `with added as (
      insert into image_files (job_id, file_id, name, key, size_bytes, etag, slide_id, subject_id, organ_id)
      select $1, id, name, key, "sizeBytes", etag, "slideId", "subjectId", "organId"
      from json_to_recordset($2::json) as f (id text, name text, key text, "sizeBytes" bigint, etag text, "slideId" text,
        "subjectId" text, "organId" text)
      returning size_bytes),
    counted as (select count(*) as files, coalesce(sum(size_bytes), 0) as bytes from added)
    update image_jobs set files_total = files_total + files, bytes_total = bytes_total + bytes,
      bytes_left = bytes_left + bytes, event_no = event_no + 1, listed_date = case when $3 then now() end
    from counted where job_id = $1`;
  const rows = files.map((file) => ({ id: newId(), ...file }));
  await tx.query(prepared(text, [jobId, JSON.stringify(rows), complete]));
}

/** Which of the slides have an image, by id, with their FILE NAMEs; of what is asked for, or in order after one. */
export async function findImagedSlides(
  db: Db,
  studyId: string,
  which: { ids: string[] } | { after: string; limit: number },
): Promise<{ slideId: string; fileName: string; sizeBytes: number }[]> {
  const [condition, values] =
    'ids' in which
      ? ['s.slide_id = any($2)', [which.ids]]
      : ['s.slide_id > $2 order by s.slide_id limit $3', [which.after, which.limit]];
  const text = `select s.slide_id as "slideId", s.file_name as "fileName", i.size_bytes as "sizeBytes"
    from slides s join images i on i.study_id = s.study_id and i.slide_id = s.slide_id
    where s.study_id = $1 and ${condition}`;
  const { rows } = await db.query<{ slideId: string; fileName: string; sizeBytes: number }>(
    prepared(text, [studyId, ...values]),
  );
  return rows;
}

/** A job that is locked for a change of its state. */
export interface LockedJob {
  jobId: string;
  studyId: string;
  credentialId: string;
  clientId: string;
  requestId: string;
  status: JobStatus;
  /** Whether a worker has it that is alive. */
  worked: boolean;
  cancelRequested: boolean;
  files: FileCounts;
}

const lockedMembers = `job_id as "jobId", study_id as "studyId", credential_id as "credentialId",
  client_id as "clientId", request_id as "requestId", status, worker_id is not null and lease_until > now() as worked,
  cancel_requested_date is not null as "cancelRequested",
  json_build_object('total', files_total, 'completed', files_completed, 'skipped', files_skipped,
    'failed', files_failed, 'cancelled', files_cancelled) as files`;

/** What has to be locked before the job itself. */
export async function findJobParents(
  tx: Tx,
  jobId: string,
): Promise<Pick<LockedJob, 'clientId' | 'studyId' | 'credentialId'> | null> {
  const text = `select client_id as "clientId", study_id as "studyId", credential_id as "credentialId"
    from image_jobs where job_id = $1`;
  const { rows } = await tx.query<Pick<LockedJob, 'clientId' | 'studyId' | 'credentialId'>>(prepared(text, [jobId]));
  return rows[0] ?? null;
}

/** Locks a job; whatever `condition` says besides is told about the row as it is once the lock is there. */
export async function lockJob(tx: Tx, jobId: string, condition = 'true', values: unknown[] = []) {
  const text = `select ${lockedMembers} from image_jobs where job_id = $1 and ${condition} for update`;
  const { rows } = await tx.query<LockedJob>(prepared(text, [jobId, ...values]));
  return rows[0] ?? null;
}

/** `:retry`: resets what is not done and puts the job back. The job is locked, and in a state that allows it. */
export async function retryJob(tx: Tx, jobId: string, requestId: string): Promise<void> {
  const { retry } = transitions;
  await moveFiles(tx, jobId, `status in ('FAILED', 'CANCELLED')`, {
    set: `status = 'PENDING', attempts = 0, error_message = null, bytes_transferred = 0, started_date = null,
      completed_date = null`,
    limit: null,
  });
  const text = `update image_jobs set status = '${retry.to[0]}', attempt = attempt + 1, error_message = null,
      cancel_requested_date = null, started_date = null, completed_date = null, request_id = $2, event_no = event_no + 1
    where job_id = $1 and status in (${listed(retry.from)})`;
  await tx.query(prepared(text, [jobId, requestId]));
}

export async function requestCancel(tx: Tx, jobId: string): Promise<void> {
  const text = `update image_jobs set cancel_requested_date = now(), event_no = event_no + 1
    where job_id = $1 and cancel_requested_date is null and status in (${listed(transitions.cancel.from)})`;
  await tx.query(prepared(text, [jobId]));
}

/**
 * Changes files of a job that is locked, each under an event number of its own; how many. Parameters of `where` and
 * `set` are numbered from $2 on.
 */
async function moveFiles(
  tx: Tx,
  jobId: string,
  where: string,
  change: { set: string; values?: unknown[]; limit: number | null },
): Promise<number> {
  const text = `with chosen as (
      select file_id, row_number() over (order by file_id) as n from image_files
      where job_id = $1 and ${where} ${change.limit === null ? '' : `order by file_id limit ${change.limit}`}),
    moved as (
      update image_files f set ${change.set}, event_no = j.event_no + c.n
      from chosen c, image_jobs j where j.job_id = $1 and f.file_id = c.file_id returning 1),
    counted as (select count(*) as n from moved),
    told as (update image_jobs set event_no = event_no + n + 1 from counted where job_id = $1 and n > 0)
    select n from counted`;
  const { rows } = await tx.query<{ n: number }>(prepared(text, [jobId, ...(change.values ?? [])]));
  return rows[0]?.n ?? 0;
}

/** Files of a step of a mass change: some 100 ms of work, so that nobody waits long for the job's row. */
const STEP = 5_000;

/** Gives up to {@link STEP} files that are not done a last status and a reason; how many. Purges what they had begun. */
export function endOpenFiles(tx: Tx, jobId: string, status: 'FAILED' | 'CANCELLED', reason: string): Promise<number> {
  return purgeBegun(tx, jobId).then(() =>
    moveFiles(tx, jobId, `status in ('PENDING', 'RUNNING')`, {
      set: `status = '${status}', error_message = $2, completed_date = now(), object_key = null`,
      values: [reason],
      limit: STEP,
    }),
  );
}

/** Asks for the removal of objects that are not whole, of files that nobody works on any more. */
async function purgeBegun(tx: Tx, jobId: string): Promise<void> {
  const text = `insert into object_purges (object_key)
    select object_key from image_files where job_id = $1 and status in ('PENDING', 'RUNNING') and object_key is not null
    on conflict do nothing`;
  await tx.query(prepared(text, [jobId]));
}

/** Writes the end of a job that is locked. A job that found no file lists again when it is retried. */
export async function endJob(tx: Tx, jobId: string, status: JobStatus, errorMessage: string | null): Promise<void> {
  const text = `update image_jobs set status = $2, error_message = $3, completed_date = now(), worker_id = null,
      lease_until = null, bytes_per_second = null, event_no = event_no + 1,
      listed_date = case when files_total > 0 then listed_date end
    where job_id = $1 and status in (${listed(transitions.cancel.from)})`;
  await tx.query(prepared(text, [jobId, status, errorMessage]));
}
