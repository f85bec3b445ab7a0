import { mkdtemp, open, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import sharp from 'sharp';
import { describe, expect, test } from 'vitest';
import { dicom, tiff } from '../../../test/written-images.ts';
import { type ByteSource, bufferSource, fileSource, UnreadableImage } from './byte-source.ts';
import { readImageFormat } from './read-format.ts';

const wsi = (name: string) => readFile(`../shared/data/wsi/${name}`);
const read = (bytes: Buffer, name?: string) => readImageFormat(bufferSource(bytes, name));
const picture = (width: number, height: number) =>
  sharp({ create: { width, height, channels: 3, background: 'plum' }, limitInputPixels: false });

/** The reason for which `bytes` are refused. */
async function reason(bytes: Buffer, name?: string): Promise<string> {
  const outcome = await read(bytes, name).catch((error: unknown) => error);
  expect(outcome).toBeInstanceOf(UnreadableImage);
  return (outcome as UnreadableImage).message;
}

/** A source that counts what is taken from it. */
function counted(source: ByteSource): ByteSource & { taken: number } {
  const counting = {
    ...source,
    taken: 0,
    read: (start: number, length: number) => {
      counting.taken += length;
      return source.read(start, length);
    },
  };
  return counting;
}

describe('slides of real scanners and programs', () => {
  test('an Aperio slide is SVS, with the size of its largest level', async () => {
    expect(await read(await wsi('cmu_small_region.svs'))).toEqual({ format: 'SVS', width: 2220, height: 2967 });
  });

  test.each(['viv-packages-multi-channel.ome.tif', 'viv-sites-multi-channel.ome.tif'])(
    '%s is OME-TIFF, with the size that its XML tells',
    async (name) => {
      const bytes = await wsi(name);
      const [, width, height] = /SizeX="(\d+)" SizeY="(\d+)"/.exec(bytes.toString('latin1')) ?? [];
      expect(await read(bytes)).toEqual({ format: 'OME-TIFF', width: Number(width), height: Number(height) });
    },
  );

  test('a name does not make a slide: text called .svs is of no known image format', async () => {
    expect(await reason(await wsi('broken.svs'), 'broken.svs')).toMatch(/no known image format/);
  });

  test('recognising a slide reads a small part of it', async () => {
    const source = counted(bufferSource(await wsi('cmu_small_region.svs')));
    await readImageFormat(source);
    expect(source.taken).toBeLessThan(source.sizeBytes / 10);
  });

  test('a slide that was cut anywhere FAILS as cut short', async () => {
    const bytes = await wsi('cmu_small_region.svs');
    for (const part of [0.1, 0.5, 0.7, 0.9, 0.999]) {
      expect(await reason(bytes.subarray(0, Math.floor(bytes.length * part)))).toMatch(/cut short/);
    }
  });
});

describe('TIFF', () => {
  test.each([true, false])('a tiled pyramid is read (BigTIFF: %s)', async (bigtiff) => {
    const bytes = await picture(1500, 700).tiff({ tile: true, pyramid: true, compression: 'jpeg', bigtiff }).toBuffer();
    expect(await read(bytes)).toEqual({ format: 'TIFF', width: 1500, height: 700 });
  });

  test.each([
    [true, true],
    [true, false],
    [false, true],
    [false, false],
  ])('both byte orders are read (little-endian: %s, BigTIFF: %s)', async (littleEndian, big) => {
    const bytes = tiff({ littleEndian, big, directories: [{ width: 300, height: 200 }] });
    expect(await read(bytes)).toEqual({ format: 'TIFF', width: 300, height: 200 });
  });

  test('the full-resolution picture counts, wherever it stands among label and levels', async () => {
    const directories = [
      { width: 10, height: 10 },
      { width: 4000, height: 3000 },
      { width: 1000, height: 750 },
    ];
    expect(await read(tiff({ directories }))).toMatchObject({ width: 4000, height: 3000 });
  });

  test('a directory with the tag of Hamamatsu is NDPI', async () => {
    const bytes = tiff({ directories: [{ width: 30, height: 20, ndpi: true }] });
    expect(await read(bytes)).toEqual({ format: 'NDPI', width: 30, height: 20 });
  });

  test('the directories of an NDPI file above 4 GiB are found by their 64-bit offsets', async () => {
    const directory = await mkdtemp(join(tmpdir(), 'sds-format-'));
    const file = await open(join(directory, 'large.ndpi'), 'w+');
    try {
      const first = 5 * 2 ** 30;
      const directories = [
        { width: 180_000, height: 90_000, ndpi: true },
        { width: 600, height: 300, ndpi: true },
      ];
      const bytes = tiff({ directories, at: first });
      await file.write(bytes, 0, 16, 0);
      await file.write(bytes, 16, bytes.length - 16, first);
      expect(await readImageFormat(await fileSource(file))).toEqual({ format: 'NDPI', width: 180_000, height: 90_000 });
    } finally {
      await file.close();
      await rm(directory, { recursive: true });
    }
  });

  test('directories that form a loop are refused', async () => {
    const bytes = tiff({
      directories: [
        { width: 30, height: 20 },
        { width: 3, height: 2 },
      ],
      loop: true,
    });
    expect(await reason(bytes)).toMatch(/loop/);
  });

  test('a directory or a strip past the end is a file cut short', async () => {
    const bytes = tiff({ directories: [{ width: 30, height: 20, strip: { offset: 8, byteCount: 100_000 } }] });
    expect(await reason(bytes)).toMatch(/cut short/);
    expect(await reason(tiff({ directories: [{ width: 3, height: 2 }] }).subarray(0, 20))).toMatch(/cut short/);
    for (const length of [4, 5, 8, 12]) expect(await reason(bytes.subarray(0, length))).toMatch(/cut short/);
  });

  test('a TIFF without a picture is refused', async () => {
    expect(await reason(tiff({ directories: [{ width: 0, height: 20 }] }))).toMatch(/no image/);
    expect(await reason(tiff({ directories: [] }))).toMatch(/no image/);
  });

  test('whatever a header claims, little is read and an answer comes', async () => {
    const good = tiff({
      big: true,
      directories: [
        { width: 30, height: 20 },
        { width: 3, height: 2 },
      ],
    });
    // Every byte of the structure in turn takes hostile values: counts, offsets and types of every entry among them.
    for (let at = 4; at < good.length; at++) {
      for (const value of [0x00, 0x7f, 0xff]) {
        const bytes = Buffer.from(good);
        bytes[at] = value;
        const source = counted(bufferSource(bytes));
        const outcome = await readImageFormat(source).catch((error: unknown) => error);
        if (outcome instanceof Error) expect(outcome).toBeInstanceOf(UnreadableImage);
        expect(source.taken).toBeLessThan(10 * 2 ** 20);
      }
    }
  });

  test('a file whose tables are larger than the reader takes is recognised without them', async () => {
    const size = 200 * 2 ** 20;
    const head = tiff({ directories: [{ width: 90_000, height: 80_000, tiles: { count: 10_000_000, offset: 1000 } }] });
    const source = counted({
      sizeBytes: size,
      read: async (start, length) => {
        const bytes = Buffer.alloc(Math.min(length, size - start));
        if (start < head.length) head.copy(bytes, 0, start);
        return bytes;
      },
    });
    expect(await readImageFormat(source)).toMatchObject({ width: 90_000, height: 80_000 });
    expect(source.taken).toBeLessThanOrEqual(8 * 2 ** 20);
  });
});

describe('PNG, JPEG and DICOM', () => {
  test('PNG and JPEG are recognised, with their size', async () => {
    expect(await read(await picture(321, 123).png().toBuffer())).toEqual({ format: 'PNG', width: 321, height: 123 });
    const jpeg = picture(321, 123).withExif({ IFD0: { Copyright: 'nobody'.repeat(1000) } });
    expect(await read(await jpeg.jpeg({ progressive: true }).toBuffer())).toEqual({
      format: 'JPEG',
      width: 321,
      height: 123,
    });
  });

  test('a JPEG or PNG cut inside its header is refused', async () => {
    expect(await reason((await picture(32, 12).png().toBuffer()).subarray(0, 20))).toMatch(/cut short/);
    expect(await reason((await picture(32, 12).jpeg().toBuffer()).subarray(0, 20))).toMatch(/cut short/);
    expect(await reason(Buffer.from([0xff, 0xd8, 0xff, 0xe0, 0, 2, 0, 0]))).toMatch(/frame header/);
  });

  test.each(['explicit', 'implicit', 'bigEndian'] as const)('Rows and Columns of a DICOM file (%s)', async (syntax) => {
    const bytes = dicom(syntax, [
      [0x0028_0010, 'US', 480],
      [0x0028_0011, 'US', 640],
    ]);
    expect(await read(bytes)).toEqual({ format: 'DICOM', width: 640, height: 480 });
  });

  test.each(['explicit', 'implicit'] as const)(
    'a DICOM slide has the size of its total pixel matrix, not of a tile, found past sequences (%s)',
    async (syntax) => {
      const bytes = dicom(syntax, [
        [0x0008_1140, 'SQ', [[0x0028_0010, 'US', 7]]],
        [0x0028_0010, 'US', 256],
        [0x0028_0011, 'US', 256],
        [0x0048_0001, 'SQ', [[0x0048_0006, 'UL', 9]]],
        [0x0048_0006, 'UL', 120_000],
        [0x0048_0007, 'UL', 80_000],
      ]);
      expect(await read(bytes)).toEqual({ format: 'DICOM', width: 120_000, height: 80_000 });
    },
  );

  test('a DICOM file that does not tell its size, or is damaged, is DICOM of unknown size', async () => {
    const unknown = { format: 'DICOM', width: null, height: null };
    expect(await read(dicom('deflated', [[0x0028_0010, 'US', 480]]))).toEqual(unknown);
    expect(await read(dicom('explicit', []))).toEqual(unknown);
    expect(await read(dicom('explicit', [[0x0028_0010, 'US', 480]]).subarray(0, 150))).toEqual(unknown);
  });
});

describe('what is no image of one file', () => {
  test('an empty object is refused as empty', async () => {
    expect(await reason(Buffer.alloc(0))).toMatch(/empty/);
  });

  test('formats of several files are refused as such, by their name or their text', async () => {
    const several = /format of several files, which is not supported/;
    expect(await reason(await picture(32, 12).jpeg().toBuffer(), 'CMU-1.MRXS')).toMatch(several);
    expect(await reason(Buffer.from('[Virtual Microscope Specimen]\r\nNoLayers=1\r\n'))).toMatch(several);
    expect(await reason(Buffer.from('[GENERAL]\r\nSLIDE_VERSION = 01.02\r\n'))).toMatch(several);
    expect(await reason(tiff({ directories: [{ width: 30, height: 20 }] }), 'slide.vsi')).toMatch(several);
  });

  test.each([1, 2, 3, 4, 131, 132, 5000])('%i bytes that mean nothing are of no known image format', async (length) => {
    expect(await reason(Buffer.alloc(length, 'x'))).toMatch(/no known image format/);
  });
});
