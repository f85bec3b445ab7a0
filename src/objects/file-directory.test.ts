import type { FileHandle } from 'node:fs/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { beforeEach, expect, test } from 'vitest';
import { DirectorySyncs, type OpenDirectory } from './file-directory.ts';

/** A turn of the disk with a directory: under way until it is told how it ends. */
interface Turn {
  end(): void;
  fail(error: Error): void;
}

/** What has begun, in order. */
let turns: Turn[];
let syncs: DirectorySyncs;
beforeEach(() => {
  turns = [];
  syncs = new DirectorySyncs();
});

/** A directory as one more writer has opened it, on a disk that takes as long as the test says. */
function opened(known: { dev: bigint; ino: bigint }): OpenDirectory {
  const sync = () => new Promise<void>((end, fail) => turns.push({ end, fail }));
  return { path: '', handle: { stat: async () => known, sync } as unknown as FileHandle };
}

/** So many more writers ask for a sync, each with a handle of its own; what has become of them. */
async function asking(count: number, known = { dev: 1n, ino: 1n }): Promise<() => string[]> {
  const states = Array.from({ length: count }, () => 'waits');
  for (const at of states.keys()) {
    syncs.sync(opened(known)).then(
      () => (states[at] = 'done'),
      (error: Error) => (states[at] = error.message),
    );
  }
  await settle();
  return () => states;
}

/** Lets everything go on that can. */
const settle = () => new Promise(setImmediate);

test('who comes while the disk is busy shares the next turn, which begins after what all of them did', async () => {
  const first = await asking(2);
  expect(turns.length).toBe(1);
  const joined = await asking(3);
  // The turn under way may have begun before they wrote.
  expect(turns.length).toBe(1);
  turns[0]?.end();
  await settle();
  expect([turns.length, first(), joined()]).toEqual([2, ['done', 'done'], ['waits', 'waits', 'waits']]);
  const late = await asking(1);
  expect(turns.length).toBe(2);
  turns[1]?.end();
  await settle();
  expect([turns.length, joined(), late()]).toEqual([3, ['done', 'done', 'done'], ['waits']]);
  turns[2]?.end();
  await settle();
  expect(late()).toEqual(['done']);
  // A turn that is over is joined by nobody.
  await asking(1);
  expect(turns.length).toBe(4);
});

test.each([
  { dev: 1n, ino: 2n },
  { dev: 2n, ino: 1n },
])('the directory %o does not wait for another', async (other) => {
  await asking(1);
  const there = await asking(1, other);
  expect(turns.length).toBe(2);
  turns[1]?.end();
  await settle();
  expect(there()).toEqual(['done']);
});

test('an error reaches those who share its turn, and nobody else', async () => {
  const first = await asking(1);
  const failing = await asking(2);
  turns[0]?.end();
  await settle();
  const next = await asking(2);
  turns[1]?.fail(new Error('the disk broke'));
  await settle();
  expect(turns.length).toBe(3);
  turns[2]?.end();
  await settle();
  expect([first(), failing(), next()]).toEqual([['done'], ['the disk broke', 'the disk broke'], ['done', 'done']]);
});

test('nothing is kept of a turn that is over', async () => {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  const fail = async (): Promise<WeakRef<Error>> => {
    const error = new Error('the disk broke');
    const states = await asking(1);
    turns.pop()?.fail(error);
    await settle();
    expect(states()).toEqual(['the disk broke']);
    return new WeakRef(error);
  };
  const kept = await fail();
  await settle();
  collect();
  expect(kept.deref()).toBeUndefined();
});
