import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describeStoreContract } from './contract.ts';
import { openFileStore } from './file.ts';

let dir = '';

describeStoreContract(
  'file',
  async () => {
    dir = await mkdtemp(join(tmpdir(), 'objects-'));
    return { store: await openFileStore(dir), close: () => rm(dir, { recursive: true }) };
  },
  {
    refusedKeys: ['/a', 'a/', 'a//b', '..', '../a', 'a/../b', 'a/.', './a', '.incoming/a', 'x'.repeat(256)],
    leftovers: async () => (await readdir(join(dir, '.incoming'))).length,
  },
);
