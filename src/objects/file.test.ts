import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdir, mkdtemp, open, readdir, readFile, rm, stat, symlink, utimes, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { buffer, text } from 'node:stream/consumers';
import { promisify } from 'node:util';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { describeStoreContract, expectKind } from './contract.ts';
import { openFileStore } from './file.ts';
import { sweepIncoming } from './file-sweep.ts';
import type { ObjectStore } from './store.ts';

const run = promisify(execFile);

let contractDir = '';
describeStoreContract(
  'file',
  async () => {
    contractDir = await mkdtemp(join(tmpdir(), 'objects-'));
    return { store: await openFileStore(contractDir), close: () => rm(contractDir, { recursive: true }) };
  },
  {
    refusedKeys: [
      '/a',
      'a/',
      'a//b',
      '..',
      '../a',
      'a/../b',
      'a/.',
      './a',
      '.incoming',
      '.incoming/a',
      'x'.repeat(256),
    ],
    leftovers: async () => (await readdir(join(contractDir, '.incoming'))).length,
  },
);

let top: string;
let root: string;
let outside: string;
let store: ObjectStore;

beforeEach(async () => {
  top = await mkdtemp(join(tmpdir(), 'objects-'));
  root = join(top, 'root');
  outside = join(top, 'outside');
  await mkdir(outside);
  await writeFile(join(outside, 'secret'), 'secret');
  store = await openFileStore(root);
});
afterEach(() => rm(top, { recursive: true }));

const put = (key: string, body: string | Buffer, to = store) => to.write(key, Readable.from([Buffer.from(body)]));
const keys = async (of = store) => {
  const found: string[] = [];
  for await (const page of of.list()) found.push(...page.map(({ key }) => key));
  return found;
};
const mode = async (path: string) => (await stat(path)).mode & 0o777;

describe('files and folders', () => {
  test('are for the service alone', async () => {
    await put('a/b/object', 'x');
    expect(await Promise.all([root, join(root, 'a/b'), join(root, '.incoming')].map(mode))).toEqual([
      0o700, 0o700, 0o700,
    ]);
    expect(await mode(join(root, 'a/b/object'))).toBe(0o600);
  });

  test('an object has no name before it is whole', async () => {
    const body = new Readable({ read() {} });
    const writing = store.write('a/object', body);
    body.push('half');
    const incoming = join(root, '.incoming');
    const sizes = async () =>
      Promise.all(
        (await readdir(incoming).catch(() => [])).map(async (name) => (await stat(join(incoming, name))).size),
      );
    while ((await sizes())[0] !== 4) await new Promise((resolve) => setImmediate(resolve));
    expect(await keys()).toEqual([]);
    expect(await readdir(root)).toEqual(['.incoming']);
    body.push(null);
    await writing;
    expect(await keys()).toEqual(['a/object']);
    expect(await sizes()).toEqual([]);
  });

  test('folders that a delete leaves empty go too, and no others', async () => {
    await put('a/b/c/one', '1');
    await put('a/two', '2');
    await store.delete('a/b/c/one');
    expect((await readdir(join(root, 'a'))).sort()).toEqual(['two']);
    await store.delete('a/two');
    expect(await readdir(root)).toEqual(['.incoming']);
  });

  test('a name cannot be an object and a folder at once', async () => {
    await put('a', '1');
    await expectKind(put('a/b', '2'), 'failed');
    await put('c/d', '3');
    await expectKind(put('c', '4'), 'failed');
    expect(await keys()).toEqual(['a', 'c/d']);
    expect(await readdir(join(root, '.incoming'))).toEqual([]);
  });

  test('a rewrite of the same size has another etag', async () => {
    const etags = [];
    for (let i = 0; i < 5; i++) etags.push((await put('a', `${i}`)).etag);
    expect(new Set(etags).size).toBe(5);
  });

  test('what dead writers left is swept, what lives is not', async () => {
    await put('kept', 'x');
    const [dead, alive] = ['dead', 'alive'].map((name) => join(root, '.incoming', name)) as [string, string];
    await writeFile(dead, 'half');
    await writeFile(alive, 'half');
    const twoHoursAgo = Date.now() / 1000 - 7200;
    await utimes(dead, twoHoursAgo, twoHoursAgo);
    expect(await sweepIncoming(root, 3_600_000)).toBe(1);
    expect(await readdir(join(root, '.incoming'))).toEqual(['alive']);
    expect(await keys()).toEqual(['kept']);
    expect(await sweepIncoming(outside, 0)).toBe(0);
  });

  test('a check fails where nothing can be written', async () => {
    await store.check();
    await rm(root, { recursive: true });
    await expectKind(store.check(), 'failed');
    await expectKind(put('a/b', 'x'), 'failed');
    expect((await readdir(top)).sort()).toEqual(['outside']);
  });

  test('a root that is not there, or is no directory, is refused', async () => {
    await expectKind(openFileStore(join(top, 'missing'), { readOnly: true }), 'failed');
    await expectKind(openFileStore(join(top, 'missing'), { shared: true }), 'failed');
    await expectKind(openFileStore(join(outside, 'secret')), 'failed');
  });

  test('a listing of a root that has gone fails; it is not empty', async () => {
    await rm(root, { recursive: true });
    await expect(keys()).rejects.toMatchObject({ name: 'ObjectError' });
  });

  test('a file that is rewritten in place while it is read is an error', async () => {
    await put('growing', randomBytes(2_000_000));
    const stream = await store.read('growing');
    await once(stream, 'readable');
    const file = await open(join(root, 'growing'), 'r+');
    await file.write('other', 1_999_000);
    await file.close();
    await expectKind(buffer(stream), 'changed');
  });

  test('a file that shrinks while it is read is an error', async () => {
    await put('shrinking', randomBytes(2_000_000));
    const stream = await store.read('shrinking');
    await once(stream, 'readable');
    await writeFile(join(root, 'shrinking'), 'short');
    await expectKind(buffer(stream), 'changed');
  });
});

describe('a tree that others may write to', () => {
  test('no link leads out: not to read, not to write, not to delete, not in listings', async () => {
    await symlink(join(outside, 'secret'), join(root, 'file'));
    await symlink(outside, join(root, 'folder'));
    await symlink('../outside/secret', join(root, 'relative'));
    for (const key of ['file', 'relative', 'folder/secret']) {
      await expectKind(store.read(key), 'denied');
      await expectKind(store.head(key), 'denied');
    }
    await expectKind(put('folder/new', 'x'), 'denied');
    await expectKind(put('folder/deep/new', 'x'), 'denied');
    await expectKind(store.delete('folder/secret'), 'denied');
    expect(await keys()).toEqual([]);
    expect(await readdir(outside)).toEqual(['secret']);
    expect(await readFile(join(outside, 'secret'), 'utf8')).toBe('secret');
  });

  test('a write in place of a link replaces the link, not what it points at', async () => {
    await symlink(join(outside, 'secret'), join(root, 'file'));
    await put('file', 'new');
    expect(await text(await store.read('file'))).toBe('new');
    expect(await readFile(join(outside, 'secret'), 'utf8')).toBe('secret');
  });

  test('a link that stays inside is followed; one in a circle hurts nobody', async () => {
    await put('real/object', 'x');
    await symlink('real/object', join(root, 'link'));
    await symlink('real', join(root, 'folder'));
    await symlink('..', join(root, 'real/up'));
    await symlink('circle', join(root, 'circle'));
    expect(await text(await store.read('link'))).toBe('x');
    expect(await text(await store.read('folder/object'))).toBe('x');
    expect(await keys()).toEqual(['link', 'real/object']);
    await expectKind(store.read('circle'), 'denied');
  });

  test('pipes and folders are no objects, and nobody waits for them', async () => {
    await run('mkfifo', [join(root, 'pipe')]);
    await mkdir(join(root, 'folder'));
    await expectKind(store.read('pipe'), 'not-found');
    await expectKind(store.head('pipe'), 'not-found');
    await expectKind(store.read('folder'), 'not-found');
    expect(await keys()).toEqual([]);
  });

  test('read-only, nothing is written at all', async () => {
    await writeFile(join(outside, 'b'), 'b');
    const readOnly = await openFileStore(outside, { readOnly: true, shared: true });
    await expectKind(put('a', 'x', readOnly), 'denied');
    await expectKind(readOnly.delete('b'), 'denied');
    await readOnly.check();
    expect(await keys(readOnly)).toEqual(['b', 'secret']);
    expect((await readdir(outside)).sort()).toEqual(['b', 'secret']);
  });

  test('shared, files have the modes of the others and empty folders stay', async () => {
    await mkdir(join(outside, 'slides'));
    const shared = await openFileStore(outside, { shared: true });
    await put('slides/new/a.svs', 'x', shared);
    const ownFile = join(outside, 'own');
    await writeFile(ownFile, '');
    expect(await mode(join(outside, 'slides/new/a.svs'))).toBe(await mode(ownFile));
    await shared.delete('slides/new/a.svs');
    expect(await readdir(join(outside, 'slides'))).toEqual(['new']);
  });
});

describe('a full disk', () => {
  test('is said clearly, leaves nothing half-written, and is over when there is space again', async (context) => {
    const disk = join(top, 'disk');
    await mkdir(disk);
    try {
      await run('mount', ['-t', 'tmpfs', '-o', 'size=1m', 'tmpfs', disk]);
    } catch {
      context.skip('a small file system can only be mounted by root');
    }
    try {
      const small = await openFileStore(disk);
      await put('first', randomBytes(400_000), small);
      const tooLarge = Readable.from(Array.from({ length: 40 }, () => randomBytes(64 * 1024)));
      const failure: unknown = await small.write('second', tooLarge).catch((error: unknown) => error);
      expect(failure).toMatchObject({ kind: 'no-space', message: expect.stringContaining('no space left') });
      expect(tooLarge.destroyed).toBe(true);
      expect(await readdir(join(disk, '.incoming'))).toEqual([]);
      expect(await keys(small)).toEqual(['first']);
      await put('third', randomBytes(400_000), small);
      await small.delete('first');
      await put('fourth', randomBytes(400_000), small);
      expect(await keys(small)).toEqual(['fourth', 'third']);
    } finally {
      await run('umount', [disk]);
    }
  });
});
