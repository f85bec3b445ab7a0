import { type BoundedReader, UnreadableImage } from './byte-source.ts';

/** Whether the first bytes are a start of image and another marker (ITU-T T.81 §B.1.1.3). */
export const isJpeg = (head: Buffer): boolean => head[0] === 0xff && head[1] === 0xd8 && head[2] === 0xff;

/** 1,000 segments before the frame header: metadata of real files splits into a few dozen. */
const maxSegments = 1000;

/** SOF0-SOF15 without DHT, JPG and DAC, which lie among them (ITU-T T.81 table B.1). */
const isFrameHeader = (marker: number): boolean =>
  marker >= 0xc0 && marker <= 0xcf && marker !== 0xc4 && marker !== 0xc8 && marker !== 0xcc;

const marker = { startOfScan: 0xda, endOfImage: 0xd9, fill: 0xff } as const;

/**
 * Width and height from the frame header; height is null where the file leaves it to a later DNL segment. Refuses a
 * file that ends before its picture does.
 */
export async function readJpegSize(reader: BoundedReader): Promise<{ width: number; height: number | null }> {
  let size: { width: number; height: number | null } | null = null;
  let at = 2;
  for (let segments = 0; segments < maxSegments; segments++) {
    const [prefix, code] = await reader.bytes(at, 2);
    if (prefix !== 0xff || code === undefined || code === marker.endOfImage) break;
    if (code === marker.fill) {
      at += 1; // fill byte (§B.1.1.2)
      continue;
    }
    if (isFrameHeader(code)) {
      const header = await reader.bytes(at + 5, 4);
      size = { width: header.readUInt16BE(2), height: header.readUInt16BE(0) || null };
    }
    at += 2 + (await reader.bytes(at + 2, 2)).readUInt16BE(0);
    if (code === marker.startOfScan) {
      if (size) await requireEnd(reader, at);
      break;
    }
  }
  if (size) return size;
  throw new UnreadableImage('The image is damaged: the JPEG file has no frame header.');
}

/** 64 KiB: in so much of a scan, some 250 bytes are stuffed. */
const tailBytes = 64 * 1024;

/** 8: in other bytes, as many markers in a row that may stand in a scan are as rare as a broken checksum of 32 bits. */
const fewestInScan = 8;

/** 1 in 32: of a scan some 1 in 250 bytes is stuffed; opaque pixels (00 00 00 FF), masks and samples have far more. */
const mostStuffed = 1 / 32;

/**
 * Refuses a file without an end of image after the start of its scan, as far as its tail tells: a file that ends with
 * bytes of a scan (§F.1.2.3: each FF is followed by a 00 or is a restart) was cut; any other tail may be something that
 * was put behind the picture.
 */
async function requireEnd(reader: BoundedReader, scanAt: number): Promise<void> {
  const { sizeBytes } = reader;
  const from = Math.max(scanAt, sizeBytes - tailBytes);
  const tail = from < sizeBytes ? await reader.bytes(from, sizeBytes - from) : Buffer.alloc(0);
  // Since the last marker that stands in no scan.
  let seen = { from: 0, inScan: 0, stuffed: 0 };
  for (let at = tail.indexOf(0xff); at >= 0 && at + 1 < tail.length; at = tail.indexOf(0xff, at + 1)) {
    const code = tail[at + 1] as number;
    if (code === marker.endOfImage) return;
    if (code === 0) seen.stuffed++;
    if (code === 0 || (code >= 0xd0 && code <= 0xd7)) seen.inScan++;
    else if (code !== marker.fill) seen = { from: at, inScan: 0, stuffed: 0 };
  }
  const isScan = seen.inScan >= fewestInScan && seen.stuffed < (tail.length - seen.from) * mostStuffed;
  if (from === scanAt || isScan) {
    throw new UnreadableImage('The file is cut short: the JPEG picture has no end.');
  }
}
