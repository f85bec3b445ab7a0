import { expect, test } from 'vitest';
import { parseRange } from './range.ts';

test.each([
  ['bytes=0-0', { start: 0, end: 0 }],
  ['bytes=2-5', { start: 2, end: 5 }],
  ['bytes=2-', { start: 2, end: 9 }],
  ['bytes=-3', { start: 7, end: 9 }],
  ['Bytes=0-9', { start: 0, end: 9 }],
  ['bytes=5-100', { start: 5, end: 9 }],
  ['bytes=-100', { start: 0, end: 9 }],
])('%s of 10 bytes is a part of them', (header, range) => {
  expect(parseRange(header, 10)).toEqual(range);
});

test.each(['bytes=10-', 'bytes=10-12', 'bytes=-0'])('%s of 10 bytes cannot be satisfied', (header) => {
  expect(parseRange(header, 10)).toBe('unsatisfiable');
});

test.each(['bytes=5-2', 'bytes=0-1,3-4', 'bytes=', 'bytes=-', 'lines=0-1', 'bytes=a-b', 'bytes=1.5-2', '0-1'])(
  '%s is ignored',
  (header) => {
    expect(parseRange(header, 10)).toBeNull();
  },
);

test('nothing of an empty file can be asked for', () => {
  expect(parseRange('bytes=0-', 0)).toBe('unsatisfiable');
  expect(parseRange('bytes=-1', 0)).toBe('unsatisfiable');
});
