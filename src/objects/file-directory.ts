import { constants } from 'node:fs';
import { type FileHandle, mkdir, open, readlink, realpath, rmdir } from 'node:fs/promises';
import { basename, dirname, join, sep } from 'node:path';
import { hasCode } from './file-errors.ts';
import { ObjectError } from './store.ts';

/** A directory that is open: `path` leads into it whatever becomes of its name, where the system can do that. */
export interface OpenDirectory {
  path: string;
  handle: FileHandle;
}

/** Refuses what is not below `root` (both as the system resolves them). `key` is for the message. */
export function holdInside(root: string, real: string, key: string): void {
  if (real !== root && !real.startsWith(root.endsWith(sep) ? root : root + sep))
    throw new ObjectError('denied', `${JSON.stringify(key)} leads out of the directory.`);
}

/** Where an open handle really is. Asking the kernel leaves no moment in which a link could be swapped; only Linux tells. */
export async function pathOf(handle: FileHandle, path: string): Promise<string> {
  if (process.platform !== 'linux') return realpath(path);
  return readlink(`/proc/self/fd/${handle.fd}`).catch(() => realpath(path));
}

/** Opens a directory below `root`, so that nobody swaps it for a link while `work` works in it. */
export async function inDirectory<T>(
  root: string,
  path: string,
  key: string,
  work: (directory: OpenDirectory) => Promise<T>,
): Promise<T> {
  const handle = await open(path, constants.O_RDONLY | (constants.O_DIRECTORY ?? 0));
  try {
    holdInside(root, await pathOf(handle, path), key);
    return await work({ path: process.platform === 'linux' ? `/proc/self/fd/${handle.fd}` : path, handle });
  } finally {
    await handle.close();
  }
}

/** mkdir -p that looks where it is at every step, so that no link makes it build outside, and that survives a power cut. */
export async function makeDirectory(root: string, path: string, key: string, mode: number): Promise<void> {
  try {
    holdInside(root, await realpath(path), key);
  } catch (error) {
    if (!hasCode(error, 'ENOENT') || path === root) throw error;
    await makeDirectory(root, dirname(path), key, mode);
    await inDirectory(root, dirname(path), key, async (parent) => {
      await mkdir(join(parent.path, basename(path)), { mode });
      await syncDirectory(parent);
    }).catch((failure: unknown) => {
      if (!hasCode(failure, 'EEXIST')) throw failure;
    });
  }
}

/** Removes the directory and those above it as long as they are empty, but never `root`. */
export async function prune(root: string, directory: string): Promise<void> {
  for (let path = directory; path !== root; path = dirname(path)) {
    try {
      await rmdir(path);
    } catch {
      return; // Not empty, or somebody else was quicker: both are fine.
    }
  }
}

/** Makes renames and removals in the directory durable. Windows cannot. */
export async function syncDirectory({ handle }: OpenDirectory): Promise<void> {
  if (process.platform !== 'win32') await handle.sync();
}

/**
 * {@link syncDirectory} for many writers at once: who comes while the disk is busy with a directory shares the next turn,
 * which begins after what all of them did.
 */
export class DirectorySyncs {
  readonly #running = new Map<string, Promise<void>>();
  readonly #waiting = new Map<string, Promise<void>>();

  async sync(directory: OpenDirectory): Promise<void> {
    if (process.platform === 'win32') return;
    // Not by its name, which another directory may have by now.
    const { dev, ino } = await directory.handle.stat({ bigint: true });
    const id = `${dev}/${ino}`;
    await (this.#waiting.get(id) ?? this.#turn(id, directory));
  }

  #turn(id: string, directory: OpenDirectory): Promise<void> {
    const turn = (async () => {
      // Whatever became of the turn before, its own writers are told. At least one step, so that others can join.
      await this.#running.get(id)?.catch(() => {});
      this.#waiting.delete(id);
      const running = syncDirectory(directory);
      this.#running.set(id, running);
      try {
        await running;
      } finally {
        if (this.#running.get(id) === running) this.#running.delete(id);
      }
    })();
    this.#waiting.set(id, turn);
    return turn;
  }
}
