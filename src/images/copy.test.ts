import { randomBytes } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { sha256 } from '../../test/store-contract/store-under-test.ts';
import { Digests } from '../lib/digests.ts';
import { openFileStore } from '../objects/file.ts';
import { type Body, ObjectError, type ObjectStore } from '../objects/store.ts';
import { copyObject } from './copy.ts';
import { type PartMemory, partMemory } from './read-object.ts';
import { FileFault, Tries } from './tries.ts';

const MiB = 1024 * 1024;
/** Four and five parts each, of which the last is a short one: more parts than memory is given for. */
const contents = Array.from({ length: 6 }, (_, n) => randomBytes((14 + n) * MiB + 1));

let dir: string;
let source: ObjectStore;
let target: ObjectStore;
/** Of a job: shared by all its files. */
let memory: PartMemory;
const digests = new Digests();

beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'sds-copies-'));
  source = await openFileStore(join(dir, 'source'));
  for (const [n, content] of contents.entries()) await source.write(`${n}`, Readable.from([content]));
});
afterAll(async () => {
  await digests.close();
  await rm(dir, { recursive: true, force: true });
});
beforeEach(async () => {
  target = await openFileStore(await mkdtemp(join(dir, 'target-')));
  memory = partMemory();
});

/** The target as one far away: it has every chunk in its hands for a while, and calls `then`, which may throw. */
const slowly = (then: (taken: number) => void = () => {}): Pick<ObjectStore, 'write'> => ({
  write(key, body, options) {
    const late = async function* (chunks: Body) {
      let taken = 0;
      for await (const chunk of chunks) {
        await sleep(20);
        taken += chunk.length;
        then(taken);
        yield chunk;
      }
    };
    return target.write(key, late(body), options);
  },
});

async function copy(n: number, to = slowly(), signal = new AbortController().signal): Promise<string> {
  const tries = new Tries(1, signal, async () => {});
  const info = await source.head(`${n}`);
  const from = { store: source, info, tries, signal, etags: { isMd5: true }, memory, digests };
  return copyObject(from, { store: to, key: `${n}` });
}

const stored = async (n: number) => sha256(await buffer(await target.read(`${n}`)));

/** Nothing that is free is anybody's, and everything that was taken is given back. */
function expectWhole(): void {
  expect(memory.extra).toBe(partMemory().extra);
  const memories = memory.free.map((part) => part.buffer);
  expect(new Set(memories).size).toBe(memories.length);
}

test('files that are copied at once and share their memory arrive as they were', async () => {
  const told = await Promise.all(contents.map((_, n) => copy(n)));
  expect(told).toEqual(contents.map(sha256));
  expect(await Promise.all(contents.map((_, n) => stored(n)))).toEqual(told);
  expectWhole();
  // They had something to share.
  expect(memory.free.length).toBeGreaterThan(0);
});

test('a file whose target breaks or that is stopped harms no other, and gives back what it took', async () => {
  const broken = slowly((taken) => {
    if (taken > 4 * MiB) throw new ObjectError('no-space', 'The disk is full.');
  });
  const abort = new AbortController();
  const reason = new Error('stop');
  const stopping = slowly((taken) => {
    if (taken > 4 * MiB) abort.abort(reason);
  });
  const [first, second, ...rest] = await Promise.allSettled([
    copy(0, broken),
    copy(1, stopping, abort.signal),
    ...[2, 3, 4, 5].map((n) => copy(n)),
  ]);
  expect(first).toMatchObject({ status: 'rejected', reason: expect.any(FileFault) });
  expect(second).toEqual({ status: 'rejected', reason });
  expect(rest).toEqual(contents.slice(2).map((content) => ({ status: 'fulfilled', value: sha256(content) })));
  expect(await Promise.all([2, 3, 4, 5].map(stored))).toEqual(contents.slice(2).map(sha256));
  expectWhole();
});
