import { type BoundedReader, BudgetExceeded, cutShort, UnreadableImage } from './byte-source.ts';

/** Tags that are read (TIFF 6.0 §8; 330 TIFF Supplement 1; 347 Supplement 2; 65420 is Hamamatsu's own, present in every NDPI directory). */
export const tag = {
  imageWidth: 256,
  imageLength: 257,
  bitsPerSample: 258,
  compression: 259,
  imageDescription: 270,
  stripOffsets: 273,
  samplesPerPixel: 277,
  rowsPerStrip: 278,
  stripByteCounts: 279,
  planarConfiguration: 284,
  tileOffsets: 324,
  tileByteCounts: 325,
  subDirectories: 330,
  jpegTables: 347,
  ndpiFormat: 65420,
} as const;

const tags: ReadonlySet<number> = new Set(Object.values(tag));

/** One entry of a directory: where its values lie, and the values alone where they lie in the entry itself. */
interface Entry {
  /** Width of a value in bytes, 0 for a type that the reader does not know. */
  valueBytes: number;
  count: number;
  /** Where the values start in the file. */
  offset: number;
  /** The values, where they are so few that they stand in the place of their offset. */
  inline: Buffer | null;
}

/** One image file directory (TIFF 6.0 §2), of whose entries those with a {@link tag} are kept. */
export interface Directory {
  offset: number;
  entries: Map<number, Entry>;
}

/** How the numbers of a file are written. */
interface Layout {
  littleEndian: boolean;
  /** Width in bytes of the count of entries, and of an offset or count inside an entry. */
  countBytes: 2 | 8;
  wordBytes: 4 | 8;
  /** Width in bytes of the pointer to the next directory: NDPI has 8 in an otherwise classic file. */
  nextBytes: 4 | 8;
}

/** An open TIFF: its layout and the offset of its first directory. */
export interface Tiff extends Layout {
  reader: BoundedReader;
  first: number;
  /** How many entries and values may still be read: a few KiB of them can be read again and again. */
  left: { values: number };
}

/** Bytes of one value by field type (TIFF 6.0 §2, BigTIFF: 16-18); types of one byte are text or opaque. */
const typeBytes: Record<number, number> = {
  1: 1,
  2: 1,
  3: 2,
  4: 4,
  6: 1,
  7: 1,
  8: 2,
  9: 4,
  13: 4,
  16: 8,
  17: 8,
  18: 8,
};

/** 4,096 entries: real directories have fewer than 100, a hostile count may say 2^64. */
const maxEntries = 4096;

/** 64 directories: a pyramid with its label and macro image has fewer than 20; later ones repeat the size of the first. */
const maxDirectories = 64;

/** 512 Ki entries and values of a file, some 40 ms of work: twice the tables of a picture of 90,000 by 90,000 pixels. */
const maxValues = 512 * 1024;

const fourGiB = 2 ** 32;

/** Reads the header of a classic TIFF or a BigTIFF of either byte order; null where the bytes are not of a TIFF. */
export async function openTiff(reader: BoundedReader): Promise<Tiff | null> {
  if (reader.sizeBytes < 4) return null;
  const head = await reader.bytes(0, 4);
  const order = head.toString('latin1', 0, 2);
  if (order !== 'II' && order !== 'MM') return null;
  const littleEndian = order === 'II';
  const version = unsigned(head, 2, 2, littleEndian);
  const bounded = { reader, left: { values: maxValues } };
  if (version === 43) {
    const big: Layout = { littleEndian, countBytes: 8, wordBytes: 8, nextBytes: 8 };
    return { ...big, ...bounded, first: unsigned(await reader.bytes(8, 8), 0, 8, littleEndian) };
  }
  if (version !== 42) return null;
  const classic: Layout = { littleEndian, countBytes: 2, wordBytes: 4, nextBytes: 4 };
  if (littleEndian && reader.sizeBytes > fourGiB) {
    const ndpi: Tiff = { ...classic, ...bounded, nextBytes: 8, first: unsigned(await reader.bytes(4, 8), 0, 8, true) };
    if (await isNdpi(ndpi)) return ndpi;
  }
  return { ...classic, ...bounded, first: unsigned(await reader.bytes(4, 4), 0, 4, littleEndian) };
}

/** Whether the 64-bit offset of a file above 4 GiB leads to a directory of NDPI; in any other it is a chance number. */
async function isNdpi(tiff: Tiff): Promise<boolean> {
  try {
    return (await readDirectory(tiff, tiff.first)).directory.entries.has(tag.ndpiFormat);
  } catch (error) {
    if (error instanceof UnreadableImage) return false;
    throw error;
  }
}

/**
 * The directories of the file's main chain, in order, at most 64 of them; a chain that loops, or leads past the end of
 * the file, is refused.
 */
export async function readDirectories(tiff: Tiff): Promise<Directory[]> {
  const { sizeBytes } = tiff.reader;
  const directories: Directory[] = [];
  const seen = new Set<number>();
  for (let offset = tiff.first; offset !== 0; ) {
    if (offset >= sizeBytes) throw cutShort(offset + tiff.countBytes, sizeBytes);
    if (directories.length === maxDirectories) break;
    if (seen.has(offset)) throw new UnreadableImage('The image is damaged: its TIFF directories form a loop.');
    seen.add(offset);
    const { directory, next } = await readDirectory(tiff, offset);
    directories.push(directory);
    offset = next;
  }
  return directories;
}

/** Reads the one directory that starts at `offset`. */
export async function readDirectory(tiff: Tiff, offset: number): Promise<{ directory: Directory; next: number }> {
  const { reader, littleEndian, countBytes, wordBytes, nextBytes } = tiff;
  const count = unsigned(await reader.bytes(offset, countBytes), 0, countBytes, littleEndian);
  if (count === 0 || count > maxEntries) {
    throw new UnreadableImage(`The image is damaged: a TIFF directory cannot have ${count} entries.`);
  }
  spend(tiff, count);
  const entryBytes = 4 + 2 * wordBytes;
  const table = await reader.bytes(offset + countBytes, count * entryBytes + nextBytes);
  const places = new Map<number, number>();
  for (let at = 0; at < count * entryBytes; at += entryBytes) {
    const id = unsigned(table, at, 2, littleEndian);
    if (tags.has(id)) places.set(id, at);
  }
  const entries = new Map<number, Entry>();
  for (const [id, at] of places) {
    const valueBytes = typeBytes[unsigned(table, at + 2, 2, littleEndian)] ?? 0;
    const values = unsigned(table, at + 4, wordBytes, littleEndian);
    const place = at + 4 + wordBytes;
    const isInline = values * valueBytes <= wordBytes;
    entries.set(id, {
      valueBytes,
      count: values,
      offset: isInline ? offset + countBytes + place : unsigned(table, place, wordBytes, littleEndian),
      // A copy, as the table is a view of a larger window.
      inline: isInline ? Buffer.from(table.subarray(place, place + values * valueBytes)) : null,
    });
  }
  return { directory: { offset, entries }, next: unsigned(table, count * entryBytes, nextBytes, littleEndian) };
}

/** The first value of a numeric tag; undefined where the directory does not have it. */
export async function firstNumber(tiff: Tiff, directory: Directory, wanted: number): Promise<number | undefined> {
  for await (const [value] of numbers(tiff, directory, wanted, { most: 1 })) return value;
  return undefined;
}

/** Refuses a file that ends before the values of a tag do. */
export function requireValues({ reader }: Tiff, directory: Directory, wanted: number): void {
  const { offset, count, valueBytes } = directory.entries.get(wanted) ?? { offset: 0, count: 0, valueBytes: 0 };
  const endOffset = offset + count * valueBytes;
  if (endOffset > reader.sizeBytes) throw cutShort(endOffset, reader.sizeBytes);
}

/** 256 KiB: a table of 32,000 to 64,000 tiles, as many as most slides have, arrives in one request of a cloud store. */
const blockBytes = 256 * 1024;

/** At most `most` values of a numeric tag in blocks, from the value `from` on; none where the directory does not have it. */
export async function* numbers(
  tiff: Tiff,
  directory: Directory,
  wanted: number,
  { from = 0, most = Infinity } = {},
): AsyncGenerator<number[]> {
  const entry = directory.entries.get(wanted);
  if (!entry || entry.valueBytes === 0) return;
  const { valueBytes, count, offset, inline } = entry;
  requireValues(tiff, directory, wanted);
  const perBlock = blockBytes / valueBytes;
  const end = Math.min(count, from + most);
  for (let done = from; done < end; done += perBlock) {
    const values = Math.min(perBlock, end - done);
    spend(tiff, values);
    const [start, length] = [done * valueBytes, values * valueBytes];
    const block = inline ? inline.subarray(start, start + length) : await tiff.reader.bytes(offset + start, length);
    yield Array.from({ length: values }, (_, i) => unsigned(block, i * valueBytes, valueBytes, tiff.littleEndian));
  }
}

function spend({ left }: Tiff, values: number): void {
  left.values -= values;
  if (left.values < 0) throw new BudgetExceeded('The image has a header of improbable size.');
}

/** The first `maxBytes` of a text tag, up to its NUL; empty where the directory does not have it. */
export async function text(tiff: Tiff, directory: Directory, wanted: number, maxBytes: number): Promise<string> {
  const entry = directory.entries.get(wanted);
  if (entry?.valueBytes !== 1) return '';
  const bytes = entry.inline ?? (await tiff.reader.bytes(entry.offset, Math.min(entry.count, maxBytes)));
  const nul = bytes.indexOf(0);
  return bytes.toString('utf8', 0, nul < 0 ? bytes.length : nul);
}

/** An unsigned number of 1 to 8 bytes; above 2^53 it is inexact, and then far past the end of any file. */
function unsigned(bytes: Buffer, at: number, width: number, littleEndian: boolean): number {
  if (width === 8) return Number(littleEndian ? bytes.readBigUInt64LE(at) : bytes.readBigUInt64BE(at));
  return littleEndian ? bytes.readUIntLE(at, width) : bytes.readUIntBE(at, width);
}
