import type { Db } from '../db/database.ts';

/** Rows of one step: some 100 ms of work, so that a purge of a million records never holds locks for long. */
const STEP = 10_000;

/** Tables below a study, dependents first; `keys` are columns that name objects in the store. */
const TABLES: { table: string; keys?: string }[] = [
  { table: 'findings' },
  { table: 'scores' },
  { table: 'images', keys: 'object_key' },
  { table: 'codes' },
  { table: 'export_jobs', keys: 'object_key' },
  { table: 'slides' },
  { table: 'organs' },
  { table: 'subjects' },
  { table: 'record_counts' },
];

/** Studies that were deleted and still have rows, oldest first. */
export async function findDeletedStudies(db: Db): Promise<string[]> {
  const text = 'select study_id from studies where deleted_date is not null order by deleted_date';
  const { rows } = await db.query<{ study_id: string }>({ text });
  return rows.map(({ study_id }) => study_id);
}

/** Deletes up to {@link STEP} rows of one table, and asks for the removal of the objects they name; how many. */
async function purgeStep(db: Db, table: string, keys: string | undefined, studyId: string): Promise<number> {
  const gone = `delete from ${table} where ctid = any(array(
      select ctid from ${table} where study_id = $1 limit ${STEP} for update skip locked)) returning ${keys ?? '1'}`;
  const text = keys
    ? `with gone as (${gone}), asked as (insert into object_purges (object_key)
        select ${keys} from gone where ${keys} is not null on conflict do nothing)
      select count(*) as n from gone`
    : `with gone as (${gone}) select count(*) as n from gone`;
  const { rows } = await db.query<{ n: number }>({ text, values: [studyId] });
  return rows[0]?.n ?? 0;
}

/** Takes away everything below a deleted study, step by step. */
export async function purgeRecords(db: Db, studyId: string, signal: AbortSignal): Promise<void> {
  for (const { table, keys } of TABLES) {
    while ((await purgeStep(db, table, keys, studyId)) > 0) signal.throwIfAborted();
  }
}

/** Removes the row of a deleted study itself; fails with a foreign key violation while anything is below it. */
export async function forgetStudy(db: Db, studyId: string): Promise<void> {
  await db.query({ text: 'delete from studies where study_id = $1 and deleted_date is not null', values: [studyId] });
}
