import { isDatabaseError, type Tx } from '../db/database.ts';
import { checkVersion, type IfMatch } from '../http/headers.ts';
import { newId } from '../lib/id.ts';
import { conflict, type Fault, notFound, rejected } from '../lib/problem.ts';
import { changesOf } from './changes.ts';
import { findCodes, insertCodes, lockCodes, type StoredCodes, writeCodes } from './codes-queries.ts';
import { studyExists } from './queries.ts';
import { storedAttributes } from './rules.ts';

type Body = Record<string, unknown>;

function columnsOf(body: Body): [codeLists: string, attributes: string] {
  // The attributes of a code are a client's map like any other (interface.md §1: server-managed keys).
  for (const codes of Object.values(body.codeLists as Record<string, Body[]>)) {
    for (const code of codes) if (code.attributes) storedAttributes(code);
  }
  return [JSON.stringify(body.codeLists), JSON.stringify(storedAttributes(body))];
}

/** Creates the codes object; 409 when there is one. */
export async function createCodes(tx: Tx, studyId: string, body: Body, faults: Fault[]): Promise<StoredCodes> {
  if (!(await studyExists(tx, studyId))) throw notFound('study');
  if (faults.length > 0) throw rejected('validation-failed', faults);
  try {
    await insertCodes(tx, studyId, newId(), ...columnsOf(body));
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
  await lockCodes(tx, studyId);
  const before = await findCodes(tx, studyId);
  if (!before) throw notFound((await studyExists(tx, studyId)) ? 'codes object; create it by POST' : 'study');
  checkVersion(ifMatch, before.version);
  if (faults.length > 0) throw rejected('validation-failed', faults);
  await writeCodes(tx, studyId, ...columnsOf(body));
  const after = (await findCodes(tx, studyId)) as StoredCodes;
  return { ...after, changes: changesOf(JSON.parse(before.record), JSON.parse(after.record)) };
}
