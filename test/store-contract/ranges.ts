import { beforeAll, describe, expect, test } from 'vitest';
import { expectKind, inChunks, type StoreUnderTest } from './store-under-test.ts';

/** Parts of an object, and of the version that one means. */
export function describeRanges(on: StoreUnderTest): void {
  const { put, get, text, all, large } = on;

  describe('ranges and versions', () => {
    beforeAll(async () => {
      await put('range/digits', '0123456789');
    });

    test.each([
      [{ start: 3 }, '3456789'],
      [{ end: 3 }, '0123'],
      [{ start: 0, end: 0 }, '0'],
      [{ start: 3, end: 5 }, '345'],
      [{ start: 9, end: 9 }, '9'],
      [{ start: 3, end: 1000 }, '3456789'],
      [{ start: 10 }, ''],
      [{ start: 1000, end: 2000 }, ''],
      [{ start: 5, end: 4 }, ''],
    ])('the range %o is read', async (range, expected) => {
      expect(await text('range/digits', range)).toBe(expected);
    });

    test('a range across parts of a large object is read', async () => {
      await on.store.write('large/range', inChunks(large), { sizeBytes: large.length });
      const [start, end] = [8 * 1024 * 1024 - 5, 8 * 1024 * 1024 + 100_000];
      expect((await get('large/range', { start, end })).equals(large.subarray(start, end + 1))).toBe(true);
    });

    test('ifMatch reads the version it names and refuses another', async () => {
      const first = await put('range/version', 'one');
      expect(await text('range/version', { ifMatch: first.etag })).toBe('one');
      expect(await text('range/version', { ifMatch: first.etag, start: 1 })).toBe('ne');
      await put('range/version', 'another');
      await expectKind(get('range/version', { ifMatch: first.etag }), 'changed');
      await expectKind(get('range/version', { ifMatch: first.etag, start: 1 }), 'changed');
    });

    test('the etag of a listing is that of head', async () => {
      const [listed] = await all('range/digits');
      expect(listed).toEqual(await on.store.head('range/digits'));
    });
  });
}
