import { constants } from 'node:fs';
import { type FileHandle, mkdir, open, readlink, realpath, rmdir } from 'node:fs/promises';
import { basename, dirname, join, sep } from 'node:path';
import { inTurns } from '../lib/turns.ts';
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
  const directory = await openDirectory(root, path, key);
  try {
    return await work(directory);
  } finally {
    await directory.handle.close();
  }
}

async function openDirectory(root: string, path: string, key: string): Promise<OpenDirectory> {
  const handle = await open(path, constants.O_RDONLY | (constants.O_DIRECTORY ?? 0));
  try {
    holdInside(root, await pathOf(handle, path), key);
  } catch (error) {
    await handle.close();
    throw error;
  }
  return { path: process.platform === 'linux' ? `/proc/self/fd/${handle.fd}` : path, handle };
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

/** A directory that is open once for all who write in it at the time. */
export interface SharedDirectory extends OpenDirectory {
  /** {@link syncDirectory}; writers who ask at the same time share one way to the disk. */
  sync(): Promise<void>;
  /** Whether it is still where it was opened, from where whoever has it open would follow it to elsewhere; shared as well. */
  isThere(): Promise<boolean>;
}

interface Shared {
  users: number;
  opened: Promise<SharedDirectory>;
}

/** The directories below `root` that somebody is writing in. */
export class SharedDirectories {
  readonly #root: string;
  readonly #mode: number;
  readonly #inUse = new Map<string, Shared>();

  /** @param mode of directories that have to be made. */
  constructor(root: string, mode: number) {
    this.#root = root;
    this.#mode = mode;
  }

  /** Runs `work` in the directory, which is made where it is not there. `key` is for messages. */
  async use<T>(path: string, key: string, work: (directory: SharedDirectory) => Promise<T>): Promise<T> {
    const known = this.#inUse.get(path);
    if (known) {
      const done = await this.#with(path, known, async (directory) =>
        (await directory.isThere()) ? { result: await work(directory) } : this.#forget(path, known),
      );
      if (done) return done.result;
    }
    const opened = this.#inUse.get(path) ?? { users: 0, opened: this.#open(path, key) };
    this.#inUse.set(path, opened);
    return this.#with(path, opened, work);
  }

  async #with<T>(path: string, shared: Shared, work: (directory: SharedDirectory) => Promise<T>): Promise<T> {
    shared.users++;
    try {
      return await work(await shared.opened);
    } catch (error) {
      this.#forget(path, shared);
      throw error;
    } finally {
      shared.users--;
      if (shared.users === 0) {
        this.#forget(path, shared);
        await shared.opened.then(({ handle }) => handle.close()).catch(() => {});
      }
    }
  }

  /** It may be another directory, or none, that has this name by now: whoever comes next is to look anew. */
  #forget(path: string, shared: Shared): null {
    if (this.#inUse.get(path) === shared) this.#inUse.delete(path);
    return null;
  }

  async #open(path: string, key: string): Promise<SharedDirectory> {
    await makeDirectory(this.#root, path, key, this.#mode);
    const directory = await openDirectory(this.#root, path, key);
    const { handle } = directory;
    const place = await pathOf(handle, path);
    return {
      ...directory,
      sync: inTurns(() => syncDirectory(directory)),
      isThere: inTurns(async () => (await pathOf(handle, path)) === place),
    };
  }
}
