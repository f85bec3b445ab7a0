import { type Db, isDatabaseError, type Tx } from '../db/database.ts';
import { prepared } from '../db/statement.ts';
import { checkVersion, type IfMatch } from '../http/headers.ts';
import { newId } from '../lib/id.ts';
import { conflict, type Fault, notFound, rejected } from '../lib/problem.ts';
import { changesOf } from './changes.ts';
import { isoDate } from './kinds.ts';
import { type StoredRecord, studyExists } from './queries.ts';
import { storedAttributes } from './rules.ts';

type Body = Record<string, unknown>;

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

/** Creates the codes object; 409 when there is one. */
export async function createCodes(tx: Tx, studyId: string, body: Body, faults: Fault[]): Promise<StoredCodes> {
  if (!(await studyExists(tx, studyId))) throw notFound('study');
  if (faults.length > 0) throw rejected('validation-failed', faults);
  const text = 'insert into codes (study_id, codes_id, code_lists, attributes) values ($1, $2, $3, $4)';
  const values = [studyId, newId(), JSON.stringify(body.codeLists), JSON.stringify(storedAttributes(body))];
  try {
    await tx.query(prepared(text, values));
  } catch (error) {
    // 23505, unique_violation: the primary key is the study.
    if (isDatabaseError(error) && error.code === '23505') {
      throw conflict('The study has a codes object already; update it by PUT.');
    }
    throw error;
  }
  return (await findCodes(tx, studyId)) as StoredCodes;
}

/** PUT of the codes object; 404 before there is one. */
export async function updateCodes(
  tx: Tx,
  studyId: string,
  body: Body,
  ifMatch: IfMatch | null,
  faults: Fault[],
): Promise<StoredCodes & { changes: unknown }> {
  await tx.query(prepared('select from codes where study_id = $1 for update', [studyId]));
  const before = await findCodes(tx, studyId);
  if (!before) throw notFound((await studyExists(tx, studyId)) ? 'codes object; create it by POST' : 'study');
  checkVersion(ifMatch, before.version);
  if (faults.length > 0) throw rejected('validation-failed', faults);
  const text = `update codes set code_lists = $2, attributes = $3, version = version + 1, updated_date = now()
    where study_id = $1`;
  await tx.query(prepared(text, [studyId, JSON.stringify(body.codeLists), JSON.stringify(storedAttributes(body))]));
  const after = (await findCodes(tx, studyId)) as StoredCodes;
  return { ...after, changes: changesOf(JSON.parse(before.record), JSON.parse(after.record)) };
}
