import { setMaxListeners } from 'node:events';
import { ObjectError, type ObjectInfo, type ObjectStore } from '../objects/store.ts';
import type { ByteSource } from './format/byte-source.ts';
import type { Tries } from './tries.ts';

/** 4 MiB: a part long enough that the request for it hardly counts, and short enough to be held in memory. */
const PART_BYTES = 4 * 1024 * 1024;
/** Parts that every object may have under way or waiting to be taken: the next arrives while one is written. */
const LEAST_AHEAD = 2;
/** The same where {@link PartMemory} allows it: on a long line, one connection is far from filling it. */
const MOST_AHEAD = 4;

/** 32 parts, 128 MiB, of those that are done with: more than the usual settings ever have in use. */
const MOST_FREE = 32;

/**
 * Where parts are held, of all objects being read: memory taken anew for each would cost more than reading it, and the
 * collector does not see what threads share.
 */
export interface PartMemory {
  /** Parts that objects may still hold beyond their least. */
  extra: number;
  /** Those that are done with. */
  free: Buffer[];
}

/** 2 parts, 8 MiB, besides 8 MiB a file: a lone file has the line to itself, many do not take the memory. */
export const partMemory = (): PartMemory => ({ extra: MOST_AHEAD - LEAST_AHEAD, free: [] });

/** What is read, and how often it may be tried. */
export interface Reading {
  store: Pick<ObjectStore, 'read'>;
  info: ObjectInfo;
  tries: Tries;
  signal: AbortSignal;
  /** Absent: every object has its least, and memory of its own. */
  memory?: PartMemory;
  /** Told of bytes that have arrived; of fewer than none, where they turned out to be damaged. */
  onReceived?: (bytes: number) => void;
}

/**
 * The bytes of one version of an object in order, fetched in parts side by side. A connection that breaks is taken up
 * again at the byte where it broke. A part is the caller's until the next one is asked for.
 */
export async function* readObject(reading: Reading): AsyncGenerator<Buffer> {
  const { sizeBytes } = reading.info;
  const stop = new AbortController();
  // Every part listens more than once.
  setMaxListeners(0, stop.signal);
  const forward = () => stop.abort(reading.signal.reason);
  if (reading.signal.aborted) forward();
  reading.signal.addEventListener('abort', forward, { once: true });
  const memory = reading.memory ?? { extra: 0, free: [] };
  const ahead: Promise<Buffer>[] = [];
  let extra = 0;
  try {
    for (let start = 0; start < sizeBytes || ahead.length > 0; ) {
      while (start < sizeBytes && (ahead.length < LEAST_AHEAD || memory.extra > 0)) {
        if (ahead.length >= LEAST_AHEAD) {
          memory.extra--;
          extra++;
        }
        // Shared, so that another thread can hash it where it is.
        const whole = memory.free.pop() ?? Buffer.from(new SharedArrayBuffer(PART_BYTES));
        const bytes = whole.subarray(0, sizeBytes - start);
        // It is awaited later, or not at all when one before it fails.
        const part = readPart({ ...reading, signal: stop.signal }, start, bytes);
        part.catch(() => {});
        ahead.push(part);
        start += PART_BYTES;
      }
      const part = (await ahead.shift()) as Buffer;
      reading.signal.throwIfAborted();
      yield part;
      if (memory.free.length < MOST_FREE) memory.free.push(Buffer.from(part.buffer));
      if (extra > 0) {
        memory.extra++;
        extra--;
      }
    }
  } finally {
    memory.extra += extra;
    reading.signal.removeEventListener('abort', forward);
    stop.abort(new Error('The rest of the object is not wanted.'));
  }
}

/** All bytes of an object, in one request: the store compares them with the checksum that it keeps, where it keeps one. */
export function readWhole({ store, info, tries, signal, onReceived }: Reading): Promise<Buffer> {
  const { key, sizeBytes, etag: ifMatch } = info;
  return tries.run(async () => {
    const bytes = Buffer.allocUnsafeSlow(sizeBytes);
    let got = 0;
    try {
      for await (const chunk of (await store.read(key, { ifMatch, signal })) as AsyncIterable<Buffer>) {
        if (got + chunk.length > sizeBytes) throw hasChanged(key);
        bytes.set(chunk, got);
        got += chunk.length;
        onReceived?.(chunk.length);
      }
      if (got < sizeBytes) throw isIncomplete(key);
    } catch (error) {
      onReceived?.(-got);
      throw error;
    }
    return bytes;
  });
}

const hasChanged = (key: string) => new ObjectError('changed', `${JSON.stringify(key)} has changed.`);
const isIncomplete = (key: string) => new ObjectError('transient', `${JSON.stringify(key)} arrived incomplete.`);

/** Fills `bytes` with those of an object from `start`. */
async function readPart(
  { store, info, tries, signal, onReceived }: Reading,
  start: number,
  bytes: Buffer,
): Promise<Buffer> {
  const { length } = bytes;
  let got = 0;
  await tries.run(async () => {
    const range = { start: start + got, end: start + length - 1 };
    const stream = await store.read(info.key, { ...range, ifMatch: info.etag, signal });
    try {
      for await (const chunk of stream as AsyncIterable<Buffer>) {
        if (got + chunk.length > length) throw hasChanged(info.key);
        bytes.set(chunk, got);
        got += chunk.length;
        onReceived?.(chunk.length);
      }
    } catch (error) {
      // All bytes came, and yet it failed: they were damaged on their way.
      if (got >= length) {
        onReceived?.(-got);
        got = 0;
      }
      throw error;
    }
    if (got < length) throw isIncomplete(info.key);
  });
  return bytes;
}

/** An object as the readers of image headers want it. */
export function byteSource(reading: Reading, name: string): ByteSource {
  return {
    sizeBytes: reading.info.sizeBytes,
    name,
    read: (start, length) =>
      readPart(reading, start, Buffer.allocUnsafe(Math.min(length, reading.info.sizeBytes - start))),
  };
}
