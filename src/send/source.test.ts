import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { crc32, deflateRawSync } from 'node:zlib';
import { expect, test } from 'vitest';
import { refusalOf, testFolder } from '../../test/send-study-maker.ts';
import { openSource } from './source.ts';
import { readSendStudy } from './study.ts';

const FFU = '../shared/data/send/ffu';
const folder = testFolder();

interface Entry {
  name: string;
  bytes: Buffer;
  /** What the archive says of the entry, where that is not the truth. */
  declared?: { size?: number; crc?: number; flags?: number; method?: number };
}

/** A ZIP file of deflated entries (PKWARE APPNOTE 6.3), local headers first, then the central directory. */
function zip(entries: Entry[]): Buffer {
  const locals: Buffer[] = [];
  const centrals: Buffer[] = [];
  let offset = 0;
  for (const { name, bytes, declared = {} } of entries) {
    const packed = deflateRawSync(bytes);
    const fields = Buffer.alloc(26);
    fields.writeUInt16LE(20, 0);
    fields.writeUInt16LE(declared.flags ?? 0, 2);
    fields.writeUInt16LE(declared.method ?? 8, 4);
    fields.writeUInt32LE(declared.crc ?? crc32(bytes), 10);
    fields.writeUInt32LE(packed.length, 14);
    fields.writeUInt32LE(declared.size ?? bytes.length, 18);
    fields.writeUInt16LE(Buffer.byteLength(name), 22);
    const place = Buffer.alloc(14);
    place.writeUInt32LE(offset, 10);
    const local = Buffer.concat([Buffer.from('PK\x03\x04'), fields, Buffer.from(name), packed]);
    locals.push(local);
    centrals.push(Buffer.concat([Buffer.from('PK\x01\x02\x14\0'), fields, place, Buffer.from(name)]));
    offset += local.length;
  }
  const directory = Buffer.concat(centrals);
  const end = Buffer.alloc(22);
  end.write('PK\x05\x06', 'latin1');
  end.writeUInt16LE(entries.length, 8);
  end.writeUInt16LE(entries.length, 10);
  end.writeUInt32LE(directory.length, 12);
  end.writeUInt32LE(offset, 16);
  return Buffer.concat([...locals, directory, end]);
}

function ffu(prefix = ''): Entry[] {
  return readdirSync(FFU).map((file) => ({ name: `${prefix}${file}`, bytes: readFileSync(join(FFU, file)) }));
}

function write(name: string, bytes: Buffer): string {
  const path = join(folder, name);
  writeFileSync(path, bytes);
  return path;
}

test('a ZIP file holds the same study as its directory', async () => {
  const study = await readSendStudy(FFU);
  expect(await readSendStudy(write('ffu.zip', zip(ffu())))).toEqual(study);
});

test('a study may stand in a folder of the ZIP file, beside other files', async () => {
  const junk = [
    { name: '__MACOSX/m4/send/._dm.xpt', bytes: Buffer.from('shadow') },
    { name: 'm4/other/lb.xpt', bytes: Buffer.from('of another folder') },
    { name: 'readme.txt', bytes: Buffer.from('read me') },
  ];
  const study = await readSendStudy(write('nested.zip', zip([...junk, ...ffu('m4/send/')])));
  expect(study.findings).toHaveLength(242);
  expect(study.omitted.find(({ file }) => file.includes('lb'))).toBeUndefined();
  expect(study.omitted.at(-1)?.file).toBe('m4/send/te.xpt');
});

test('file names ignore case', async () => {
  const path = join(folder, 'upper');
  mkdirSync(path);
  const entries = ffu().map((entry) => ({ ...entry, name: entry.name.toUpperCase() }));
  for (const { name, bytes } of entries) writeFileSync(join(path, name), bytes);
  expect((await readSendStudy(path)).findings).toHaveLength(242);
  expect((await readSendStudy(write('upper.zip', zip(entries)))).findings).toHaveLength(242);
});

test('faults in a ZIP file name the entry', async () => {
  const entries = ffu('send/').map((entry) =>
    entry.name === 'send/mi.xpt' ? { ...entry, bytes: entry.bytes.subarray(0, -100) } : entry,
  );
  expect(await refusalOf(write('short.zip', zip(entries)))).toMatchObject({
    file: 'send/mi.xpt',
    reason: expect.stringContaining('cut short'),
  });
});

test.each<[string, Entry['declared'], RegExp]>([
  ['a wrong checksum', { crc: 1 }, /checksum/],
  ['more bytes than declared', { size: 80 }, /size|bytes/],
  ['fewer bytes than declared', { size: 80_000 }, /size|bytes/],
  ['more than 1 GiB declared', { size: 2 ** 30 + 1 }, /more than 1073741824 are not read/],
  ['encryption', { flags: 1 }, /encrypted/],
  ['an unknown method', { method: 12 }, /deflate/],
])('an entry with %s is refused', async (what, declared, reason) => {
  const entries = ffu().map((entry) => (entry.name === 'dm.xpt' ? { ...entry, declared: { ...declared } } : entry));
  const error = await refusalOf(write(`${what.replaceAll(' ', '-')}.zip`, zip(entries)));
  expect(error.file).toBe('dm.xpt');
  expect(error.reason).toMatch(reason);
});

test('a ZIP file cut anywhere is refused', async () => {
  const bytes = zip(ffu());
  for (let i = 0; i < 50; i += 1) {
    const error = await refusalOf(write('cut.zip', bytes.subarray(0, Math.floor((bytes.length * i) / 50))));
    expect(error.file).toContain('cut.zip');
  }
});

test('two studies in one ZIP file are refused', async () => {
  expect((await refusalOf(write('two.zip', zip([...ffu('a/'), ...ffu('b/')])))).message).toBe(
    'two.zip: holds several studies (dm.xpt in a, b)',
  );
});

test('a ZIP file that holds one name twice is refused', async () => {
  const [first] = ffu().filter(({ name }) => name === 'dm.xpt');
  expect((await refusalOf(write('twice.zip', zip([...ffu(), first as Entry])))).message).toBe(
    'twice.zip: holds dm.xpt twice',
  );
});

test('what is no study is refused', async () => {
  const missing = join(folder, 'missing');
  expect((await refusalOf(missing)).message).toBe(`${missing}: no such file or directory`);
  const empty = join(folder, 'empty');
  mkdirSync(empty);
  expect((await refusalOf(empty)).message).toBe(`${empty}: holds no dm.xpt: not a SEND study`);
  expect((await refusalOf(write('none.zip', zip([{ name: 'a.txt', bytes: Buffer.from('a') }])))).reason).toContain(
    'no dm.xpt',
  );
  expect((await refusalOf(join(FFU, 'dm.xpt'))).reason).toContain(
    'neither a directory nor a ZIP file that can be read',
  );
  expect((await refusalOf(write('a.zip', Buffer.from('no archive at all')))).reason).toContain('ZIP');
});

test('files that differ in case only are refused', async () => {
  const both = join(folder, 'both');
  mkdirSync(both);
  for (const name of ['dm.xpt', 'DM.XPT']) writeFileSync(join(both, name), readFileSync(join(FFU, 'dm.xpt')));
  // Where the file system itself ignores case, there is only one.
  if (readdirSync(both).length === 2)
    expect((await refusalOf(both)).reason).toBe('DM.XPT and dm.xpt differ in case only');
});

test('a directory by the name of a transport file is refused', async () => {
  const path = join(folder, 'odd');
  mkdirSync(join(path, 'dm.xpt'), { recursive: true });
  expect(await refusalOf(path)).toMatchObject({ file: 'dm.xpt', reason: 'not a regular file' });
});

test('reading an entry stops when the signal is aborted', async () => {
  const source = await openSource(write('abort.zip', zip(ffu())));
  await expect(source.read('DM', AbortSignal.abort())).rejects.toMatchObject({ name: 'AbortError' });
  expect((await source.read('DM')).length).toBe(3760);
  source.close();
});
