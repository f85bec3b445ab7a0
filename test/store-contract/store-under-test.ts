import { createHash } from 'node:crypto';
import { Readable } from 'node:stream';
import { expect } from 'vitest';
import type { ObjectErrorKind, ObjectInfo, ObjectStore, ReadOptions, WriteOptions } from '../../src/objects/store.ts';

export interface ContractOptions {
  /** Size of the object that must go in several parts. Default 21 MiB: over two parts of 8 MiB and not a multiple. */
  largeBytes?: number;
  /** How many objects the test of several pages makes. Default 1,010: just over one page. */
  manyObjects?: number;
  /** Keys that this store refuses besides those that none can hold. */
  refusedKeys?: string[];
  /** Counts what unfinished writes have left behind (temporary files, open multipart uploads). */
  leftovers?: () => Promise<number> | number;
}

/** The store that a suite tries, and short forms of what it does with it. */
export interface StoreUnderTest {
  /** Open while tests run, not while they are described. */
  readonly store: ObjectStore;
  readonly options: ContractOptions;
  /** A body that goes in several parts. */
  readonly large: Buffer;
  put(key: string, body: string | Uint8Array, options?: WriteOptions): Promise<ObjectInfo>;
  get(key: string, options?: ReadOptions): Promise<Buffer>;
  text(key: string, options?: ReadOptions): Promise<string>;
  all(prefix?: string): Promise<ObjectInfo[]>;
  keys(prefix: string): Promise<string[]>;
  noLeftovers(): Promise<void>;
}

/** Asserts that the promise rejects with an ObjectError of that kind. */
export async function expectKind(promise: Promise<unknown>, kind: ObjectErrorKind): Promise<void> {
  await expect(promise).rejects.toMatchObject({ name: 'ObjectError', kind });
}

/** The body in pieces, of 64 KiB unless it says otherwise. */
export function* chunks(body: Uint8Array, size = 64 * 1024): Generator<Uint8Array> {
  for (let i = 0; i < body.length; i += size) yield body.subarray(i, i + size);
}

export function inChunks(body: Uint8Array, size?: number): Readable {
  return Readable.from(chunks(body, size), { objectMode: false });
}

export function sha256(body: Uint8Array): string {
  return createHash('sha256').update(body).digest('hex');
}
