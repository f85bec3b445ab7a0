import type { Db, Tx } from '../db/database.ts';
import { prepared } from '../db/statement.ts';
import { isoDate } from './kinds.ts';
import type { StoredRecord } from './queries.ts';

/** The codes object as JSON text, with its id for the event. */
export interface StoredCodes extends StoredRecord {
  codesId: string;
}

/** Members of the codes record, as SQL over the alias `r`. */
export const codesMembers = `r.codes_id as "codesId", r.study_id as "studyId", r.code_lists as "codeLists", r.attributes,
  ${isoDate('r.created_date')} as "createdDate", ${isoDate('r.updated_date')} as "updatedDate", r.version`;

/** The codes object of a study that is there, or null. */
export async function findCodes(db: Db, studyId: string): Promise<StoredCodes | null> {
  const text = `select row_to_json(q)::text as record, q.version, q."codesId" from (
    select ${codesMembers} from codes r join studies t using (study_id) where r.study_id = $1 and t.deleted_date is null) q`;
  const { rows } = await db.query<StoredCodes>(prepared(text, [studyId]));
  return rows[0] ?? null;
}

/** Rejects with a unique violation where the study has one already. */
export async function insertCodes(tx: Tx, studyId: string, id: string, codeLists: string, attributes: string) {
  const text = 'insert into codes (study_id, codes_id, code_lists, attributes) values ($1, $2, $3, $4)';
  await tx.query(prepared(text, [studyId, id, codeLists, attributes]));
}

/** Locks the codes object, where there is one, until the transaction ends. */
export async function lockCodes(tx: Tx, studyId: string): Promise<void> {
  await tx.query(prepared('select from codes where study_id = $1 for update', [studyId]));
}

/** Writes all columns of a codes object that is locked. */
export async function writeCodes(tx: Tx, studyId: string, codeLists: string, attributes: string): Promise<void> {
  const text = `update codes set code_lists = $2, attributes = $3, version = version + 1, updated_date = now()
    where study_id = $1`;
  await tx.query(prepared(text, [studyId, codeLists, attributes]));
}
