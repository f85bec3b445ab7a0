import { expect, test } from 'vitest';
import { bodyHash, idempotencyKey } from './idempotency.ts';

test.each([
  ['abc', 'abc'],
  ['"abc"', 'abc'],
  [' "a b" ', 'a b'],
  ['"a\\"b\\\\"', 'a"b\\'],
  ['a"b', 'a"b'],
  ['x'.repeat(255), 'x'.repeat(255)],
])('the header %j means the key %j', (header, key) => {
  expect(idempotencyKey(header)).toEqual({ key, fault: null });
});

test.each([[''], ['""'], ['"open'], ['"a"b"'], ['"a\\x"'], ['x'.repeat(256)]])('the header %j is a fault', (header) => {
  expect(idempotencyKey(header)).toMatchObject({ key: null, fault: { header: 'Idempotency-Key' } });
});

test('two bodies are the same whatever the order of their members, and not whatever that of their items', () => {
  expect(bodyHash({ a: 1, b: { c: [1, 2], d: null } })).toEqual(bodyHash({ b: { d: null, c: [1, 2] }, a: 1 }));
  expect(bodyHash({ c: [1, 2] })).not.toEqual(bodyHash({ c: [2, 1] }));
  expect(bodyHash({ a: '1' })).not.toEqual(bodyHash({ a: 1 }));
});
