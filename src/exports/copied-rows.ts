import { int32 } from './xlsx/binary.ts';

/** Signature, flags and length of the extension: how binary COPY begins. */
const HEADER_BYTES = 19;

/** Rows of a binary COPY that lie one behind the other. */
export interface CopiedRows {
  bytes: Buffer;
  /** Where the first row begins, at its number of fields. */
  start: number;
  /** Where the last row ends. */
  end: number;
  count: number;
}

/**
 * Cuts the output of `COPY … TO STDOUT (FORMAT binary)`, whose chunks end anywhere, between rows. A row that is longer
 * than a chunk is put together once, not with every chunk that comes.
 */
export async function* copiedRows(chunks: AsyncIterable<Buffer>): AsyncGenerator<CopiedRows> {
  let pieces: Buffer[] = [];
  let held = 0;
  let needed = HEADER_BYTES;
  let isStarted = false;
  for await (const chunk of chunks) {
    pieces.push(chunk);
    held += chunk.length;
    if (held < needed) continue;
    const bytes = pieces.length === 1 ? chunk : Buffer.concat(pieces);
    const start = isStarted ? 0 : HEADER_BYTES + bytes.readInt32BE(HEADER_BYTES - 4);
    isStarted = true;
    const whole = wholeRows(bytes, start);
    if (whole.count > 0) yield { bytes, start, end: whole.end, count: whole.count };
    pieces = [bytes.subarray(whole.end)];
    held = bytes.length - whole.end;
    needed = whole.needed;
  }
  // The trailer is −1 as a number of fields.
  if (held !== 2) throw new Error('The copied rows end before their trailer');
}

/** The rows that are there whole; `needed` are the bytes that the next one has at least. */
function wholeRows(bytes: Buffer, start: number): { end: number; count: number; needed: number } {
  let end = start;
  let count = 0;
  for (;;) {
    let at = end + 2;
    if (at > bytes.length) return { end, count, needed: 2 };
    const fields = bytes.readInt16BE(end);
    if (fields === -1) return { end, count, needed: 2 };
    for (let i = 0; i < fields; i++) {
      at += 4;
      if (at > bytes.length) return { end, count, needed: at - end };
      const length = int32(bytes, at - 4);
      if (length > 0) at += length;
      if (at > bytes.length) return { end, count, needed: at - end };
    }
    end = at;
    count += 1;
  }
}
