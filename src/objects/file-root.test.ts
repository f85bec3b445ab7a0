import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import {
  appendFile,
  mkdir,
  mkdtemp,
  readdir,
  readFile,
  rename,
  rm,
  symlink,
  truncate,
  unlink,
  writeFile,
} from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { buffer, text } from 'node:stream/consumers';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { describeStoreContract, expectKind } from './contract.ts';
import { openFileRoot } from './file-root.ts';
import type { ObjectStore } from './store.ts';

let parent: string;
let root: string;
let outside: string;
let store: ObjectStore;

beforeEach(async () => {
  parent = await mkdtemp(join(tmpdir(), 'sds-root-'));
  root = join(parent, 'root');
  outside = join(parent, 'outside');
  await mkdir(join(root, 'runs'), { recursive: true });
  await mkdir(outside);
  await writeFile(join(root, 'runs', 'a.svs'), 'inside');
  await writeFile(join(outside, 'secret.svs'), 'secret');
  store = await openFileRoot({ name: 'scanner', path: root, readOnly: false });
});
afterEach(() => rm(parent, { recursive: true }));

const put = (key: string, body: string | Buffer = 'written') => store.write(key, Readable.from([Buffer.from(body)]));
const read = async (key: string) => text(await store.read(key));
const keys = async () => {
  const found: string[] = [];
  for await (const page of store.list()) found.push(...page.map(({ key }) => key));
  return found;
};

let contractDir: string;
describeStoreContract(
  'file root',
  async () => {
    contractDir = await mkdtemp(join(tmpdir(), 'sds-root-'));
    const contract = await openFileRoot({ name: 'contract', path: contractDir, readOnly: false });
    return { store: contract, close: () => rm(contractDir, { recursive: true }) };
  },
  {
    refusedKeys: ['/a', 'a/', 'a//b', '..', '../a', 'a/../b', './a'],
    leftovers: async () => (await readdir(join(contractDir, '.incoming'))).length,
  },
);

describe('no way leads out of a FILE root', () => {
  test.each(['../outside/secret.svs', 'runs/../../outside/secret.svs', '/etc/passwd', 'runs/..', '.', ''])(
    'the key %j is none',
    async (key) => {
      await expectKind(store.read(key), 'invalid-key');
      await expectKind(store.head(key), 'invalid-key');
      await expectKind(put(key), 'invalid-key');
      await expectKind(store.delete(key), 'invalid-key');
    },
  );

  test('a link to a file outside is refused, and not listed', async () => {
    await symlink(join(outside, 'secret.svs'), join(root, 'link.svs'));
    await symlink('../outside/secret.svs', join(root, 'relative.svs'));
    for (const key of ['link.svs', 'relative.svs']) {
      await expectKind(store.read(key), 'denied');
      await expectKind(store.head(key), 'denied');
    }
    expect(await keys()).toEqual(['runs/a.svs']);
  });

  test('a folder that is a link to the outside is refused, for reading, writing and deleting', async () => {
    await symlink(outside, join(root, 'away'));
    await symlink('away', join(root, 'twice'));
    for (const folder of ['away', 'twice', 'runs/../away']) {
      const key = `${folder}/secret.svs`;
      await expect(store.read(key)).rejects.toMatchObject({ name: 'ObjectError' });
      await expect(store.head(key)).rejects.toMatchObject({ name: 'ObjectError' });
      await expect(store.delete(key)).rejects.toMatchObject({ name: 'ObjectError' });
      await expect(put(`${folder}/new.svs`)).rejects.toMatchObject({ name: 'ObjectError' });
      await expect(put(`${folder}/deep/new.svs`)).rejects.toMatchObject({ name: 'ObjectError' });
    }
    expect(await readdir(outside)).toEqual(['secret.svs']);
    expect(await keys()).toEqual(['runs/a.svs']);
  });

  test('links that stay inside are followed', async () => {
    await symlink('a.svs', join(root, 'runs', 'latest.svs'));
    await symlink('runs', join(root, 'today'));
    expect(await read('runs/latest.svs')).toBe('inside');
    expect(await read('today/a.svs')).toBe('inside');
    expect(await keys()).toEqual(['runs/a.svs', 'runs/latest.svs']);
  });

  test('a write to a name that is a link replaces the link, not what it points to', async () => {
    await symlink(join(outside, 'secret.svs'), join(root, 'link.svs'));
    await put('link.svs');
    expect(await readFile(join(outside, 'secret.svs'), 'utf8')).toBe('secret');
    expect(await read('link.svs')).toBe('written');
  });

  test('links in a circle, or to nothing, are no objects', async () => {
    await symlink('loop', join(root, 'loop'));
    await symlink('nothing', join(root, 'dangling'));
    await expect(store.read('loop')).rejects.toMatchObject({ name: 'ObjectError' });
    await expectKind(store.read('dangling'), 'not-found');
    expect(await keys()).toEqual(['runs/a.svs']);
  });

  test('a folder that is swapped for a link while it is used never shows or takes anything outside', async () => {
    await writeFile(join(outside, 'a.svs'), 'secret');
    const [folder, aside] = [join(root, 'runs'), join(root, 'aside')];
    let stop = false;
    const swapping = (async () => {
      while (!stop) {
        await rename(folder, aside);
        await symlink(outside, folder).catch(() => {}); // a write may have made the folder anew
        await new Promise(setImmediate);
        for (let back = false; !back; ) {
          await rm(folder, { recursive: true, force: true });
          back = await rename(aside, folder).then(
            () => true,
            () => false,
          );
        }
      }
    })();
    const seen = new Set<string>();
    for (let round = 0; round < 300; round++) {
      seen.add(await read('runs/a.svs').catch((error: { name: string }) => error.name));
      seen.add(
        await put('runs/new.svs', 'inside').then(
          () => 'inside',
          (error: { name: string }) => error.name,
        ),
      );
      for await (const page of store.list({ prefix: 'runs/' })) for (const { key } of page) seen.add(key);
    }
    stop = true;
    await swapping;
    expect(
      [...seen].filter((outcome) => !['inside', 'ObjectError', 'runs/a.svs', 'runs/new.svs'].includes(outcome)),
    ).toEqual([]);
    expect(seen).toContain('inside');
    expect((await readdir(outside)).sort()).toEqual(['a.svs', 'secret.svs']);
  });
});

describe('what is no ordinary file', () => {
  test('pipes and sockets are neither listed nor waited for', async () => {
    execFileSync('mkfifo', [join(root, 'pipe')]);
    const server = createServer();
    await once(server.listen(join(root, 'socket')), 'listening');
    expect(await keys()).toEqual(['runs/a.svs']);
    for (const key of ['pipe', 'socket', 'runs']) {
      await expect(store.read(key)).rejects.toMatchObject({ name: 'ObjectError' });
      await expectKind(store.head(key), 'not-found');
    }
    server.close();
  });

  test('names that are not UTF-8 are skipped, the rest of the folder is not', async () => {
    await writeFile(
      Buffer.concat([Buffer.from(`${root}/gr`), Buffer.from([0xfc, 0xdf]), Buffer.from('e.svs')]),
      'latin-1',
    );
    await writeFile(join(root, 'grüße.svs'), 'utf-8');
    expect(await keys()).toEqual(['grüße.svs', 'runs/a.svs']);
  });
});

describe('a file that somebody else works on', () => {
  const large = Buffer.alloc(4 * 1024 * 1024, 'slide');
  const path = () => join(root, 'busy.svs');

  test.each([
    ['grows', () => appendFile(path(), 'more')],
    ['shrinks', () => truncate(path(), 1_000_000)],
    ['shrinks to nothing', () => truncate(path(), 0)],
    ['is rewritten in place', () => writeFile(path(), Buffer.alloc(large.length, 'other'))],
  ])('and that %s while it is read has changed', async (_, change) => {
    await writeFile(path(), large);
    const body = await store.read('busy.svs');
    await once(body, 'readable');
    await change();
    await expectKind(buffer(body), 'changed');
  });

  test.each([
    ['deleted', () => unlink(path())],
    ['replaced', () => writeFile(`${path()}~`, 'new').then(() => rename(`${path()}~`, path()))],
  ])('and that is %s while it is read is read to its end', async (_, change) => {
    await writeFile(path(), large);
    const body = await store.read('busy.svs');
    await once(body, 'readable');
    await change();
    expect((await buffer(body)).equals(large)).toBe(true);
  });

  test('and that changes between two reads has changed', async () => {
    await writeFile(path(), large);
    const { etag } = await store.head('busy.svs');
    await appendFile(path(), 'more');
    await expectKind(store.read('busy.svs', { ifMatch: etag }), 'changed');
  });
});

describe('a root that is opened for reading', () => {
  test('is not written to, in any way', async () => {
    const reading = await openFileRoot({ name: 'scanner', path: root, readOnly: true });
    await expectKind(reading.write('new.svs', Readable.from(['x'])), 'denied');
    await expectKind(reading.write('runs/a.svs', Readable.from(['x'])), 'denied');
    await expectKind(reading.delete('runs/a.svs'), 'denied');
    await reading.check();
    expect(await text(await reading.read('runs/a.svs'))).toBe('inside');
    expect(await readdir(root)).toEqual(['runs']);
  });

  test('that is not there is an error that does not tell where it should be', async () => {
    for (const path of [join(parent, 'nowhere'), join(root, 'runs', 'a.svs')]) {
      const error = await openFileRoot({ name: 'scanner', path, readOnly: true }).catch((refused: Error) => refused);
      expect(error).toMatchObject({ name: 'ObjectError', kind: 'failed' });
      expect(String(error)).toMatch(/file root scanner/);
      expect(String(error)).not.toContain(parent);
    }
    expect(store.description).toBe('file root scanner');
  });

  test('errors of its files do not tell where it is', async () => {
    await symlink(join(outside, 'secret.svs'), join(root, 'link.svs'));
    for (const call of [
      () => store.read('no.svs'),
      () => store.read('link.svs'),
      () => store.head('runs'),
      () => put('runs'),
      () => put('runs/a.svs/b'),
    ]) {
      const error = await call().catch((refused: Error) => refused);
      expect(error).toMatchObject({ name: 'ObjectError' });
      expect(String(error)).not.toContain(parent);
    }
  });
});
