import { chmod, mkdtemp, readdir, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { loadMasterKey } from './master-key.ts';

let dir: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'master-key-'));
});
afterEach(() => rm(dir, { recursive: true }));

test('the master key file is made on first use, for its owner alone, and read from then on', async () => {
  const path = join(dir, 'data', 'master.key');
  const key = await loadMasterKey({ kind: 'file', path, create: true });
  expect(key).toHaveLength(32);
  expect((await stat(path)).mode & 0o777).toBe(0o600);
  expect(await loadMasterKey({ kind: 'file', path, create: false })).toEqual(key);
});

test('processes that start at once all get the one key, and leave no drafts', async () => {
  const source = { kind: 'file', path: join(dir, 'master.key'), create: true } as const;
  const keys = await Promise.all(Array.from({ length: 20 }, () => loadMasterKey(source)));
  expect(new Set(keys.map((key) => key.toString('hex'))).size).toBe(1);
  expect(await readdir(dir)).toEqual(['master.key']);
});

test('a missing file that must not be made is refused', async () => {
  const path = join(dir, 'master.key');
  await expect(loadMasterKey({ kind: 'file', path, create: false })).rejects.toThrow(/does not exist/);
  expect(await readdir(dir)).toEqual([]);
});

test.each([0o640, 0o604, 0o620])('a key file of mode %o is refused, as others may have read it', async (mode) => {
  const path = join(dir, 'master.key');
  await writeFile(path, Buffer.alloc(32).toString('base64'));
  await chmod(path, mode);
  await expect(loadMasterKey({ kind: 'file', path, create: true })).rejects.toThrow(/open to other users.*chmod 600/);
});

test('a file that holds no key is refused and not replaced, and its content not shown', async () => {
  const path = join(dir, 'master.key');
  await writeFile(path, 'hunter2', { mode: 0o600 });
  const fault = await loadMasterKey({ kind: 'file', path, create: true }).catch((error: Error) => error.message);
  expect(fault).toMatch(/does not hold 32 bytes/);
  expect(fault).not.toContain('hunter2');
  expect((await stat(path)).size).toBe(7);
});
