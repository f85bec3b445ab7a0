import { BudgetExceeded, cutShort, UnreadableImage } from './byte-source.ts';
import {
  type Directory,
  firstNumber,
  numbers,
  readDirectory,
  requireValues,
  type Tiff,
  tag,
} from './tiff-directory.ts';

/** 128 Ki strips or tiles of a directory, its last ones: 1 or 2 MiB of tables, those of 90,000 by 90,000 pixels. */
const maxChecked = 128 * 1024;

/** 64 sub-directories of the file: each may be a request of a cloud store. */
const maxSubDirectories = 64;

/** Compressions (TIFF 6.0 §3, §22) whose byte counts mean less than they say. */
const compression = { none: 1, oldJpeg: 6 };

/**
 * Refuses a file whose strips, tiles or JPEG tables reach past its end, as far as the budgets of bytes and values go: of a huge
 * table the end alone is read, which is where what was written last, and so is missing first, has its place. The
 * offsets of an NDPI above 4 GiB lack their upper half, so that its pixels are taken to lie further in front.
 */
export async function requirePixels(tiff: Tiff, directories: Directory[]): Promise<void> {
  try {
    for (const directory of directories) await requireWithin(tiff, directory);
    for await (const directory of subDirectories(tiff, directories)) await requireWithin(tiff, directory);
  } catch (error) {
    if (!(error instanceof BudgetExceeded)) throw error;
  }
}

/** The reduced levels that OME-TIFF keeps beside the main chain. */
async function* subDirectories(tiff: Tiff, directories: Directory[]): AsyncGenerator<Directory> {
  let left = maxSubDirectories;
  for (const directory of directories) {
    for await (const offsets of numbers(tiff, directory, tag.subDirectories, { most: left })) {
      for (const offset of offsets) {
        left--;
        if (offset !== 0) yield (await readDirectory(tiff, offset)).directory;
      }
    }
  }
}

async function requireWithin(tiff: Tiff, directory: Directory): Promise<void> {
  const compressed = (await firstNumber(tiff, directory, tag.compression)) ?? compression.none;
  // Nobody believes the tables of old-style JPEG, which its writers never agreed upon.
  if (compressed === compression.oldJpeg) return;
  requireValues(tiff, directory, tag.jpegTables);
  const stripBytes = compressed === compression.none ? await plainStripBytes(tiff, directory) : () => Infinity;
  await requireParts(tiff, directory, tag.stripOffsets, tag.stripByteCounts, stripBytes);
  await requireParts(tiff, directory, tag.tileOffsets, tag.tileByteCounts, () => Infinity);
}

/** `mostBytes` tells of a part by its place in the table how many bytes of it are read at most. */
async function requireParts(
  tiff: Tiff,
  directory: Directory,
  offsetsTag: number,
  countsTag: number,
  mostBytes: (index: number) => number,
): Promise<void> {
  const { sizeBytes } = tiff.reader;
  for (const wanted of [offsetsTag, countsTag]) {
    if (directory.entries.get(wanted)?.valueBytes === 1)
      throw new UnreadableImage('The image is damaged: the places of its pixels are of a type that is no number.');
  }
  let index = Math.max(0, (directory.entries.get(offsetsTag)?.count ?? 0) - maxChecked);
  const counts = numbers(tiff, directory, countsTag, { from: index });
  let sizes: number[] = [];
  let isOver: boolean | undefined = false;
  for await (const offsets of numbers(tiff, directory, offsetsTag, { from: index })) {
    for (const offset of offsets) {
      if (sizes.length === 0 && !isOver) {
        const next = await counts.next();
        isOver = next.done;
        sizes = (next.value ?? []).reverse();
      }
      const size = sizes.pop();
      const end = offset + Math.min(size ?? 0, mostBytes(index++));
      // A part of no bytes is one that the scanner left out, whatever its offset.
      if (size !== 0 && end > sizeBytes) throw cutShort(end, sizeBytes);
    }
  }
}

/**
 * Bytes of the pixels in each strip of an uncompressed picture. Some writers count more for the only strip, or for a
 * last one of fewer rows than the others; readers go by the pixels.
 */
async function plainStripBytes(tiff: Tiff, directory: Directory): Promise<(index: number) => number> {
  const first = async (wanted: number) => (await firstNumber(tiff, directory, wanted)) ?? 1;
  const height = await first(tag.imageLength);
  // Without the tag, all rows are in one strip (TIFF 6.0 §8).
  const rows = Math.min((await firstNumber(tiff, directory, tag.rowsPerStrip)) || height, height);
  const samples = (await first(tag.planarConfiguration)) === 2 ? 1 : await first(tag.samplesPerPixel);
  const rowBytes = Math.ceil(((await first(tag.imageWidth)) * (await first(tag.bitsPerSample)) * samples) / 8);
  const stripsPerPlane = Math.ceil(height / rows);
  return (index) => rowBytes * Math.min(rows, height - (index % stripsPerPlane) * rows);
}
