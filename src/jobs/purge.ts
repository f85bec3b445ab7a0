import type { Db } from '../db/database.ts';
import { prepared } from '../db/statement.ts';

/** What the purge needs of an object store. */
export interface Bin {
  delete(key: string, options: { signal: AbortSignal }): Promise<void>;
}

/** Objects of one step; a step is a transaction’s worth of work for the store. */
const STEP = 100;

/**
 * Removes the objects that nothing refers to any more (`object_purges`). A row goes when its object is gone, so a crash
 * loses nothing; what the store refuses is tried again later. Returns how many are gone.
 */
export async function purgeObjects(
  db: Db,
  store: Bin,
  signal: AbortSignal,
  onFault: (key: string, error: unknown) => void,
): Promise<number> {
  let gone = 0;
  for (let after = ''; ; ) {
    const text = 'select object_key as key from object_purges where object_key > $1 order by object_key limit $2';
    const { rows } = await db.query<{ key: string }>(prepared(text, [after, STEP]));
    const last = rows.at(-1);
    if (!last) return gone;
    after = last.key;
    for (const { key } of rows) {
      signal.throwIfAborted();
      try {
        await store.delete(key, { signal });
        await db.query(prepared('delete from object_purges where object_key = $1', [key]));
        gone += 1;
      } catch (error) {
        signal.throwIfAborted();
        onFault(key, error);
      }
    }
  }
}
