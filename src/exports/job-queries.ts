import type { Db, Tx } from '../db/database.ts';
import { type Page, type PageRequest, pageOf, pageSql } from '../db/paging.ts';
import { prepared } from '../db/statement.ts';
import type { Claim } from '../jobs/kind.ts';
import { isoDate } from '../studies/kinds.ts';
import type { ExportFormat } from './schemas.ts';
import { activeStatuses, type ExportStatus, MAX_TAKEOVERS, transitions } from './states.ts';

const quoted = (statuses: readonly ExportStatus[]) => statuses.map((status) => `'${status}'`).join(', ');
const active = `status in (${quoted(activeStatuses)})`;

/** Members of the job record (interface.md §2), as SQL over the alias `r`. */
const members = `r.export_id as "exportId", r.study_id as "studyId", r.format,
  (select row_to_json(e) from (
    select r.status, r.records_written as "recordsWritten", r.total_records as "totalRecords") e) as "exportStatus",
  (select row_to_json(d) from (
    select case when r.status = '${transitions.complete.to}'
      then '/api/v1/studies/' || r.study_id || '/exports/' || r.export_id || ':download' end as "downloadUrl") d) as download,
  r.file_size_bytes as "fileSizeBytes", r.sha256, r.error_message as "errorMessage",
  ${isoDate('r.created_date')} as "createdDate", ${isoDate('r.started_date')} as "startedDate",
  ${isoDate('r.completed_date')} as "completedDate"`;

const exists = 'exists (select from studies t where t.study_id = $1 and t.deleted_date is null)';

/** A job record as JSON text, the way it leaves the service. */
export interface StoredExport {
  exportId: string;
  record: string;
}

const recordOf = (from: string, where: string) =>
  `select row_to_json(q)::text as record, q."exportId" from (select ${members} from ${from} r ${where}) q`;

/** One job, or null where there is none. */
export async function findExport(db: Db, studyId: string, exportId: string): Promise<StoredExport | null> {
  const text = recordOf('export_jobs', `where r.study_id = $1 and r.export_id = $2 and ${exists}`);
  const { rows } = await db.query<StoredExport>(prepared(text, [studyId, exportId]));
  return rows[0] ?? null;
}

/** The jobs of a study, oldest first unless asked otherwise; null where the study is not there. */
export async function listExports(db: Db, studyId: string, request: PageRequest): Promise<Page | null> {
  const values: unknown[] = [studyId];
  const { text, page } = pageSql({
    members,
    table: 'export_jobs',
    joins: '',
    where: 'r.study_id = $1',
    total: 'select count(*) from export_jobs where study_id = $1',
    sort: ['r.created_date'],
    keyMember: 'createdDate',
    idColumn: 'r.export_id',
    idMember: 'exportId',
    request,
    values,
  });
  const { rows } = await db.query<{ found: boolean } & Parameters<typeof pageOf>[0]>(
    prepared(`select ${exists} as found, ${text}`, values),
  );
  const row = rows[0];
  return row?.found ? pageOf(row, page) : null;
}

/** What decides whether a job can be started. */
export interface StudyExports {
  active: StoredExport | null;
  failed: boolean;
  count: number;
  hasHierarchy: boolean;
}

/**
 * Locks a study against other starts of exports and against its deletion, and tells about its jobs; null where it is
 * not there. Writers below the study are not held up.
 */
export async function lockStudyExports(tx: Tx, studyId: string): Promise<StudyExports | null> {
  const lock = 'select from studies where study_id = $1 and deleted_date is null for no key update';
  const { rowCount } = await tx.query(prepared(lock, [studyId]));
  if (rowCount === 0) return null;
  // A statement of its own, as it sees what was committed while the lock was waited for.
  const text = `select count(*) as count, bool_or(status = '${transitions.fail.to}') is true as failed,
      exists (select from subjects where study_id = $1) or exists (select from slides where study_id = $1) as "hasHierarchy",
      (select row_to_json(a) from (${recordOf('export_jobs', `where r.study_id = $1 and r.${active}`)}) a) as active
    from export_jobs where study_id = $1`;
  const { rows } = await tx.query<StudyExports>(prepared(text, [studyId]));
  return rows[0] as StudyExports;
}

export async function insertExport(
  tx: Tx,
  job: { exportId: string; studyId: string; format: ExportFormat; clientId: string },
): Promise<StoredExport> {
  const text = `with r as (
    insert into export_jobs (export_id, study_id, format, client_id) values ($1, $2, $3, $4) returning *)
    ${recordOf('r', '')}`;
  const { rows } = await tx.query<StoredExport>(prepared(text, [job.exportId, job.studyId, job.format, job.clientId]));
  return rows[0] as StoredExport;
}

/** Deletes a job, whatever its state; its file is purged, and a worker hears of it (triggers of migration 0003). */
export async function deleteExport(tx: Tx, studyId: string, exportId: string): Promise<boolean> {
  const text = `delete from export_jobs where study_id = $1 and export_id = $2 and ${exists}`;
  const { rowCount } = await tx.query(prepared(text, [studyId, exportId]));
  return rowCount === 1;
}

/** The file of a job, as its download needs it. */
export interface ExportFile {
  status: ExportStatus;
  format: ExportFormat;
  objectKey: string | null;
  sizeBytes: number;
  sha256: string;
  completedDate: Date;
  studyName: string;
}

export async function findExportFile(db: Db, studyId: string, exportId: string): Promise<ExportFile | null> {
  const text = `select r.status, r.format, r.object_key as "objectKey", r.file_size_bytes as "sizeBytes", r.sha256,
      r.completed_date as "completedDate", t.name as "studyName"
    from export_jobs r join studies t using (study_id)
    where r.study_id = $1 and r.export_id = $2 and t.deleted_date is null`;
  const { rows } = await db.query<ExportFile>(prepared(text, [studyId, exportId]));
  return rows[0] ?? null;
}

/** A job that a worker has claimed. */
export interface ClaimedExport extends Claim {
  studyId: string;
  format: ExportFormat;
  /** Where its file goes: another key each attempt. */
  objectKey: string;
  /** Milliseconds since its POST. */
  ageMs: number;
}

/** The worker still has the job: nobody deleted it, or took it over. */
const held = `r.export_id = $1 and r.attempt = $2 and r.status = '${transitions.complete.from}'`;

/**
 * Takes the oldest job that waits, or whose worker’s lease ran out, for `leaseMs`. The file of an attempt before is
 * purged, as the key changes.
 */
export async function claimExport(db: Db, workerId: string, leaseMs: number): Promise<ClaimedExport | null> {
  const { claim, takeOver } = transitions;
  const text = `update export_jobs r set status = '${claim.to}', worker_id = $1,
      lease_until = now() + $2 * interval '1 ms', attempt = r.attempt + 1,
      takeovers = r.takeovers + case r.status when '${takeOver.from}' then 1 else 0 end,
      object_key = 'exports/' || r.export_id || '/' || (r.attempt + 1),
      started_date = now(), records_written = 0, total_records = null
    where r.export_id = (
      select export_id from export_jobs
      where status = '${claim.from}' or (status = '${takeOver.from}' and lease_until < now() and takeovers < ${MAX_TAKEOVERS})
      order by created_date, export_id limit 1 for update skip locked)
    returning export_id as id, attempt, study_id as "studyId", format, object_key as "objectKey",
      (extract(epoch from now() - created_date) * 1000)::float8 as "ageMs"`;
  const { rows } = await db.query<ClaimedExport>(prepared(text, [workerId, leaseMs]));
  return rows[0] ?? null;
}

/** Fails the jobs whose workers died once too often; returns their ids. */
export async function giveUpExports(db: Db, errorMessage: string): Promise<string[]> {
  const { giveUp } = transitions;
  const text = `update export_jobs set status = '${giveUp.to}', error_message = $1, completed_date = now(),
      worker_id = null, lease_until = null, object_key = null
    where export_id in (
      select export_id from export_jobs
      where status = '${giveUp.from}' and lease_until < now() and takeovers >= ${MAX_TAKEOVERS} for update skip locked)
    returning export_id as id`;
  const { rows } = await db.query<{ id: string }>(prepared(text, [errorMessage]));
  return rows.map(({ id }) => id);
}

/** Whether the statement found the job as the worker has it. */
async function changed(db: Db, text: string, values: unknown[]): Promise<boolean> {
  const { rowCount } = await db.query(prepared(text, values));
  return rowCount === 1;
}

/** Prolongs the lease to `leaseMs` from now; false where the worker has the job no longer. */
export function renewExport(db: Db, { id, attempt }: Claim, leaseMs: number): Promise<boolean> {
  const text = `update export_jobs r set lease_until = now() + $3 * interval '1 ms' where ${held}`;
  return changed(db, text, [id, attempt, leaseMs]);
}

/** Tells how far the export is; false where the worker has the job no longer. */
export function recordProgress(db: Db, { id, attempt }: Claim, written: number, total: number): Promise<boolean> {
  const text = `update export_jobs r set records_written = $3, total_records = $4 where ${held}`;
  return changed(db, text, [id, attempt, written, total]);
}

/** Puts the job back, as new; what was written of its file is purged. */
export function handBackExport(db: Db, { id, attempt }: Claim): Promise<boolean> {
  const text = `update export_jobs r set status = '${transitions.handBack.to}', worker_id = null, lease_until = null,
    object_key = null, started_date = null, records_written = 0, total_records = null where ${held}`;
  return changed(db, text, [id, attempt]);
}

export function failExport(db: Db, { id, attempt }: Claim, errorMessage: string): Promise<boolean> {
  const text = `update export_jobs r set status = '${transitions.fail.to}', error_message = $3, completed_date = now(),
    worker_id = null, lease_until = null, object_key = null where ${held}`;
  return changed(db, text, [id, attempt, errorMessage]);
}

/** What is known of a file that was written whole. */
export interface WrittenFile {
  records: number;
  sizeBytes: number;
  sha256: string;
}

/** The file is there: the one write that makes it so. False where the worker has the job no longer. */
export function completeExport(db: Db, { id, attempt }: Claim, file: WrittenFile): Promise<boolean> {
  const text = `update export_jobs r set status = '${transitions.complete.to}', records_written = $3, total_records = $3,
    file_size_bytes = $4, sha256 = $5, completed_date = now(), worker_id = null, lease_until = null where ${held}`;
  return changed(db, text, [id, attempt, file.records, file.sizeBytes, file.sha256]);
}

/** Which of the keys are the file of a job, finished or being written. */
export async function findExportKeys(db: Db, keys: string[]): Promise<Set<string>> {
  const text = 'select object_key from export_jobs where object_key = any($1)';
  const { rows } = await db.query<{ object_key: string }>(prepared(text, [keys]));
  return new Set(rows.map(({ object_key }) => object_key));
}
