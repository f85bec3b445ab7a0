import type { Db, Tx } from '../db/database.ts';

/** Holds other imports of the same STUDYID off until the transaction ends. */
export async function lockImport(tx: Tx, studyId: string): Promise<void> {
  await tx.query({ text: `select pg_advisory_xact_lock(hashtextextended('sds import ' || $1, 0))`, values: [studyId] });
}

/** A study that is there and has the STUDYID, by its attribute; null where there is none. */
export async function findImported(db: Db, studyId: string): Promise<string | null> {
  const text = `select study_id from studies where deleted_date is null and attributes->>'STUDYID' = $1 limit 1`;
  const { rows } = await db.query<{ study_id: string }>({ text, values: [studyId] });
  return rows[0]?.study_id ?? null;
}
