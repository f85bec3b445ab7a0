import { ObjectError } from './store.ts';
import { toBytes } from './stream.ts';

/** One piece of an upload. */
export interface Part {
  bytes: Buffer;
  /** Where it starts in the object. */
  start: number;
  last: boolean;
}

/**
 * Cuts `body` into parts of `partBytes` bytes, the last one shorter, perhaps empty; a small body gets a small buffer.
 * Throws `failed` where the body turns out not to have the announced size. A part is the caller's until the next is asked
 * for, unless `buffer` gives another one for each.
 */
export async function* parts(
  body: AsyncIterable<Uint8Array | string>,
  { key, partBytes, sizeBytes, buffer }: PartOptions,
): AsyncGenerator<Part> {
  let part: Buffer = Buffer.allocUnsafeSlow(Math.min(partBytes, sizeBytes ?? LEAST_BUFFER_BYTES));
  let used = 0;
  let start = 0;
  const wrongSize = () =>
    new ObjectError('failed', `${JSON.stringify(key)} was not written: its size is not the announced one.`);
  for await (const piece of body) {
    const chunk = toBytes(piece);
    if (sizeBytes !== undefined && start + used + chunk.length > sizeBytes) throw wrongSize();
    for (let offset = 0; offset < chunk.length; ) {
      // Not as soon as it is full: the part that turns out to be the last has to be known as such.
      if (used === partBytes) {
        yield { bytes: part, start, last: false };
        start += partBytes;
        part = buffer?.() ?? part;
        used = 0;
      }
      if (used === part.length) part = grown(part, partBytes);
      const length = Math.min(chunk.length - offset, part.length - used);
      part.set(chunk.subarray(offset, offset + length), used);
      used += length;
      offset += length;
    }
  }
  if (sizeBytes !== undefined && start + used !== sizeBytes) throw wrongSize();
  yield { bytes: part.subarray(0, used), start, last: true };
}

interface PartOptions {
  /** For messages. */
  key: string;
  partBytes: number;
  /** Of the whole body, where it is known. */
  sizeBytes: number | undefined;
  /** Memory of `partBytes` for the next part. */
  buffer?: () => Buffer;
}

/** 64 KiB: of a body whose size nobody told, until it turns out to be larger. */
const LEAST_BUFFER_BYTES = 64 * 1024;

function grown(part: Buffer, mostBytes: number): Buffer {
  const larger = Buffer.allocUnsafeSlow(Math.min(mostBytes, Math.max(part.length * 4, LEAST_BUFFER_BYTES)));
  larger.set(part);
  return larger;
}

/** The bytes in pieces of 64 KiB, `progress` called as each is asked for: how far an upload has come. */
export function* slices(bytes: Buffer, progress: () => void): Generator<Buffer> {
  for (let at = 0; at < bytes.length; at += 65_536) {
    progress();
    yield bytes.subarray(at, at + 65_536);
  }
}
