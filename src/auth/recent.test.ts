import { expect, test } from 'vitest';
import { Recent } from './recent.ts';

test('at least as many as asked for are kept, and at most twice as many', () => {
  const recent = new Recent<number>(100);
  for (let i = 0; i < 1_000; i++) recent.set(`k${i}`, i);
  const kept = Array.from({ length: 1_000 }, (_, i) => recent.get(`k${i}`)).filter((value) => value !== undefined);
  expect(kept.length).toBeGreaterThanOrEqual(100);
  expect(kept.length).toBeLessThanOrEqual(200);
  expect(kept.at(-1)).toBe(999);
});

test('what is used stays, whatever comes', () => {
  const recent = new Recent<number>(10);
  recent.set('used', 1);
  for (let i = 0; i < 1_000; i++) {
    recent.set(`k${i}`, i);
    expect(recent.get('used')).toBe(1);
  }
});

test('what is removed is gone, also from the older generation', () => {
  const recent = new Recent<number>(2);
  recent.set('a', 1);
  recent.set('b', 2);
  recent.set('a', 3);
  recent.delete('a');
  expect(recent.get('a')).toBeUndefined();
  expect(recent.get('b')).toBe(2);
});
