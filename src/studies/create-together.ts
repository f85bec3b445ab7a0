import { type Db, isConstraintViolation, isWorthRetry } from '../db/database.ts';
import type { EventWriter } from '../http/gate.ts';
import { gather } from '../lib/gather.ts';
import type { Kind } from './kinds.ts';
import { type Insert, type Item, insertRecords, type StoredRecord } from './queries.ts';

/** One record that a call creates, and its event. */
interface Single {
  item: Item;
  event: EventWriter;
}

/** 32 records a statement: by then what a statement costs besides its rows hardly counts. */
const MOST = 32;
/** 4 statements of one study and kind at once: one that waits for somebody's lock holds up a part of the others alone. */
const AT_ONCE = 4;

/**
 * {@link insertRecords} for many clients at once: single records of a study and kind that come while others are being
 * written go together in the next statement, each with an event of its own. Where the database refuses one of them, each
 * is written by itself, and told what is wrong with it. Who comes alone goes alone, at once.
 */
export function insertTogether(): Insert {
  const queues = new Map<string, (single: Single) => Promise<Outcome>>();
  return async (db, kind, studyId, items, event) => {
    const [item] = items;
    // What has a reason has details beside its event (decisions §7).
    if (!item || items.length > 1 || studyId === null || !event || event.draft.reason !== null)
      return insertRecords(db, kind, studyId, items, event);
    const key = `${kind.name} ${studyId}`;
    const write = (singles: Single[]) => writeAll(db, kind, studyId, singles);
    const queue = queues.get(key) ?? gather(MOST, write, { atOnce: AT_ONCE, onIdle: () => queues.delete(key) });
    queues.set(key, queue);
    const outcome = await queue({ item, event });
    if (outcome.status === 'rejected') throw outcome.reason;
    return outcome.value ? [outcome.value] : [];
  };
}

/** What became of one: its record, or null where the study is not there. */
type Outcome = PromiseSettledResult<StoredRecord | null>;

async function writeAll(db: Db, kind: Kind, studyId: string, singles: Single[]): Promise<Outcome[]> {
  try {
    const records = await writeAtOnce(db, kind, studyId, singles);
    return singles.map((_, at) => ({ status: 'fulfilled', value: records[at] ?? null }));
  } catch (error) {
    if (singles.length === 1 || !(isConstraintViolation(error) || isWorthRetry(error))) throw error;
    const alone = singles.map(async (single) => (await writeAtOnce(db, kind, studyId, [single]))[0] ?? null);
    return Promise.allSettled(alone);
  }
}

async function writeAtOnce(db: Db, kind: Kind, studyId: string, singles: Single[]): Promise<StoredRecord[]> {
  const [first] = singles as [Single];
  const items = singles.map(({ item }) => item);
  const drafts = singles.map(({ item, event }) => ({ ...event.draft, resourceId: item.id }));
  const event = singles.length === 1 ? first.event : { clause: (at: number) => first.event.clauseOfAll(drafts, at) };
  return insertRecords(db, kind, studyId, items, event);
}
