import { UnreadableImage } from './byte-source.ts';
import { type Directory, firstNumber, readDirectories, type Tiff, tag, text } from './tiff-directory.ts';
import { requirePixels } from './tiff-pixels.ts';

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
  await requirePixels(tiff, directories);
  return { format, ...largest };
}

/** NDPI by Hamamatsu's tag, SVS by Aperio's description, OME-TIFF by the root element of OME-XML. */
async function flavour(tiff: Tiff, first: Directory): Promise<TiffFormat> {
  if (first.entries.has(tag.ndpiFormat)) return 'NDPI';
  const description = await text(tiff, first, tag.imageDescription, descriptionBytes);
  if (description.startsWith('Aperio')) return 'SVS';
  return /<(?:\w+:)?OME[\s>]/.test(description) ? 'OME-TIFF' : 'TIFF';
}
