import type { Db } from '../db/database.ts';
import type { ObjectStore } from '../objects/store.ts';
import { findExportKeys } from './job-queries.ts';

/**
 * Removes export files that no job knows: those of workers that died, or had lost their job, between the file and its
 * record. A job names its file before the first byte is written, so whatever is in the store and in no job is not
 * wanted. Returns how many there were.
 */
export async function sweepExports(db: Db, store: ObjectStore, signal: AbortSignal): Promise<number> {
  let swept = 0;
  for await (const objects of store.list({ prefix: 'exports/', signal })) {
    const known = await findExportKeys(
      db,
      objects.map(({ key }) => key),
    );
    for (const { key } of objects) {
      if (known.has(key)) continue;
      await store.delete(key, { signal });
      swept += 1;
    }
  }
  return swept;
}
