import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { expectKind } from './contract.ts';
import { openFileStore } from './file.ts';
import { checkFileKey } from './file-keys.ts';
import type { ObjectStore } from './store.ts';

const long = 'x'.repeat(255);

let dir: string;
let store: ObjectStore;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'sds-keys-'));
  store = await openFileStore(dir);
});
afterEach(() => rm(dir, { recursive: true }));

test.each(['a', 'a/b/c.svs', '..a', 'a../.b', '...', '.incoming2/a', 'a/.incoming', `${long}/${long}`, 'a\\b', ' '])(
  'a file store holds the key %j',
  async (key) => {
    expect(() => checkFileKey(key)).not.toThrow();
    expect((await store.write(key, Readable.from(['x']))).key).toBe(key);
  },
);

test.each(['', '/a', 'a/', 'a//b', '.', '..', '../a', 'a/../b', 'a/.', '.incoming', '.incoming/a', `${long}x`, 'a\0'])(
  'no file store holds the key %j',
  async (key) => {
    expect(() => checkFileKey(key)).toThrow(expect.objectContaining({ kind: 'invalid-key' }));
    await expectKind(store.write(key, Readable.from(['x'])), 'invalid-key');
  },
);
