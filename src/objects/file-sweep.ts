import { readdir, stat, unlink } from 'node:fs/promises';
import { join } from 'node:path';
import { fileError, hasCode } from './file-errors.ts';

/** Where a file store writes before the object gets its name: in the tree itself, or the rename would not be atomic. */
export const incomingName = '.incoming';

/** One hour: a live writer touches its file every few seconds, or its source has timed out long ago. */
const orphanAgeMs = 3_600_000;

/**
 * Removes what writers that died left half-written in the file store at `dir`, and tells how many files that were.
 * A live writer touches its file with every chunk, so one that has not been touched for `olderThanMs` is an orphan.
 */
export async function sweepIncoming(dir: string, olderThanMs = orphanAgeMs): Promise<number> {
  const incoming = join(dir, incomingName);
  let swept = 0;
  try {
    for (const name of await readdir(incoming)) {
      const path = join(incoming, name);
      const age = await stat(path).then(
        ({ mtimeMs }) => Date.now() - mtimeMs,
        () => 0,
      );
      if (age < olderThanMs) continue;
      // Otherwise its writer or another sweep was faster.
      await unlink(path).then(
        () => swept++,
        (error: unknown) => {
          if (!hasCode(error, 'ENOENT')) throw error;
        },
      );
    }
  } catch (error) {
    if (!hasCode(error, 'ENOENT')) throw fileError(error, incomingName);
  }
  return swept;
}
