import { readFile } from 'node:fs/promises';
import { crc32 } from 'node:zlib';
import sharp, { type Sharp } from 'sharp';
import { describe, expect, test } from 'vitest';
import { tiff } from '../../../test/written-images.ts';
import { type BoundedReader, type ByteSource, boundedReader, bufferSource, UnreadableImage } from './byte-source.ts';
import { readImageFormat } from './read-format.ts';
import { readTiff } from './tiff.ts';
import { openTiff, type Tiff } from './tiff-directory.ts';

const read = (bytes: Buffer) => readImageFormat(bufferSource(bytes));

async function expectCutShort(image: Buffer | ByteSource): Promise<void> {
  const source = Buffer.isBuffer(image) ? bufferSource(image) : image;
  const outcome = await readImageFormat(source).catch((error: unknown) => error);
  expect(outcome).toBeInstanceOf(UnreadableImage);
  expect((outcome as UnreadableImage).message).toMatch(/^The file is cut short: /);
}

/** A source of `sizeBytes` that has `parts` at their offsets and zeros elsewhere, and counts how it is read. */
function sparse(sizeBytes: number, parts: Map<number, Buffer>): ByteSource & { reads: number; taken: number } {
  const source = {
    sizeBytes,
    reads: 0,
    taken: 0,
    async read(start: number, length: number) {
      const bytes = Buffer.alloc(Math.min(length, sizeBytes - start));
      source.reads++;
      source.taken += bytes.length;
      for (const [at, part] of parts) {
        if (at < start + bytes.length && at + part.length > start)
          part.copy(bytes, Math.max(0, at - start), Math.max(0, start - at));
      }
      return bytes;
    },
  };
  return source;
}

const noise = { type: 'gaussian', mean: 128, sigma: 40 } as const;
/** A picture that no encoder makes small. */
const noisy = (width: number, height: number) =>
  sharp({ create: { width, height, channels: 3, background: 'plum', noise } });
const parts = [0.15, 0.4, 0.6, 0.8, 0.95, 0.999];
const cutAt = (bytes: Buffer, part: number) => bytes.subarray(0, Math.floor(bytes.length * part));

/** 1 MB that is random, and the same each time. */
const random = Buffer.alloc(1_000_000);
for (let i = 0, state = 1; i < random.length; i++) {
  state = (Math.imul(state, 1_103_515_245) + 12_345) >>> 0;
  random[i] = state >>> 24;
}

describe('a TIFF file FAILS where its upload broke off', () => {
  test.each(['viv-packages-multi-channel.ome.tif', 'viv-sites-multi-channel.ome.tif', 'cmu_small_region.svs'])(
    '%s, wherever that was',
    async (name) => {
      const bytes = await readFile(`../shared/data/wsi/${name}`);
      await expect(read(bytes)).resolves.toBeTruthy();
      for (const part of parts) await expectCutShort(cutAt(bytes, part));
      await expectCutShort(bytes.subarray(0, -1));
    },
  );

  test.each([
    ['TIFF', { big: false, ndpi: false }],
    ['BigTIFF', { big: true, ndpi: false }],
    ['NDPI', { big: false, ndpi: true }],
  ])('though its directories stand in front of the pixels (%s)', async (_, { big, ndpi }) => {
    const strip = { offset: 1_000, byteCount: 5_000 };
    const head = tiff({ big, directories: [{ width: 500, height: 400, compression: 7, strip, ndpi }] });
    const whole = Buffer.concat([head, Buffer.alloc(6_000 - head.length)]);
    expect(await read(whole)).toMatchObject({ width: 500, height: 400 });
    for (const bytes of [whole.subarray(0, 5_999), whole.subarray(0, 1_000), head]) await expectCutShort(bytes);
  });

  test('also in the reduced levels that OME-TIFF keeps in sub-directories', async () => {
    const level = (byteCount: number) => {
      const strip = { offset: 20, byteCount };
      return tiff({ directories: [{ width: 20, height: 10, compression: 7, strip }] }).subarray(16);
    };
    const main = tiff({ directories: [{ width: 40, height: 20, subDirectory: 500 }] });
    const of = (byteCount: number) => Buffer.concat([main, Buffer.alloc(500 - main.length), level(byteCount)]);
    expect(await read(of(100))).toMatchObject({ width: 40, height: 20 });
    await expectCutShort(of(1_000));
    await expectCutShort(of(100).subarray(0, 500));
  });

  test('told by a few reads of bounded size, however many millions of tiles there are', async () => {
    const count = 40_000_000;
    const last = Buffer.alloc(8);
    last.writeBigUInt64LE(BigInt(2 ** 39));
    const tables = 4_096;
    const head = tiff({
      big: true,
      directories: [{ width: 2 ** 20, height: 2 ** 20, tiles: { count, offset: tables } }],
    });
    const parts = new Map([
      [0, head],
      [tables + 8 * (count - 1), last],
    ]);
    const source = sparse(2 ** 39, parts);
    await expectCutShort(source);
    expect(source.taken).toBeLessThan(3 * 2 ** 20);
    expect(source.reads).toBeLessThan(20);
    // A tile of 2^39 bytes at 2^39 ends at 2^40.
    expect(await readImageFormat(sparse(2 ** 40, parts))).toMatchObject({ width: 2 ** 20 });
  });
});

/** What `readTiff` tells, and how many bytes it asked its reader for, those it had at hand included. */
async function asked(bytes: Buffer): Promise<{ outcome: unknown; askedBytes: number }> {
  const reader = boundedReader(bufferSource(bytes), 8 * 2 ** 20);
  let askedBytes = 0;
  const counting: BoundedReader = {
    sizeBytes: bytes.length,
    bytes(start, length) {
      askedBytes += length;
      return reader.bytes(start, length);
    },
  };
  const outcome = await readTiff((await openTiff(counting)) as Tiff).catch((error: unknown) => error);
  return { outcome, askedBytes };
}

describe('a TIFF file that has its readers go over the same bytes again and again', () => {
  /** 64 directories, every one with `count` values of a type at offset 0 for each tag. */
  const again = (type: number, count: number) => {
    const tags = [256, 257, 258, 259, 273, 277, 278, 279, 284, 324, 325];
    const directoryBytes = 2 + tags.length * 12 + 4;
    const bytes = Buffer.alloc(300_000);
    bytes.write('II*\0');
    bytes.writeUInt32LE(8, 4);
    for (let i = 0, at = 8; i < 64; i++, at += directoryBytes) {
      bytes.writeUInt16LE(tags.length, at);
      for (const [n, tag] of tags.entries()) {
        const entry = at + 2 + n * 12;
        bytes.writeUInt16LE(tag, entry);
        bytes.writeUInt16LE(type, entry + 2);
        bytes.writeUInt32LE(count, entry + 4);
        // Behind the directories, where all is 0; the first values of the size are not.
        bytes.writeUInt32LE(tag < 258 ? 0 : 10_000, entry + 8);
      }
      bytes.writeUInt32LE(i < 63 ? at + directoryBytes : 0, at + directoryBytes - 4);
    }
    return bytes;
  };

  test('is read as far as the budget of values goes, and no further', async () => {
    const { outcome, askedBytes } = await asked(again(3, 131_072));
    expect(outcome).toEqual({ format: 'TIFF', width: 0x4949, height: 0x4949 });
    // 512 Ki values of 2 bytes, and the directories themselves.
    expect(askedBytes).toBeLessThan(2 ** 20 + 2 ** 14);
    expect(askedBytes).toBeGreaterThan(2 ** 19);
  });

  test('FAILS as damaged where the places of its pixels are of a type of one byte', async () => {
    const { outcome, askedBytes } = await asked(again(1, 262_144));
    expect(outcome).toBeInstanceOf(UnreadableImage);
    expect((outcome as UnreadableImage).message).toMatch(/^The image is damaged: /);
    expect(askedBytes).toBeLessThan(2 ** 14);
  });
});

describe('a TIFF file that readers accept is ingested', () => {
  test('with tiles that the scanner left out, and with bytes behind the last one', async () => {
    const tables = 1_000;
    const head = tiff({ directories: [{ width: 900, height: 800, tiles: { count: 12, offset: tables } }] });
    expect(await read(Buffer.concat([head, Buffer.alloc(2_000)]))).toMatchObject({ width: 900, height: 800 });
    const beyond = tiff({
      directories: [{ width: 9, height: 8, compression: 7, strip: { offset: 9_999, byteCount: 0 } }],
    });
    expect(await read(Buffer.concat([beyond, random]))).toMatchObject({ width: 9, height: 8 });
    const small = await noisy(64, 64).tiff().toBuffer();
    expect(await read(Buffer.concat([small, random]))).toMatchObject({ width: 64, height: 64 });
  });

  test('with a byte count of uncompressed pixels that is larger than they are', async () => {
    const of = (strip: { offset: number; byteCount: number }) =>
      tiff({ directories: [{ width: 30, height: 4, strip }] });
    expect(await read(of({ offset: 8, byteCount: 100_000 }))).toMatchObject({ width: 30, height: 4 });
    await expectCutShort(of({ offset: 70, byteCount: 100_000 }));
  });

  test('above 4 GiB, where NDPI keeps the lower half of its offsets alone', async () => {
    const first = 5 * 2 ** 30;
    const strip = { offset: 2 ** 32 - 1, byteCount: 2 ** 30 };
    const bytes = tiff({
      directories: [{ width: 180_000, height: 90_000, compression: 7, strip, ndpi: true }],
      at: first,
    });
    const parts = new Map([
      [0, bytes.subarray(0, 16)],
      [first, bytes.subarray(16)],
    ]);
    expect(await readImageFormat(sparse(first + 10_000, parts))).toMatchObject({ format: 'NDPI', width: 180_000 });
  });

  test('above 4 GiB as BigTIFF, which is refused only where it ends too early', async () => {
    const strip = { offset: 6 * 2 ** 30, byteCount: 2 ** 30 };
    const head = tiff({ big: true, directories: [{ width: 90_000, height: 80_000, compression: 7, strip }] });
    const parts = new Map([[0, head]]);
    expect(await readImageFormat(sparse(7 * 2 ** 30, parts))).toMatchObject({ width: 90_000 });
    await expectCutShort(sparse(7 * 2 ** 30 - 1, parts));
  });
});

/** A PNG with its pixels in chunks of `size` bytes, as most encoders write them. */
async function chunked(image: Sharp, size: number): Promise<Buffer> {
  const plain = await image.png({ compressionLevel: 1 }).toBuffer();
  const chunks: Buffer[] = [plain.subarray(0, 33)];
  const pixels: Buffer[] = [];
  for (let at = 33; at < plain.length; at += 12 + plain.readUInt32BE(at)) {
    if (plain.toString('latin1', at + 4, at + 8) === 'IDAT')
      pixels.push(plain.subarray(at + 8, at + 8 + plain.readUInt32BE(at)));
  }
  const data = Buffer.concat(pixels);
  for (let at = 0; at < data.length; at += size) {
    const chunk = Buffer.alloc(12 + Math.min(size, data.length - at));
    chunk.writeUInt32BE(chunk.length - 12);
    chunk.write('IDAT', 4);
    data.copy(chunk, 8, at, at + size);
    chunk.writeUInt32BE(crc32(chunk.subarray(4, -4)), chunk.length - 4);
    chunks.push(chunk);
  }
  return Buffer.concat([...chunks, plain.subarray(-12)]);
}

describe('a PNG file', () => {
  test.each([
    ['one chunk', 2 ** 24],
    ['chunks of 64 KiB', 2 ** 16],
    ['chunks of 8 KiB', 2 ** 13],
  ])('FAILS where its upload broke off, with its pixels in %s', async (_, size) => {
    const bytes = await chunked(noisy(1_000, 900), size);
    expect(await read(bytes)).toEqual({ format: 'PNG', width: 1_000, height: 900 });
    await expect(sharp(bytes).raw().toBuffer()).resolves.toBeTruthy();
    for (const part of parts) await expectCutShort(cutAt(bytes, part));
    // After the header, in the header of the next chunk, and just before the last chunk.
    for (const length of [33, 37, 41, bytes.length - 12]) await expectCutShort(bytes.subarray(0, length));
  });

  test('is ingested whatever stands behind its end', async () => {
    for (const size of [2 ** 24, 2 ** 13]) {
      const bytes = await chunked(noisy(700, 600), size);
      for (const behind of [Buffer.alloc(1), Buffer.alloc(1_000_000), random])
        expect(await read(Buffer.concat([bytes, behind]))).toMatchObject({ format: 'PNG', width: 700 });
    }
  });

  test('FAILS as damaged where other bytes follow its header', async () => {
    const head = (await noisy(9, 9).png().toBuffer()).subarray(0, 33);
    await expect(read(Buffer.concat([head, random]))).rejects.toThrow('The image is damaged');
  });
});

describe('a JPEG file', () => {
  test.each([
    ['baseline', {}],
    ['progressive', { progressive: true }],
  ])('FAILS where its upload broke off (%s)', async (_, options) => {
    for (const edge of [1_500, 100]) {
      const bytes = await noisy(edge, edge)
        .jpeg({ quality: 95, ...options })
        .toBuffer();
      expect(await read(bytes)).toEqual({ format: 'JPEG', width: edge, height: edge });
      for (const part of parts) await expectCutShort(cutAt(bytes, part));
    }
  });

  test('FAILS where it ends before its scan, though a preview in its metadata has an end', async () => {
    const preview = await noisy(20, 20).jpeg().toBuffer();
    const bytes = await noisy(50, 50).jpeg().toBuffer();
    const length = Buffer.alloc(2);
    length.writeUInt16BE(preview.length + 2);
    const whole = Buffer.concat([bytes.subarray(0, 2), Buffer.from([0xff, 0xe9]), length, preview, bytes.subarray(2)]);
    expect(await read(whole)).toMatchObject({ width: 50, height: 50 });
    const scan = whole.lastIndexOf(Buffer.from([0xff, 0xda]));
    for (const length of [scan, scan + 3, scan + 40, whole.length - 2]) await expectCutShort(whole.subarray(0, length));
  });

  test('is ingested whatever stands behind its end', async () => {
    const bytes = await noisy(300, 200).jpeg().toBuffer();
    const text = Buffer.alloc(300_000, 'What a phone adds.');
    const opaque = Buffer.alloc(300_000, Buffer.from([0, 0, 0, 255]));
    const mask = Buffer.alloc(300_000, Buffer.from([255, 0]));
    const samples = Buffer.from(Uint16Array.from({ length: 150_000 }, (_, i) => (i % 9 ? 255 : i % 255)).buffer);
    for (const behind of [Buffer.alloc(1), Buffer.alloc(300_000), random, text, opaque, mask, samples])
      expect(await read(Buffer.concat([bytes, behind]))).toMatchObject({ format: 'JPEG', width: 300 });
  });
});
