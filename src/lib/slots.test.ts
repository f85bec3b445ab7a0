import { expect, test } from 'vitest';
import { Slots } from './slots.ts';

/** Lets everything go on that can. */
const settle = () => new Promise(setImmediate);

test('no more than so many hold a slot, and whoever waits gets the next one in order', async () => {
  const slots = new Slots(2);
  const got: number[] = [];
  const take = async (one: number) => {
    const free = await slots.take();
    got.push(one);
    return free;
  };
  const taken = [0, 1, 2, 3, 4].map(take);
  const free = async (one: number) => (await (taken[one] as Promise<() => void>))();
  await settle();
  expect(got).toEqual([0, 1]);
  await free(1);
  await settle();
  expect(got).toEqual([0, 1, 2]);
  await free(0);
  await free(2);
  await settle();
  expect(got).toEqual([0, 1, 2, 3, 4]);
  // What was passed on has not become free as well.
  taken.push(take(5));
  await settle();
  expect(got.length).toBe(5);
  await free(3);
  await settle();
  expect(got.length).toBe(6);
});

test('to let go twice is to let go once, whether somebody waits or not', async () => {
  const slots = new Slots(1);
  const first = await slots.take();
  first();
  first();
  const second = await slots.take();
  let held = 0;
  for (let n = 0; n < 2; n++) void slots.take().then(() => held++);
  await settle();
  expect(held).toBe(0);
  second();
  second();
  await settle();
  expect(held).toBe(1);
});
