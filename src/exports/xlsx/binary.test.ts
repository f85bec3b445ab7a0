import { expect, test } from 'vitest';
import { Clock, integer } from './binary.ts';

const microseconds = (iso: string) => (Date.parse(iso) - Date.UTC(2000)) * 1000;

test('timestamps are ISO 8601, UTC, with milliseconds', () => {
  const clock = new Clock();
  for (const iso of [
    '2026-01-31T23:59:59.999Z',
    '2026-02-01T00:00:00.000Z',
    '2026-02-01T09:08:07.065Z',
    '2026-02-01T09:08:07.065Z',
    '1999-12-31T12:34:56.789Z',
    '1970-01-01T00:00:00.001Z',
    '2024-02-29T10:20:30.400Z',
    '9999-12-31T23:59:59.999Z',
  ]) {
    expect(clock.iso(microseconds(iso)).toString()).toBe(iso);
  }
  expect(clock.iso(microseconds('2026-01-31T00:00:00.000Z') + 1999).toString()).toBe('2026-01-31T00:00:00.001Z');
  expect(clock.iso(-1).toString()).toBe('1999-12-31T23:59:59.999Z');
});

test.each([0, 1, -1, 32_767, -32_768])('%i is read from 2, 4 and 8 bytes', (value) => {
  const bytes = Buffer.alloc(14);
  bytes.writeInt16BE(value, 0);
  bytes.writeInt32BE(value, 2);
  bytes.writeBigInt64BE(BigInt(value), 6);
  expect([integer(bytes, 0, 2), integer(bytes, 2, 6), integer(bytes, 6, 14)]).toEqual([value, value, value]);
});

test('bigints up to 2⁵³ are exact', () => {
  const bytes = Buffer.alloc(8);
  for (const value of [2 ** 53, -(2 ** 53), 2 ** 32 + 1, 2 ** 31, -(2 ** 31) - 1]) {
    bytes.writeBigInt64BE(BigInt(value));
    expect(integer(bytes, 0, 8)).toBe(value);
  }
});
