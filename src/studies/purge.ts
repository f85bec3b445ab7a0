import { type Db, isDatabaseError } from '../db/database.ts';
import { findDeletedStudies, forgetStudy, purgeRecords } from './purge-queries.ts';

/**
 * Takes away what deleted studies have left: rows in steps, objects by way of object_purges. Any number of processes
 * may do it at once, and whatever a crash leaves is done by the next; returns how many studies are gone for good.
 */
export async function purgeStudies(db: Db, signal: AbortSignal): Promise<number> {
  let gone = 0;
  for (const studyId of await findDeletedStudies(db)) {
    signal.throwIfAborted();
    try {
      await purgeRecords(db, studyId, signal);
      await forgetStudy(db, studyId);
      gone += 1;
    } catch (error) {
      // 23503, a foreign key: a write that had begun before the deletion has just come in. The next purge gets it.
      if (!isDatabaseError(error) || error.code !== '23503') throw error;
    }
  }
  return gone;
}
