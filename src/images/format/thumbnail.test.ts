import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import sharp from 'sharp';
import { describe, expect, test } from 'vitest';
import { dicom, tiff } from '../../../test/written-images.ts';
import { UnreadableImage } from './byte-source.ts';
import { makeThumbnail } from './thumbnail.ts';

const slide = '../shared/data/wsi/cmu_small_region.svs';

describe('a thumbnail', () => {
  test('of a slide in a local file is a JPEG within the edge asked for', async () => {
    const thumbnail = await sharp(await makeThumbnail(slide, { maxEdge: 512 })).metadata();
    expect(thumbnail).toMatchObject({ format: 'jpeg', height: 512, width: 383 });
  });

  test('of bytes is the same as of the file that holds them', async () => {
    const bytes = await makeThumbnail(await readFile(slide), { maxEdge: 200 });
    expect(bytes.equals(await makeThumbnail(slide, { maxEdge: 200 }))).toBe(true);
  });

  test('is made from the smallest level that suffices, never from label or macro image', async () => {
    const pages = [
      { color: 'red', width: 1200, height: 800 },
      { color: 'lime', width: 600, height: 400 },
      { color: 'blue', width: 310, height: 310 },
    ];
    const pyramid = await joinPages(pages);
    expect(await colorOf(await makeThumbnail(pyramid, { maxEdge: 300 }))).toBe('green');
    expect(await colorOf(await makeThumbnail(pyramid, { maxEdge: 900 }))).toBe('red');
  });

  test('finds the smaller levels where OME-TIFF keeps them, in sub-directories', async () => {
    const pyramid = await joinPages(
      [
        { color: 'red', width: 1200, height: 800 },
        { color: 'lime', width: 600, height: 400 },
      ],
      { asSubDirectories: true },
    );
    expect((await sharp(pyramid).metadata()).pages).toBe(1);
    expect(await colorOf(await makeThumbnail(pyramid, { maxEdge: 300 }))).toBe('green');
    expect(await colorOf(await makeThumbnail(pyramid, { maxEdge: 900 }))).toBe('red');
  });

  test('never enlarges', async () => {
    const small = await sharp({ create: { width: 40, height: 30, channels: 3, background: 'red' } })
      .png()
      .toBuffer();
    expect(await sharp(await makeThumbnail(small, { maxEdge: 256 })).metadata()).toMatchObject({
      width: 40,
      height: 30,
    });
  });

  test('of deep samples uses the whole range of brightness', async () => {
    const ramp = Uint16Array.from({ length: 64 * 64 }, (_, i) => i % 64);
    const deep = sharp(ramp, { raw: { width: 64, height: 64, channels: 1 } }).toColourspace('grey16');
    const { channels } = await sharp(await makeThumbnail(await deep.png().toBuffer(), { maxEdge: 64 })).stats();
    expect((channels[0]?.max ?? 0) - (channels[0]?.min ?? 0)).toBeGreaterThan(200);
  });

  test('turns a photograph upright and shows transparency as white', async () => {
    const clear = {
      create: { width: 40, height: 20, channels: 4 as const, background: { r: 0, g: 0, b: 0, alpha: 0 } },
    };
    const turned = await sharp(clear).withMetadata({ orientation: 6 }).png().toBuffer();
    const thumbnail = sharp(await makeThumbnail(turned, { maxEdge: 40 }));
    expect(await thumbnail.metadata()).toMatchObject({ width: 20, height: 40 });
    expect((await thumbnail.stats()).channels.map(({ mean }) => Math.round(mean))).toEqual([255, 255, 255]);
  });

  test.each([
    ['DICOM', dicom('explicit', [[0x0028_0010, 'US', 4]])],
    ['a damaged TIFF', tiff({ directories: [{ width: 40, height: 30, strip: { offset: 8, byteCount: 9 } }] })],
    ['text', Buffer.from('no image at all')],
    ['nothing', Buffer.alloc(0)],
    ['more pixels than memory should hold', tiff({ directories: [{ width: 2 ** 20, height: 2 ** 20 }] })],
  ])('cannot be made of %s', async (_, bytes) => {
    await expect(makeThumbnail(bytes, { maxEdge: 64 })).rejects.toBeInstanceOf(UnreadableImage);
  });

  test('leaves no file open and can be made of a file with another content under the same path', async () => {
    const directory = await mkdtemp(join(tmpdir(), 'sds-thumbnail-'));
    const path = join(directory, 'image.png');
    for (const background of ['red', 'blue']) {
      await writeFile(
        path,
        await sharp({ create: { width: 9, height: 9, channels: 3, background } })
          .png()
          .toBuffer(),
      );
      expect(await colorOf(await makeThumbnail(path, { maxEdge: 9 }))).toBe(background);
    }
    await rm(directory, { recursive: true });
  });
});

/** The dominant channel of a picture of one colour. */
async function colorOf(jpeg: Buffer): Promise<string | undefined> {
  const means = (await sharp(jpeg).stats()).channels.map(({ mean }) => mean);
  return ['red', 'green', 'blue'][means.indexOf(Math.max(...means))];
}

/** One TIFF of pages of different sizes: the directories of single-page files, chained and moved behind each other. */
async function joinPages(
  pages: { color: string; width: number; height: number }[],
  { asSubDirectories = false } = {},
): Promise<Buffer> {
  const directories: number[] = [];
  let joined = Buffer.alloc(0);
  let pointer = 4;
  for (const { color, width, height } of pages) {
    const create = { width, height, channels: 3 as const, background: color };
    const page = await sharp({ create }).tiff({ compression: 'none' }).toBuffer();
    const base = joined.length;
    joined = Buffer.concat([joined, page]);
    const directory = base + page.readUInt32LE(4);
    if (!asSubDirectories || base === 0) joined.writeUInt32LE(directory, pointer);
    directories.push(directory);
    const entries = joined.readUInt16LE(directory);
    for (let at = directory + 2; at < directory + 2 + entries * 12; at += 12) relocate(joined, at, base);
    pointer = directory + 2 + entries * 12;
  }
  return asSubDirectories ? withSubDirectories(joined, directories) : joined;
}

/** The first directory again at the end of the file, with a tag (TIFF Supplement 1) that leads to the others. */
function withSubDirectories(bytes: Buffer, [first = 0, ...others]: number[]): Buffer {
  const count = bytes.readUInt16LE(first);
  const entries = Array.from({ length: count }, (_, i) => bytes.subarray(first + 2 + i * 12, first + 14 + i * 12));
  const offsets = Buffer.alloc(4 * Math.max(others.length, 1));
  others.forEach((offset, i) => {
    offsets.writeUInt32LE(offset, 4 * i);
  });
  const entry = Buffer.alloc(12);
  entry.writeUInt16LE(330);
  entry.writeUInt16LE(4, 2);
  entry.writeUInt32LE(others.length, 4);
  entry.writeUInt32LE(others.length === 1 ? (others[0] ?? 0) : bytes.length, 8);
  const sorted = [...entries, entry].sort((a, b) => a.readUInt16LE() - b.readUInt16LE());
  const head = Buffer.alloc(2);
  head.writeUInt16LE(count + 1);
  const joined = Buffer.concat([bytes, offsets, head, ...sorted, Buffer.alloc(4)]);
  joined.writeUInt32LE(bytes.length + offsets.length, 4);
  return joined;
}

function relocate(bytes: Buffer, entry: number, base: number): void {
  const width = [0, 1, 1, 2, 4, 8][bytes.readUInt16LE(entry + 2)] ?? 1;
  const count = bytes.readUInt32LE(entry + 4);
  const external = width * count > 4;
  if (external) bytes.writeUInt32LE(bytes.readUInt32LE(entry + 8) + base, entry + 8);
  if (bytes.readUInt16LE(entry) !== 273) return;
  const values = external ? bytes.readUInt32LE(entry + 8) : entry + 8;
  for (let i = 0; i < count; i++) bytes.writeUInt32LE(bytes.readUInt32LE(values + 4 * i) + base, values + 4 * i);
}
