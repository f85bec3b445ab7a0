import { type BoundedReader, cutShort, UnreadableImage } from './byte-source.ts';

const signature = Buffer.from('\x89PNG\r\n\x1a\n', 'latin1');

/** Whether the first bytes are PNG's signature (PNG §5.2). */
export const isPng = (head: Buffer): boolean => head.subarray(0, 8).equals(signature);

/** Width and height from the IHDR chunk, which is always the first (PNG §11.2.1). */
export async function readPngSize(reader: BoundedReader): Promise<{ width: number; height: number }> {
  const header = await reader.bytes(16, 8);
  return { width: header.readUInt32BE(0), height: header.readUInt32BE(4) };
}

/** Length and type of IEND, the last chunk, which is always empty (PNG §11.2.5). */
const end = Buffer.from('\0\0\0\0IEND', 'latin1');

/** 128 KiB: encoders that split the pixels do so into chunks of 8 to 64 KiB, one of which begins in it. */
const tailBytes = 128 * 1024;

/** 32 chunks, each of which may be a request of a cloud store. */
const maxChunks = 32;

/** Bytes of a chunk beside its data: length, type and checksum (PNG §5.3). */
const chunkBytes = 12;

/**
 * Refuses a file that ends before its last chunk. What comes after that is of no concern, and in doubt a file passes:
 * one of many chunks that has none of them near its end.
 */
export async function requirePngEnd(reader: BoundedReader): Promise<void> {
  const { sizeBytes } = reader;
  const tailAt = Math.max(0, sizeBytes - tailBytes);
  const tail = await reader.bytes(tailAt, sizeBytes - tailAt);
  if (tail.includes(end)) return;
  for (let at = signature.length, chunks = 0; chunks < maxChunks; chunks++) {
    const header = await reader.bytes(at, 8);
    const type = header.toString('latin1', 4);
    if (type === 'IEND') return;
    if (!/^[A-Za-z]{4}$/.test(type))
      throw new UnreadableImage('The image is damaged: the PNG file has a broken chunk.');
    at += chunkBytes + header.readUInt32BE(0);
    if (at > sizeBytes) throw cutShort(at, sizeBytes);
  }
  const lastAt = tail.lastIndexOf('IDAT') - 4;
  if (lastAt < 0) return;
  const neededBytes = tailAt + lastAt + chunkBytes + tail.readUInt32BE(lastAt) + chunkBytes;
  if (neededBytes > sizeBytes) throw cutShort(neededBytes, sizeBytes);
}
