import { expect, test } from 'vitest';
import { gather } from './gather.ts';

test('whoever asks while one round is under way is in the next, and gets the answer at its place', async () => {
  const rounds: number[][] = [];
  const double = gather(3, async (items: number[]) => {
    rounds.push(items);
    await new Promise(setImmediate);
    return items.map((item) => 2 * item);
  });
  expect(await Promise.all([1, 2, 3, 4, 5].map(double))).toEqual([2, 4, 6, 8, 10]);
  expect(rounds).toEqual([[1], [2, 3, 4], [5]]);
});

test('a round that fails fails for those in it alone', async () => {
  const work = gather(1, async ([item]: number[]) => {
    if (item === 1) throw new Error('one');
    return [item];
  });
  expect(await Promise.allSettled([1, 2].map(work))).toMatchObject([
    { status: 'rejected', reason: { message: 'one' } },
    { status: 'fulfilled', value: 2 },
  ]);
});

test('several rounds may be under way, and the end of the last is told', async () => {
  const rounds: number[][] = [];
  let idle = 0;
  const work = async (items: number[]) => {
    rounds.push(items);
    await new Promise(setImmediate);
    return items;
  };
  const same = gather(3, work, { atOnce: 2, onIdle: () => idle++ });
  expect(await Promise.all([1, 2, 3, 4, 5, 6].map(same))).toEqual([1, 2, 3, 4, 5, 6]);
  expect(rounds).toEqual([[1], [2], [3, 4, 5], [6]]);
  expect(idle).toBe(1);
});
