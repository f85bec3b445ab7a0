import { open } from 'node:fs/promises';
import sharp, { type Sharp, type SharpOptions } from 'sharp';
import {
  type BoundedReader,
  type ByteSource,
  boundedReader,
  bufferSource,
  fileSource,
  UnreadableImage,
} from './byte-source.ts';
import {
  type Directory,
  firstNumber,
  numbers,
  openTiff,
  readDirectories,
  readDirectory,
  tag,
} from './tiff-directory.ts';

// An image is seldom read twice: a cache would hold its memory, and its file open after it was deleted.
sharp.cache(false);

/** 2^27 pixels: 400 MB where one strip holds the whole image; a page of a pyramid is far below. */
const maxPixels = 2 ** 27;
/** 30 s: a page of that size takes a few; a bomb inside a compressed tile is cut off. */
const timeoutS = 30;
/** 4 MiB: the directories alone, without their tables. */
const budgetBytes = 4 * 1024 * 1024;

/** A page of a TIFF in the words of sharp: `subifd` -1 is the page itself. */
interface Page {
  page: number;
  subifd: number;
  width: number;
  height: number;
}

/**
 * A JPEG of the image, its longer edge at most `maxEdge` pixels, from a local file or from bytes. Of a pyramid it
 * reads the smallest level that suffices, so that memory stays bounded. Rejects with {@link UnreadableImage} where the
 * image cannot be shown: DICOM, JPEG 2000 tiles, a damaged file, a huge image without smaller levels.
 */
export async function makeThumbnail(image: string | Buffer, { maxEdge }: { maxEdge: number }): Promise<Buffer> {
  const page = await suitablePage(image, maxEdge);
  try {
    const options: SharpOptions = { failOn: 'error', limitInputPixels: maxPixels, sequentialRead: true };
    if (page) Object.assign(options, { page: page.page, tiff: { subifd: page.subifd } });
    const picture = sharp(image, options).timeout({ seconds: timeoutS });
    const { depth } = await picture.metadata();
    picture
      .autoOrient()
      .resize(maxEdge, maxEdge, { fit: 'inside', withoutEnlargement: true })
      .flatten({ background: 'white' });
    return await (depth === 'uchar' ? picture : await stretched(picture)).toColourspace('srgb').jpeg().toBuffer();
  } catch (cause) {
    throw new UnreadableImage('No preview can be made of the image.', { cause });
  }
}

/** Samples of more than 8 bits seldom use their whole range: unless stretched to it, fluorescence would be black. */
async function stretched(picture: Sharp): Promise<Sharp> {
  const { data, info } = await picture
    .toColourspace('rgb16')
    .raw({ depth: 'ushort' })
    .toBuffer({ resolveWithObject: true });
  const samples = new Uint16Array(data.buffer, data.byteOffset, data.length / 2);
  const darkest = samples.reduce((least, sample) => Math.min(least, sample), 0xffff);
  const brightest = samples.reduce((most, sample) => Math.max(most, sample), 0);
  const scale = 255 / Math.max(1, brightest - darkest);
  const stretchedSamples = Uint8Array.from(samples, (sample) => (sample - darkest) * scale);
  return sharp(stretchedSamples, { raw: { width: info.width, height: info.height, channels: info.channels } });
}

/** The smallest page of a TIFF's pyramid with an edge of at least `maxEdge` pixels; null for any other format. */
async function suitablePage(image: string | Buffer, maxEdge: number): Promise<Page | null> {
  if (typeof image !== 'string') return choosePage(bufferSource(image), maxEdge);
  const file = await open(image);
  try {
    return await choosePage(await fileSource(file), maxEdge);
  } finally {
    await file.close();
  }
}

async function choosePage(source: ByteSource, maxEdge: number): Promise<Page | null> {
  const pages = await tiffPages(boundedReader(source, budgetBytes));
  const full = pages.reduce<Page | null>((best, page) => (best && area(best) >= area(page) ? best : page), null);
  if (!full) return null;
  // Label and macro images share the file with the pyramid, but not its proportions; levels round to whole pixels.
  const isLevel = (page: Page) => Math.abs((page.width * full.height) / (page.height * full.width) - 1) < 0.02;
  const suits = (page: Page) => Math.max(page.width, page.height) >= maxEdge && isLevel(page);
  return pages.reduce((best, page) => (suits(page) && area(page) < area(best) ? page : best), full);
}

const area = (page: Page): number => page.width * page.height;

/** Every page with a size: the main chain, and the reduced levels that OME-TIFF keeps in sub-directories. */
async function tiffPages(reader: BoundedReader): Promise<Page[]> {
  const tiff = await openTiff(reader);
  if (!tiff) return [];
  const pages: Page[] = [];
  const add = async (directory: Directory, page: number, subifd: number) => {
    const width = (await firstNumber(tiff, directory, tag.imageWidth)) ?? 0;
    const height = (await firstNumber(tiff, directory, tag.imageLength)) ?? 0;
    if (width > 0 && height > 0) pages.push({ page, subifd, width, height });
  };
  for (const [page, directory] of (await readDirectories(tiff)).entries()) {
    await add(directory, page, -1);
    // 16: a pyramid that halves each level has fewer; every further one would be read for nothing.
    for await (const offsets of numbers(tiff, directory, tag.subDirectories, { most: 16 })) {
      for (const [subifd, offset] of offsets.entries()) {
        await add((await readDirectory(tiff, offset)).directory, page, subifd);
      }
    }
  }
  return pages;
}
