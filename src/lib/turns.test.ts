import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { beforeEach, expect, test } from 'vitest';
import { inTurns } from './turns.ts';

/** A run: under way until it is told how it ends. */
interface Turn {
  end(): void;
  fail(error: Error): void;
}

/** What has begun, in order. */
let turns: Turn[];
let share: () => Promise<void>;
beforeEach(() => {
  turns = [];
  share = inTurns(() => new Promise<void>((end, fail) => turns.push({ end, fail })));
});

/** So many more callers; what has become of them. */
async function asking(count: number): Promise<() => string[]> {
  const states = Array.from({ length: count }, () => 'waits');
  for (const at of states.keys()) {
    share().then(
      () => (states[at] = 'done'),
      (error: Error) => (states[at] = error.message),
    );
  }
  await settle();
  return () => states;
}

/** Lets everything go on that can. */
const settle = () => new Promise(setImmediate);

test('who comes while it runs shares the next run, which begins after all of them came', async () => {
  const first = await asking(2);
  expect(turns.length).toBe(1);
  const joined = await asking(3);
  // The run under way may have begun before they had something for it.
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
  // A run that is over is joined by nobody.
  await asking(1);
  expect(turns.length).toBe(4);
});

test('an error reaches those who share its run, and nobody else', async () => {
  const first = await asking(1);
  const failing = await asking(2);
  turns[0]?.end();
  await settle();
  const next = await asking(2);
  turns[1]?.fail(new Error('it broke'));
  await settle();
  expect(turns.length).toBe(3);
  turns[2]?.end();
  await settle();
  expect([first(), failing(), next()]).toEqual([['done'], ['it broke', 'it broke'], ['done', 'done']]);
});

test('nothing is kept of a run that is over', async () => {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  const fail = async (): Promise<WeakRef<Error>> => {
    const error = new Error('it broke');
    const states = await asking(1);
    turns.pop()?.fail(error);
    await settle();
    expect(states()).toEqual(['it broke']);
    return new WeakRef(error);
  };
  const kept = await fail();
  // One collection need not find everything: what ran last may still be on the engine's own stack.
  for (let tries = 0; tries < 20 && kept.deref(); tries++) {
    await settle();
    collect();
  }
  expect(kept.deref()).toBeUndefined();
});
