import { Readable } from 'node:stream';
import { openFileStore } from './file.ts';
import { defaultIdleTimeoutMs, readWithIdleTimeout, withIdleTimeout } from './idle.ts';
import {
  type Body,
  type ListOptions,
  ObjectError,
  type ObjectInfo,
  type ObjectStore,
  type ReadOptions,
  type WriteOptions,
} from './store.ts';
import { endOnAbort, takeBody } from './stream.ts';

/** A directory tree that the administrator opened: one item of `SDS_FILE_ROOTS` (decisions §5). */
export interface OpenedRoot {
  /** The name that credentials call it by. */
  name: string;
  /** Absolute path. A symbolic link here is followed once, when the root is opened. */
  path: string;
  readOnly: boolean;
}

/** 10 times the idle timeout for a page of a listing: it may take thousands of look-ups, and nothing tells of each. */
const pagePatience = 10;

/**
 * Opens the root of a FILE credential: a file store of a tree that others write to as well. No message tells where on
 * this machine it is, and a share that does not answer any more is `transient` instead of a job that hangs.
 * Names that are not UTF-8 are skipped in listings, as are pipes, sockets and devices: no key could read them.
 * Rejects with `denied` where the root may not be entered, with `failed` where it is not there.
 */
export async function openFileRoot(
  { name, path, readOnly }: OpenedRoot,
  { idleTimeoutMs = defaultIdleTimeoutMs }: { idleTimeoutMs?: number } = {},
): Promise<ObjectStore> {
  const description = `file root ${name}`;
  try {
    const opening = { what: `The ${description}`, idleTimeoutMs, signal: undefined };
    const store = await withIdleTimeout(opening, () => openFileStore(path, { readOnly, shared: true }));
    return new FileRoot(description, store, idleTimeoutMs);
  } catch (error) {
    const kind = error instanceof ObjectError ? error.kind : 'failed';
    throw new ObjectError(kind, `The ${description} cannot be opened: is it there, and may the service enter it?`);
  }
}

/** Every call of a file store, with an end: the system itself waits for ever for a share that is gone. */
class FileRoot implements ObjectStore {
  readonly description: string;
  readonly #store: ObjectStore;
  readonly #idleTimeoutMs: number;

  constructor(description: string, store: ObjectStore, idleTimeoutMs: number) {
    this.description = description;
    this.#store = store;
    this.#idleTimeoutMs = idleTimeoutMs;
  }

  async *list(options: ListOptions = {}): AsyncGenerator<ObjectInfo[]> {
    const pages = this.#store.list(options)[Symbol.asyncIterator]();
    const patient = {
      what: this.description,
      idleTimeoutMs: pagePatience * this.#idleTimeoutMs,
      signal: options.signal,
    };
    try {
      for (;;) {
        const page = await withIdleTimeout(patient, async () => {
          const { done, value } = await pages.next();
          return done ? null : this.#confirmed(value);
        });
        if (page === null) return;
        if (page.length > 0) yield page;
      }
    } finally {
      // Not awaited: it would wait for what hangs.
      pages.return?.().catch(() => {});
    }
  }

  head(key: string, options: { signal?: AbortSignal } = {}): Promise<ObjectInfo> {
    return this.#timed(key, options.signal, () => this.#store.head(key, options));
  }

  async read(key: string, options: ReadOptions = {}): Promise<Readable> {
    const { signal } = options;
    const body = await this.#timed(key, signal, () => this.#store.read(key, options));
    const expected = { what: this.#what(key), sizeBytes: undefined, idleTimeoutMs: this.#idleTimeoutMs, signal };
    return readWithIdleTimeout(body, expected);
  }

  async write(key: string, body: Body, options: WriteOptions = {}): Promise<ObjectInfo> {
    const { signal, onProgress } = options;
    const endBody = takeBody(body);
    try {
      return await this.#timed(key, signal, (stop, progress) => {
        if (body instanceof Readable) endOnAbort(body, stop);
        return this.#store.write(key, patiently(body, progress, this.#idleTimeoutMs), {
          ...options,
          signal: stop,
          onProgress(bytes) {
            progress();
            onProgress?.(bytes);
          },
        });
      });
    } finally {
      endBody();
    }
  }

  delete(key: string, options: { signal?: AbortSignal } = {}): Promise<void> {
    return this.#timed(key, options.signal, () => this.#store.delete(key, options));
  }

  async presignRead(): Promise<null> {
    return null;
  }

  check(options: { signal?: AbortSignal } = {}): Promise<void> {
    return this.#timed(undefined, options.signal, () => this.#store.check(options));
  }

  close(): Promise<void> {
    return this.#store.close();
  }

  /**
   * The page without what `head` does not find inside the root: a folder that somebody swaps for a link to elsewhere, in
   * the moment between finding it and opening it, would lend its names to the listing.
   */
  async #confirmed(page: ObjectInfo[]): Promise<ObjectInfo[]> {
    const infos = await Promise.all(
      page.map(({ key }) =>
        this.#store.head(key).catch((error: unknown) => {
          if (error instanceof ObjectError && (error.kind === 'not-found' || error.kind === 'denied')) return null;
          throw error;
        }),
      ),
    );
    return infos.filter((info) => info !== null);
  }

  #what(key: string): string {
    return `${JSON.stringify(key)} in ${this.description}`;
  }

  #timed<T>(
    key: string | undefined,
    signal: AbortSignal | undefined,
    work: (stop: AbortSignal, progress: () => void) => Promise<T>,
  ): Promise<T> {
    const what = key === undefined ? this.description : this.#what(key);
    return withIdleTimeout({ what, idleTimeoutMs: this.#idleTimeoutMs, signal }, work);
  }
}

/** The chunks of a body. To wait for one is to wait for its source, which has an idle timeout of its own. */
async function* patiently(body: Body, progress: () => void, idleTimeoutMs: number): AsyncGenerator<Uint8Array> {
  const chunks: AsyncIterator<Uint8Array> = body[Symbol.asyncIterator]();
  try {
    for (;;) {
      const waiting = setInterval(progress, idleTimeoutMs / 4);
      const next = await chunks.next().finally(() => clearInterval(waiting));
      progress();
      if (next.done) return;
      yield next.value;
    }
  } finally {
    await chunks.return?.();
  }
}
