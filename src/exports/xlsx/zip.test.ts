import { mkdtemp, open, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { promisify } from 'node:util';
import { crc32 } from 'node:zlib';
import { afterAll, beforeAll, expect, test } from 'vitest';
import yauzl from 'yauzl';
import { Zip, type ZipOptions } from './zip.ts';

let directory: string;
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'zip-'));
});
afterAll(() => rm(directory, { recursive: true }));

async function* chunks(count: number, bytes: number): AsyncGenerator<Buffer> {
  for (let i = 0; i < count; i++) yield Buffer.alloc(bytes, String(i));
}

/** Writes an archive of two entries to `position` of a file, reads it back and returns what a reader found. */
async function roundTrip(name: string, options: ZipOptions) {
  const path = join(directory, name);
  const file = await open(path, 'w');
  let position = options.offset ?? 0;
  const write = async (bytes: Buffer) => {
    await file.write(bytes, 0, bytes.length, position);
    position += bytes.length;
  };
  const zip = new Zip(options);
  await write(await zip.file('fi-é.txt', 'short'));
  for await (const bytes of zip.stream('stream.txt', chunks(10, 100_000))) await write(bytes);
  await write(await zip.file('empty', ''));
  await write(zip.end());
  await file.close();

  // yauzl compares the size that it reads with the directory's, but leaves the CRC to us.
  const archive = await promisify<string, yauzl.Options, yauzl.ZipFile>(yauzl.open)(path, {
    lazyEntries: true,
    autoClose: true,
  });
  const found: Record<string, string> = {};
  const zip64: string[] = [];
  await new Promise<void>((resolve, reject) => {
    archive.on('error', reject).on('end', resolve);
    archive.on('entry', (entry: yauzl.Entry) => {
      if (entry.extraFields.some(({ id }) => id === 1)) zip64.push(entry.fileName);
      archive.openReadStream(entry, (error, stream) => {
        if (error) return reject(error);
        buffer(stream).then((content) => {
          expect(entry.crc32).toBe(crc32(content));
          found[entry.fileName] = content.toString();
          archive.readEntry();
        }, reject);
      });
    });
    archive.readEntry();
  });
  return { found, zip64 };
}

const expected = {
  'fi-é.txt': 'short',
  'stream.txt': Array.from({ length: 10 }, (_, i) => String(i).repeat(100_000)).join(''),
  empty: '',
};

test('entries compressed in pieces, several at once, read back as they were', async () => {
  const { found, zip64 } = await roundTrip('plain.zip', {});
  expect(found).toEqual(expected);
  expect(zip64).toEqual([]);
});

test('an entry beyond the limit of its size tells the size in zip64 form', async () => {
  const { found, zip64 } = await roundTrip('large-entry.zip', { zip64Limit: 900_000 });
  expect(found).toEqual(expected);
  expect(zip64).toEqual(['stream.txt']);
});

test('what lies beyond 4 GiB is found by zip64 offsets', async () => {
  const { found, zip64 } = await roundTrip('far.zip', { offset: 5 * 1024 ** 3 });
  expect(found).toEqual(expected);
  expect(zip64).toEqual(Object.keys(expected));
});

test('a failure of the source ends the entry', async () => {
  async function* failing(): AsyncGenerator<Buffer> {
    yield Buffer.alloc(10);
    throw new Error('source failed');
  }
  await expect(buffer(new Zip().stream('x', failing()))).rejects.toThrow('source failed');
});

test('chunks are given back once they are compressed, and not one is lost', async () => {
  const released: Buffer[] = [];
  await buffer(new Zip().stream('x', chunks(7, 1000), (chunk) => released.push(chunk)));
  expect(released.map((chunk) => chunk.toString('latin1', 0, 1)).sort()).toEqual(['0', '1', '2', '3', '4', '5', '6']);
});
