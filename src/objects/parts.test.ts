import { Readable } from 'node:stream';
import { expect, test } from 'vitest';
import { parts, slices } from './parts.ts';

/** The parts of a body, as `text@start`, the last with a `!`. */
async function cut(body: Iterable<Uint8Array | string>, sizeBytes?: number): Promise<string[]> {
  const found: string[] = [];
  for await (const { bytes, start, last } of parts(Readable.from(body), { key: 'k', partBytes: 4, sizeBytes })) {
    found.push(`${bytes}@${start}${last ? '!' : ''}`);
  }
  return found;
}

test.each([
  [[], ['@0!']],
  [['', ''], ['@0!']],
  [['abc'], ['abc@0!']],
  [['abcd'], ['abcd@0!']],
  [
    ['ab', '', 'cde'],
    ['abcd@0', 'e@4!'],
  ],
  [['abcdefghij'], ['abcd@0', 'efgh@4', 'ij@8!']],
  [
    ['abcd', 'efgh'],
    ['abcd@0', 'efgh@4!'],
  ],
])('a body of %j is cut into parts of four bytes, the last one known as such', async (body, expected) => {
  expect(await cut(body)).toEqual(expected);
  expect(await cut(body.map((chunk) => new Uint8Array(Buffer.from(chunk))))).toEqual(expected);
  expect(await cut(body, body.join('').length)).toEqual(expected);
});

test.each([4, 6, 0])('a body of five bytes announced as %d fails before its last part', async (sizeBytes) => {
  await expect(cut(['abcde'], sizeBytes)).rejects.toMatchObject({ kind: 'failed' });
});

test('slices are what the part is, and each tells that the upload moves', () => {
  const bytes = Buffer.alloc(200_000, 'slide');
  let moves = 0;
  expect(Buffer.concat([...slices(bytes, () => moves++)]).equals(bytes)).toBe(true);
  expect(moves).toBe(4);
});
