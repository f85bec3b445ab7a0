import type { Readable } from 'node:stream';

/** What a store knows of one object without reading it. */
export interface ObjectInfo {
  /** Key inside the store, `/`-separated; never starts with `/`. */
  key: string;
  /** Size in bytes. */
  sizeBytes: number;
  /** Opaque version tag of the provider (its ETag, generation or mtime); changes when the content changes. */
  etag: string;
  /** Time of the last change, where the provider tells it. */
  modifiedDate: Date | null;
}

export interface ListOptions {
  /** Only keys that start with this. Empty or absent: all. */
  prefix?: string;
  signal?: AbortSignal;
}

export interface ReadOptions {
  /** First byte to read, 0-based. Default 0. At or past the end: an empty stream. */
  start?: number;
  /** Last byte to read, inclusive; beyond the end is cut to it. Default: the object's last. */
  end?: number;
  /** Read only this version: fails with `changed` when the object has another etag by now. */
  ifMatch?: string;
  signal?: AbortSignal;
}

/**
 * What is to be written: a stream, or chunks of which each is the writer's until it asks for the next one, so that their
 * source may use its memory again. Chunks that are no stream end by themselves when the signal of the write aborts.
 */
export type Body = Readable | AsyncGenerator<Uint8Array>;

export interface WriteOptions {
  /** Media type kept with the object, where the provider keeps one. */
  contentType?: string;
  /** Exact size where the caller knows it (a provider may choose its part size by it); another length fails the write. */
  sizeBytes?: number;
  /** Called with the bytes handed over so far: never falls, and ends at the size once the object is durable. */
  onProgress?: (bytes: number) => void;
  signal?: AbortSignal;
}

/**
 * One bucket, container or directory tree: the service's own store as well as the clouds that image jobs read and write.
 * An object becomes visible whole or not at all: `write` that fails or is aborted leaves neither the object nor parts.
 * Every method rejects with {@link ObjectError}; none waits for ever (idle timeouts are the implementation's).
 * Two errors pass through as they are: an aborted call rejects (and a stream ends) with `signal.reason`, and a `write`
 * whose body fails rejects with the body's own error, so that the caller can tell the source from the target.
 * A stream of `read` that breaks on the way ends in a `transient` error, to be resumed by `start` and `ifMatch`.
 */
export interface ObjectStore {
  /** Where this is, for logs and messages; holds no secret. */
  readonly description: string;
  /** Objects in key order (UTF-8 byte order), page by page, at most 1,000 a page, never all in memory. */
  list(options?: ListOptions): AsyncIterable<ObjectInfo[]>;
  /** The object's facts; rejects with `not-found`. */
  head(key: string, options?: { signal?: AbortSignal }): Promise<ObjectInfo>;
  /** A stream of the object's bytes; rejects with `not-found` before the first byte. */
  read(key: string, options?: ReadOptions): Promise<Readable>;
  /**
   * Streams `body` to `key` in constant memory, replacing what is there, and resolves when it is durable.
   * The body is read to its end or destroyed, whatever the outcome.
   */
  write(key: string, body: Body, options?: WriteOptions): Promise<ObjectInfo>;
  /** Removes the object; one that is not there is no error. */
  delete(key: string, options?: { signal?: AbortSignal }): Promise<void>;
  /** A URL that lets a browser read the object without credentials for `expiresInS` seconds; null where there is none. */
  presignRead(
    key: string,
    options: { expiresInS: number; fileName: string; contentType: string },
  ): Promise<string | null>;
  /** Cheap call that proves the store answers (readiness). */
  check(options?: { signal?: AbortSignal }): Promise<void>;
  /** Releases sockets and handles. */
  close(): Promise<void>;
}

/** A store that nobody but this service writes to. */
export interface OwnStore extends ObjectStore {
  /** Removes what writers that died left half-written; tells how many that were. */
  sweep(options: SweepOptions): Promise<number>;
}

export interface SweepOptions {
  /** What the service's own keys begin with: nothing else is touched, as others may use the bucket too. */
  prefixes: string[];
  /** What is old enough for its writer to be dead. The default suits the store. */
  olderThanMs?: number;
  signal?: AbortSignal;
}

/** Why a store refused. `transient` ones are worth another try; the rest need a person. */
export type ObjectErrorKind = 'not-found' | 'denied' | 'changed' | 'no-space' | 'invalid-key' | 'transient' | 'failed';

/** The one error of every store. Its message is fit for a user: it names the object, never a secret. */
export class ObjectError extends Error {
  readonly kind: ObjectErrorKind;

  constructor(kind: ObjectErrorKind, message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'ObjectError';
    this.kind = kind;
  }
}

/** Longest key in UTF-8 bytes: the limit of S3, Azure and GCS alike. */
export const maxKeyBytes = 1024;

/** Refuses keys that no store can hold: empty, over 1,024 bytes, with U+0000 or a lone surrogate. */
export function checkKey(key: string): void {
  const fault =
    key === ''
      ? 'is empty'
      : Buffer.byteLength(key) > maxKeyBytes
        ? `is longer than ${maxKeyBytes} bytes`
        : key.includes('\0') || !key.isWellFormed()
          ? 'holds characters that no store can keep'
          : null;
  if (fault) throw new ObjectError('invalid-key', `The object key ${JSON.stringify(key.slice(0, 100))} ${fault}.`);
}

/** Order of keys by their UTF-8 bytes, which differs from JavaScript's own where surrogate pairs meet U+E000 and above. */
export function compareKeys(a: string, b: string): number {
  const length = Math.min(a.length, b.length);
  for (let i = 0; i < length; i++) {
    const x = a.charCodeAt(i);
    const y = b.charCodeAt(i);
    if (x !== y) return Number(isSurrogate(x)) - Number(isSurrogate(y)) || x - y;
  }
  return a.length - b.length;
}

function isSurrogate(unit: number): boolean {
  return unit >= 0xd800 && unit <= 0xdfff;
}
