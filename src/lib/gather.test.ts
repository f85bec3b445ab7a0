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
