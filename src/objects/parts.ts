import type { Readable } from 'node:stream';
import { ObjectError } from './store.ts';

/** One piece of an upload. */
export interface Part {
  bytes: Buffer;
  /** Where it starts in the object. */
  start: number;
  last: boolean;
}

/**
 * Cuts `body` into parts of `partBytes` bytes, the last one shorter, perhaps empty; holds one part and a chunk at a time.
 * Throws `failed` as soon as the body turns out not to have the announced size.
 */
export async function* parts(
  body: Readable,
  { key, partBytes, sizeBytes }: { key: string; partBytes: number; sizeBytes: number | undefined },
): AsyncGenerator<Part> {
  let chunks: Buffer[] = [];
  let held = 0;
  let start = 0;
  const wrongSize = () =>
    new ObjectError('failed', `${JSON.stringify(key)} was not written: its size is not the announced one.`);
  for await (const chunk of body as AsyncIterable<Uint8Array | string>) {
    const bytes =
      typeof chunk === 'string' ? Buffer.from(chunk) : Buffer.from(chunk.buffer, chunk.byteOffset, chunk.length);
    chunks.push(bytes);
    held += bytes.length;
    if (sizeBytes !== undefined && start + held > sizeBytes) throw wrongSize();
    // Strictly more: the part that turns out to be the last has to be known as such.
    while (held > partBytes) {
      const joined = Buffer.concat(chunks);
      yield { bytes: joined.subarray(0, partBytes), start, last: false };
      start += partBytes;
      held -= partBytes;
      chunks = [joined.subarray(partBytes)];
    }
  }
  if (sizeBytes !== undefined && start + held !== sizeBytes) throw wrongSize();
  yield { bytes: Buffer.concat(chunks), start, last: true };
}

/** The bytes in pieces of 64 KiB, `progress` called as each is asked for: how far an upload has come. */
export function* slices(bytes: Buffer, progress: () => void): Generator<Buffer> {
  for (let at = 0; at < bytes.length; at += 65_536) {
    progress();
    yield bytes.subarray(at, at + 65_536);
  }
}
