import { BudgetExceeded, truncated, UnreadableImage } from './byte-source.ts';
import { type Directory, firstNumber, numbers, readDirectories, type Tiff, tag, text } from './tiff-directory.ts';

/** The flavours of TIFF that are told apart. */
export type TiffFormat = 'SVS' | 'NDPI' | 'OME-TIFF' | 'TIFF';

/** 64 KiB: OME-XML opens with its root element, after a comment and a declaration at most. */
const descriptionBytes = 64 * 1024;

/** Flavour of a TIFF, and size in pixels of its largest picture: in a slide that is the full-resolution one. */
export async function readTiff(tiff: Tiff): Promise<{ format: TiffFormat; width: number; height: number }> {
  const directories = await readDirectories(tiff);
  const [first] = directories;
  if (!first) throw new UnreadableImage('The TIFF file holds no image.');
  const format = await flavour(tiff, first);
  let largest = { width: 0, height: 0 };
  for (const directory of directories) {
    const width = (await firstNumber(tiff, directory, tag.imageWidth)) ?? 0;
    const height = (await firstNumber(tiff, directory, tag.imageLength)) ?? 0;
    if (width * height > largest.width * largest.height) largest = { width, height };
  }
  if (largest.width * largest.height === 0) throw new UnreadableImage('The TIFF file holds no image.');
  if (format !== 'NDPI') await requirePixels(tiff, directories);
  return { format, ...largest };
}

/** NDPI by Hamamatsu's tag, SVS by Aperio's description, OME-TIFF by the root element of OME-XML. */
async function flavour(tiff: Tiff, first: Directory): Promise<TiffFormat> {
  if (first.entries.has(tag.ndpiFormat)) return 'NDPI';
  const description = await text(tiff, first, tag.imageDescription, descriptionBytes);
  if (description.startsWith('Aperio')) return 'SVS';
  return /<(?:\w+:)?OME[\s>]/.test(description) ? 'OME-TIFF' : 'TIFF';
}

/**
 * Refuses a file whose strips or tiles reach past its end. As far as the byte budget goes: the tables of a huge slide
 * are checked from the first directory on. NDPI needs no check: each directory stands after its pixels, and the strip
 * offsets of a large one lack their upper half.
 */
async function requirePixels(tiff: Tiff, directories: Directory[]): Promise<void> {
  try {
    for (const directory of directories) {
      await requireWithin(tiff, directory, tag.stripOffsets, tag.stripByteCounts);
      await requireWithin(tiff, directory, tag.tileOffsets, tag.tileByteCounts);
    }
  } catch (error) {
    if (!(error instanceof BudgetExceeded)) throw error;
  }
}

async function requireWithin(tiff: Tiff, directory: Directory, offsetsTag: number, countsTag: number): Promise<void> {
  const counts = numbers(tiff, directory, countsTag);
  let sizes: number[] = [];
  for await (const offsets of numbers(tiff, directory, offsetsTag)) {
    for (const offset of offsets) {
      if (sizes.length === 0) sizes = ((await counts.next()).value ?? []).reverse();
      const end = offset + (sizes.pop() ?? 0);
      if (end > tiff.reader.sizeBytes) throw new UnreadableImage(truncated(end, tiff.reader.sizeBytes));
    }
  }
}
