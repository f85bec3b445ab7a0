import { type Db, isConstraintViolation, savepoint, type Tx } from '../db/database.ts';
import type { EventWriter } from '../http/gate.ts';
import { checkVersion } from '../http/headers.ts';
import type { Call, Result } from '../http/operation.ts';
import { newId } from '../lib/id.ts';
import { pointerTo } from '../lib/pointer.ts';
import { conflict, type Fault, notFound, Problem, rejected } from '../lib/problem.ts';
import { changesOf } from './changes.ts';
import { type Kind, kinds } from './kinds.ts';
import {
  deleteRecord,
  findDependents,
  findRecord,
  findReferences,
  findTaken,
  type Insert,
  type Item,
  insertRecords,
  lockRecords,
  markStudyDeleted,
  type StoredRecord,
  studyExists,
  updateRecords,
} from './queries.ts';
import { MANAGED_KEYS } from './schemas.ts';

type Body = Record<string, unknown>;

/** Attributes as they are stored, without the keys that the service manages; a body without them clears them. */
export function storedAttributes(body: Body): Body {
  const attributes = (body.attributes ?? {}) as Body;
  for (const key of MANAGED_KEYS) delete attributes[key];
  return attributes;
}

/** The columns' values of a body, by member; what it leaves out is null, what is fixed comes from `before`. */
function itemOf(kind: Kind, id: string, body: Body, before?: Body): Item {
  const item: Item = { id };
  for (const { member } of kind.columns) {
    if (member === 'attributes') item[member] = storedAttributes(body);
    else if (before && kind.fixed.includes(member)) item[member] = before[member];
    else item[member] = (Object.hasOwn(body, member) ? body[member] : null) ?? null;
  }
  return item;
}

/** An item of a request and where its members stand in the body. */
interface Incoming {
  pointer: string;
  item: Item;
}

/** The 404 of a record that was not found: told apart from that of its study. */
export async function missing(db: Db, kind: Kind, studyId: string): Promise<Problem> {
  return notFound(kind.name === 'study' || !(await studyExists(db, studyId)) ? 'study' : kind.name);
}

/** Adds a fault for every reference of the items that does not fit (decisions §2 and §3: 422 with a pointer). */
async function checkReferences(db: Db, studyId: string, incoming: Incoming[], faults: Fault[]): Promise<void> {
  const idsOf = (member: string) => [
    ...new Set(incoming.map(({ item }) => item[member]).filter((id): id is string => typeof id === 'string')),
  ];
  const ids = { subjects: idsOf('subjectId'), organs: idsOf('organId'), slides: idsOf('slideId') };
  if (ids.subjects.length + ids.organs.length + ids.slides.length === 0) return;
  const found = new Map<string, { subject_id: string | null }>();
  for (const row of await findReferences(db, studyId, ids)) found.set(`${row.table}/${row.id}`, row);
  for (const { pointer, item } of incoming) {
    const at = (member: string) => pointerTo(pointer, member);
    const look = (table: string, member: string) => {
      const id = item[member];
      if (typeof id !== 'string') return null;
      const row = found.get(`${table}/${id}`);
      if (!row) faults.push({ pointer: at(member), detail: `is no ${member.slice(0, -2)} of this study` });
      return row ?? null;
    };
    look('subjects', 'subjectId');
    const organ = look('organs', 'organId');
    const slide = look('slides', 'slideId');
    const { subjectId } = item;
    if (organ && typeof subjectId === 'string' && organ.subject_id !== subjectId) {
      faults.push({ pointer: at('organId'), detail: 'is an organ of another subject' });
    }
    if (slide && organ && slide.subject_id !== organ.subject_id) {
      faults.push({ pointer: at('slideId'), detail: 'is not a slide of the organ’s subject' });
    }
  }
}

/** Faults of names that others hold, in the store or earlier in the same request (409). */
async function checkNames(db: Db, kind: Kind, studyId: string, incoming: Incoming[]): Promise<Fault[]> {
  const { taken } = kind;
  if (!taken) return [];
  const key = (name: unknown, subjectId: unknown) => JSON.stringify([name, kind.name === 'organ' ? subjectId : null]);
  const names = incoming.map(({ item }) => ({
    name: item[taken.member] as string,
    subjectId: (item.subjectId ?? null) as string | null,
  }));
  const holders = new Map<string, string>();
  for (const row of await findTaken(db, kind, studyId, names)) holders.set(key(row.name, row.subjectId), row.id);
  const faults: Fault[] = [];
  for (const { pointer, item } of incoming) {
    const own = key(item[taken.member], item.subjectId);
    const holder = holders.get(own);
    if (holder === undefined) holders.set(own, item.id);
    else if (holder !== item.id) faults.push({ pointer: pointerTo(pointer, taken.member), detail: taken.detail });
  }
  return faults;
}

/** Throws what is wrong with items that could not be written, in the order of decisions §8: 422, then 409. */
async function refuse(db: Db, kind: Kind, studyId: string, incoming: Incoming[], faults: Fault[]): Promise<void> {
  await checkReferences(db, studyId, incoming, faults);
  if (faults.length > 0) throw rejected('validation-failed', faults);
  const taken = await checkNames(db, kind, studyId, incoming);
  if (taken.length > 0) throw conflict(conflictDetail(taken), taken);
}

function conflictDetail(faults: Fault[]): string {
  const [first] = faults;
  return faults.length === 1 ? `${first?.pointer} ${first?.detail}.` : `${faults.length} names are taken; see errors.`;
}

/**
 * Creates records, all or none; answers them and their ids, in the order of the bodies. It writes first and asks
 * afterwards what was wrong: the constraints decide, also between two clients at once, and the usual case is one round
 * trip.
 */
export async function createRecords(
  db: Db,
  kind: Kind,
  studyId: string | null,
  bodies: { pointer: string; body: Body }[],
  faults: Fault[],
  event: EventWriter | null,
  insert: Insert = insertRecords,
): Promise<{ records: StoredRecord[]; ids: string[] }> {
  const incoming = bodies.map(({ pointer, body }) => ({ pointer, item: itemOf(kind, newId(), body) }));
  const items = incoming.map(({ item }) => item);
  const study = studyId ?? '';
  // Whoever was in the way may be gone by the time one looks: then the write is worth another try, 3 times at most.
  for (let attempt = 1; faults.length === 0 && attempt <= 3; attempt++) {
    try {
      const records = await insert(db, kind, studyId, items, event);
      if (records.length > 0) return { records, ids: items.map(({ id }) => id) };
      throw notFound('study');
    } catch (error) {
      if (!isConstraintViolation(error)) throw error;
      if (!(await studyExists(db, study))) throw notFound('study');
      await refuse(db, kind, study, incoming, faults);
    }
  }
  if (studyId !== null && !(await studyExists(db, study))) throw notFound('study');
  if (faults.length > 0) await refuse(db, kind, study, incoming, faults);
  throw conflict('The study changed while the request was worked on; send it again.');
}

/** A record that is locked for the rest of the transaction, as it was; null where there is none. */
async function locked(tx: Tx, kind: Kind, studyId: string, id: string): Promise<StoredRecord | null> {
  await lockRecords(tx, kind, studyId, [id]);
  return findRecord(tx, kind, studyId, id);
}

/** What a full update of one record comes to: the item to write, with faults for members that may not change. */
function updateOf(kind: Kind, id: string, pointer: string, body: Body, before: Body, faults: Fault[]): Incoming {
  for (const member of kind.fixed) {
    if (Object.hasOwn(body, member) && body[member] !== before[member]) {
      faults.push({ pointer: pointerTo(pointer, member), detail: 'is fixed after creation' });
    }
  }
  return { pointer, item: itemOf(kind, id, body, before) };
}

/** Writes full updates of locked records; what the constraints refuse becomes a 422 or 409 with its faults. */
async function write(tx: Tx, kind: Kind, studyId: string, incoming: Incoming[], faults: Fault[]): Promise<void> {
  await checkReferences(tx, studyId, incoming, faults);
  if (faults.length > 0) throw rejected('validation-failed', faults);
  const items = incoming.map(({ item }) => item);
  try {
    // The transaction must live on after a refusal, to find out which item it was.
    await savepoint(tx, () => updateRecords(tx, kind, studyId, items));
  } catch (error) {
    if (!isConstraintViolation(error)) throw error;
    if ((error as { constraint?: string }).constraint === 'finding_slide') {
      const detail = 'has findings of its subject on it and cannot move to another';
      throw rejected(
        'validation-failed',
        incoming.map(({ pointer }) => ({ pointer: pointerTo(pointer, 'subjectId'), detail })),
      );
    }
    await refuse(tx, kind, studyId, incoming, faults);
    throw conflict('The record conflicts with another that changed at the same time; send the request again.', []);
  }
}

/** PUT of one record (interface.md §1: full update). The body may depend on the record as it is stored. */
export async function updateRecord(
  tx: Tx,
  kind: Kind,
  studyId: string,
  id: string,
  call: Pick<Call, 'ifMatch' | 'faults'> & { body: (stored: Body) => Body },
): Promise<Pick<Result, 'event'> & StoredRecord> {
  const before = await locked(tx, kind, studyId, id);
  if (!before) throw await missing(tx, kind, studyId);
  checkVersion(call.ifMatch, before.version);
  const beforeRecord = JSON.parse(before.record) as Body;
  const incoming = updateOf(kind, id, '', call.body(beforeRecord), beforeRecord, call.faults);
  await write(tx, kind, studyId, [incoming], call.faults);
  const after = (await findRecord(tx, kind, studyId, id)) as StoredRecord;
  return { ...after, event: { changes: changesOf(beforeRecord, JSON.parse(after.record)) } };
}

/** Full updates of several records, all or none; the 404 says which are not there. */
export async function updateAll(
  tx: Tx,
  kind: Kind,
  studyId: string,
  items: Body[],
  faults: Fault[],
): Promise<{ records: string[]; ids: string[]; changes: unknown }> {
  const ids = items.map((item) => item[kind.idMember] as string);
  if (!(await studyExists(tx, studyId))) throw notFound('study');
  await lockRecords(tx, kind, studyId, ids);
  const before: Body[] = [];
  const unknown: string[] = [];
  for (const id of ids) {
    const found = await findRecord(tx, kind, studyId, id);
    if (found) before.push(JSON.parse(found.record) as Body);
    else unknown.push(id);
  }
  if (unknown.length > 0) throw new Problem('not-found', `There is no such ${kind.name}: ${unknown.join(', ')}.`);
  const incoming = items.map((body, index) =>
    updateOf(kind, ids[index] as string, `/items/${index}`, body, before[index] as Body, faults),
  );
  await write(tx, kind, studyId, incoming, faults);
  const records: string[] = [];
  const changes: unknown[] = [];
  for (const [index, id] of ids.entries()) {
    const { record } = (await findRecord(tx, kind, studyId, id)) as StoredRecord;
    records.push(record);
    changes.push({ id, ...changesOf(before[index] as Body, JSON.parse(record)) });
  }
  return { records, ids, changes };
}

/** DELETE of a study with everything below it, in one logical step (decisions §3). */
export async function removeStudy(
  tx: Tx,
  studyId: string,
  call: Pick<Call, 'ifMatch' | 'faults'>,
): Promise<Pick<Result, 'event'>> {
  const before = await locked(tx, kinds.study, studyId, studyId);
  if (!before) throw notFound('study');
  checkVersion(call.ifMatch, before.version);
  if (call.faults.length > 0) throw rejected('validation-failed', call.faults);
  await markStudyDeleted(tx, studyId);
  return { event: { changes: { before: JSON.parse(before.record), after: null } } };
}

/** DELETE of one record: refused with a 422 while others hang on it (interface.md §7). */
export async function removeRecord(
  tx: Tx,
  kind: Kind,
  studyId: string,
  id: string,
  call: Pick<Call, 'ifMatch' | 'faults'>,
): Promise<Pick<Result, 'event'>> {
  const before = await locked(tx, kind, studyId, id);
  if (!before) throw await missing(tx, kind, studyId);
  checkVersion(call.ifMatch, before.version);
  const dependents = await findDependents(tx, kind, studyId, id);
  if (dependents.length > 0) {
    throw new Problem(
      'validation-failed',
      `The ${kind.name} still has ${dependents.join(' and ')}; delete them first.`,
      {
        faults: call.faults,
      },
    );
  }
  if (call.faults.length > 0) throw rejected('validation-failed', call.faults);
  try {
    await deleteRecord(tx, kind, studyId, id);
  } catch (error) {
    // Somebody hung a record on it between the look and the deletion.
    if (isConstraintViolation(error)) {
      throw new Problem('validation-failed', `The ${kind.name} has just got records below it; delete them first.`);
    }
    throw error;
  }
  return { event: { changes: { before: JSON.parse(before.record), after: null } } };
}
