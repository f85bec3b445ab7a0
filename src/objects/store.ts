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
  /** First byte to read, 0-based. Default 0. */
  start?: number;
  /** Last byte to read, inclusive. Default: the object's last. */
  end?: number;
  /** Read only this version: fails with `changed` when the object has another etag by now. */
  ifMatch?: string;
  signal?: AbortSignal;
}

export interface WriteOptions {
  /** Media type kept with the object, where the provider keeps one. */
  contentType?: string;
  /** Exact size where the caller knows it (a provider may choose its part size by it). */
  sizeBytes?: number;
  /** Called with the bytes durably handed over so far. */
  onProgress?: (bytes: number) => void;
  signal?: AbortSignal;
}

/**
 * One bucket, container or directory tree: the service's own store as well as the clouds that image jobs read and write.
 * An object becomes visible whole or not at all: `write` that fails or is aborted leaves neither the object nor parts.
 * Every method rejects with {@link ObjectError}; none waits for ever (idle timeouts are the implementation's).
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
  /** Streams `body` to `key` in constant memory, replacing what is there, and resolves when it is durable. */
  write(key: string, body: Readable, options?: WriteOptions): Promise<ObjectInfo>;
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
