import { randomUUID } from 'node:crypto';
import type { BigIntStats } from 'node:fs';
import { constants } from 'node:fs';
import { access, type FileHandle, lstat, mkdir, open, realpath, rename, stat, unlink } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import type { Readable } from 'node:stream';
import { holdInside, inDirectory, pathOf, prune, SharedDirectories, syncDirectory } from './file-directory.ts';
import { fileError, fileWriteError, hasCode } from './file-errors.ts';
import { checkFileKey } from './file-keys.ts';
import { listFiles } from './file-list.ts';
import { readHandle } from './file-read.ts';
import { incomingName, sweepIncoming } from './file-sweep.ts';
import {
  type Body,
  type ListOptions,
  ObjectError,
  type ObjectInfo,
  type OwnStore,
  type ReadOptions,
  type SweepOptions,
  type WriteOptions,
} from './store.ts';
import { takeBody, toBytes } from './stream.ts';

export interface FileStoreOptions {
  /** Refuse every write and delete with `denied`. */
  readOnly?: boolean;
  /**
   * The tree belongs to others too (a network share): files are made with the process's umask instead of for this user
   * alone, the root must exist, and folders that a delete leaves empty stay.
   */
  shared?: boolean;
}

/**
 * The directory tree `dir` (absolute) as an object store: a key is the path below it.
 * No key and no symbolic link leads out of it (`denied`); links that stay inside are followed, in listings those to files.
 */
export async function openFileStore(dir: string, options: FileStoreOptions = {}): Promise<OwnStore> {
  try {
    if (!options.readOnly && !options.shared) await mkdir(dir, { recursive: true, mode: 0o700 });
    const root = await realpath(dir);
    if (!(await stat(root)).isDirectory()) throw new ObjectError('failed', `${dir} is not a directory.`);
    return new FileStore(root, options);
  } catch (error) {
    throw hasCode(error, 'ENOENT')
      ? new ObjectError('failed', `The directory ${dir} does not exist.`)
      : fileError(error, dir);
  }
}

/** 1 MiB: what comes in one piece, or few, is written to the disk as it comes, which saves a way to another thread. */
const ONE_WRITE_BYTES = 1024 * 1024;
/** Windows has no such files, and those of macOS stay in the memory of the disk. */
const syncsItself = process.platform === 'linux';

class FileStore implements OwnStore {
  readonly description: string;
  readonly #root: string;
  readonly #incoming: string;
  readonly #options: FileStoreOptions;
  readonly #directories: SharedDirectories;

  constructor(root: string, options: FileStoreOptions) {
    this.description = `file:${root}`;
    this.#root = root;
    this.#incoming = join(root, incomingName);
    this.#options = options;
    this.#directories = new SharedDirectories(root, options.shared ? 0o777 : 0o700);
  }

  list(options: ListOptions = {}): AsyncIterable<ObjectInfo[]> {
    return listFiles(
      this.#root,
      { skip: `${incomingName}/`, info: (key, isLink) => this.#listed(key, isLink) },
      options,
    );
  }

  async head(key: string, options: { signal?: AbortSignal } = {}): Promise<ObjectInfo> {
    options.signal?.throwIfAborted();
    try {
      const real = await realpath(this.#path(key));
      holdInside(this.#root, real, key);
      return fileInfo(key, await stat(real, { bigint: true }));
    } catch (error) {
      throw fileError(error, key);
    }
  }

  async read(key: string, options: ReadOptions = {}): Promise<Readable> {
    options.signal?.throwIfAborted();
    const path = this.#path(key);
    let handle: FileHandle | undefined;
    try {
      // Non-blocking: a FIFO under a scanner's share would otherwise hang the open for ever.
      handle = await open(path, constants.O_RDONLY | constants.O_NONBLOCK);
      holdInside(this.#root, await pathOf(handle, path), key);
      const info = fileInfo(key, await handle.stat({ bigint: true }));
      if (options.ifMatch !== undefined && options.ifMatch !== info.etag) throw changed(key);
      options.signal?.throwIfAborted();
      return readHandle(handle, info, options, async (open) => {
        if (fileInfo(key, await open.stat({ bigint: true })).etag !== info.etag) throw changed(key);
      });
    } catch (error) {
      await handle?.close();
      throw options.signal?.aborted ? options.signal.reason : fileError(error, key);
    }
  }

  async write(key: string, body: Body, options: WriteOptions = {}): Promise<ObjectInfo> {
    const { signal } = options;
    const endBody = takeBody(body, signal);
    let temporary: { path: string; handle: FileHandle } | undefined;
    try {
      signal?.throwIfAborted();
      const path = this.#writablePath(key);
      const synced = syncsItself && (options.sizeBytes ?? Infinity) <= ONE_WRITE_BYTES;
      temporary = await this.#openIncoming(key, synced ? constants.O_SYNC : 0);
      const { handle } = temporary;
      await fill(handle, body, key, options);
      const info = await guard(key, async () => {
        if (!synced) await handle.sync();
        const facts = fileInfo(key, await handle.stat({ bigint: true }));
        await handle.close();
        return facts;
      });
      signal?.throwIfAborted();
      await guard(key, () => this.#place(temporary?.path ?? '', path, key));
      options.onProgress?.(info.sizeBytes);
      return info;
    } catch (error) {
      endBody();
      await temporary?.handle.close();
      if (temporary) await unlink(temporary.path).catch(() => {});
      throw signal?.aborted ? signal.reason : error;
    }
  }

  async delete(key: string, options: { signal?: AbortSignal } = {}): Promise<void> {
    options.signal?.throwIfAborted();
    const path = this.#writablePath(key);
    try {
      await inDirectory(this.#root, dirname(path), key, async (directory) => {
        await unlink(join(directory.path, basename(path)));
        await syncDirectory(directory);
      });
      if (!this.#options.shared) await prune(this.#root, dirname(path));
    } catch (error) {
      if (!hasCode(error, 'ENOENT', 'ENOTDIR', 'EISDIR')) throw fileError(error, key);
    }
  }

  async presignRead(): Promise<null> {
    return null;
  }

  async check(options: { signal?: AbortSignal } = {}): Promise<void> {
    options.signal?.throwIfAborted();
    await guard(this.description, async () => {
      if (this.#options.readOnly) return access(this.#root, constants.R_OK | constants.X_OK);
      const { path, handle } = await this.#openIncoming(this.description);
      try {
        await handle.write('.');
      } finally {
        await handle.close();
        await unlink(path);
      }
    });
  }

  sweep({ olderThanMs }: SweepOptions): Promise<number> {
    return sweepIncoming(this.#root, olderThanMs);
  }

  async close(): Promise<void> {}

  #path(key: string): string {
    checkFileKey(key);
    return join(this.#root, key);
  }

  #writablePath(key: string): string {
    if (this.#options.readOnly) throw new ObjectError('denied', `${JSON.stringify(key)} was not changed: read-only.`);
    return this.#path(key);
  }

  /** Facts of a name found by a listing; null when it is no object (gone again, a folder, a pipe, a link that leads out). */
  async #listed(key: string, isLink: boolean): Promise<ObjectInfo | null> {
    try {
      if (isLink) return await this.head(key);
      return fileInfo(key, await lstat(join(this.#root, key), { bigint: true }));
    } catch (error) {
      const known = fileError(error, key);
      if (['not-found', 'denied', 'invalid-key'].includes(known.kind)) return null;
      throw known;
    }
  }

  async #openIncoming(key: string, flags = 0): Promise<{ path: string; handle: FileHandle }> {
    const path = join(this.#incoming, randomUUID());
    const { O_WRONLY, O_CREAT, O_EXCL } = constants;
    const create = () => open(path, O_WRONLY | O_CREAT | O_EXCL | flags, this.#options.shared ? 0o666 : 0o600);
    return guard(key, async () => {
      try {
        return { path, handle: await create() };
      } catch (error) {
        if (!hasCode(error, 'ENOENT')) throw error;
        // Not recursive: a root that has gone (a disk not mounted) must not be made anew underneath.
        await mkdir(this.#incoming, { mode: 0o700 }).catch((failure: unknown) => {
          if (!hasCode(failure, 'EEXIST')) throw failure;
        });
        return { path, handle: await create() };
      }
    });
  }

  /** Gives the finished file its name. A delete may prune the folder between our mkdir and our rename: then again. */
  async #place(temporary: string, path: string, key: string): Promise<void> {
    for (let triesLeft = 20; ; triesLeft--) {
      try {
        return await this.#directories.use(dirname(path), key, async (directory) => {
          await rename(temporary, join(directory.path, basename(path)));
          await directory.sync();
        });
      } catch (error) {
        if (!hasCode(error, 'ENOENT') || triesLeft === 0) throw error;
      }
    }
  }
}

/** Writes the body to the file. Errors of the disk become ObjectErrors here, so that those of the body stay what they are. */
async function fill(handle: FileHandle, body: Body, key: string, options: WriteOptions): Promise<void> {
  let bytes = 0;
  for await (const piece of body) {
    const chunk = toBytes(piece);
    await guard(key, () => writeAll(handle, chunk));
    bytes += chunk.length;
    if (options.sizeBytes !== undefined && bytes > options.sizeBytes) break;
    options.onProgress?.(bytes);
  }
  if (options.sizeBytes !== undefined && bytes !== options.sizeBytes)
    throw new ObjectError('failed', `${JSON.stringify(key)} was not written: its size is not the announced one.`);
}

/** A write may take less than it was given. */
async function writeAll(handle: FileHandle, chunk: Uint8Array): Promise<void> {
  for (let at = 0; at < chunk.length; ) at += (await handle.write(chunk, at)).bytesWritten;
}

async function guard<T>(key: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    throw fileWriteError(error, key);
  }
}

function fileInfo(key: string, facts: BigIntStats): ObjectInfo {
  if (!facts.isFile()) throw new ObjectError('not-found', `There is no object ${JSON.stringify(key)}.`);
  return {
    key,
    sizeBytes: Number(facts.size),
    etag: [facts.mtimeNs, facts.size, facts.ino].map((part) => part.toString(36)).join('-'),
    modifiedDate: facts.mtime,
  };
}

function changed(key: string): ObjectError {
  return new ObjectError('changed', `${JSON.stringify(key)} has changed meanwhile.`);
}
