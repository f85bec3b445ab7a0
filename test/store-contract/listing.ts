import { describe, expect, test } from 'vitest';
import { compareKeys, type ObjectInfo } from '../../src/objects/store.ts';
import type { StoreUnderTest } from './store-under-test.ts';

/** Names that break careless URL, XML and path code; NFC and NFD forms of one word are two keys. */
const oddNames = [
  'with space',
  ' leading and trailing ',
  'plus+plus',
  'percent%20percent%',
  'hash#hash',
  'question?x=1&y=2',
  'amp&lt;<tag>"quote\'',
  'semi;colon:at@comma,=$!*()[]{}|^`~',
  'back\\slash',
  'caf\u00e9',
  'cafe\u0301',
  '日本語',
  'emoji-🔬',
  'private-use-\uf8ff',
  'dots...',
  '.hidden',
  '-dash',
];

/** What there is, in which order. */
export function describeListing(on: StoreUnderTest): void {
  const { put, text, keys, options } = on;

  describe('listing', () => {
    test('odd names come back as they were written, in byte order', async () => {
      const written = oddNames.map((odd) => `odd/${odd}/${odd}`).concat(oddNames.map((odd) => `odd/${odd}.x`));
      for (const key of written) await put(key, key);
      expect(await keys('odd/')).toEqual(written.toSorted(compareKeys));
      for (const key of written) expect(await text(key)).toBe(key);
      for (const odd of oddNames) expect(await keys(`odd/${odd}/`)).toEqual([`odd/${odd}/${odd}`]);
    });

    test('order is that of whole keys, not of folder names', async () => {
      const written = ['order/a-b', 'order/a.txt', 'order/a/b', 'order/a/c/d', 'order/a0', 'order/ab'];
      for (const key of written.toReversed()) await put(key, '');
      expect(await keys('order/')).toEqual(written);
    });

    test('a prefix may end in the middle of a name, and one that nothing has lists nothing', async () => {
      for (const key of ['prefix/ab/1', 'prefix/abc', 'prefix/ac', 'prefix2/ab']) await put(key, '');
      expect(await keys('prefix/ab')).toEqual(['prefix/ab/1', 'prefix/abc']);
      expect(await keys('prefix')).toEqual(['prefix/ab/1', 'prefix/abc', 'prefix/ac', 'prefix2/ab']);
      expect(await keys('prefix/abcd')).toEqual([]);
      expect(await keys('../')).toEqual([]);
    });

    test('many objects come in pages of at most 1,000, none twice, none missing', async () => {
      const count = options.manyObjects ?? 1010;
      const names = Array.from({ length: count }, (_, i) => `many/${i % 10}/${String(i).padStart(5, '0')}`);
      for (let i = 0; i < count; i += 25) await Promise.all(names.slice(i, i + 25).map((key) => put(key, '.')));
      const pages: ObjectInfo[][] = [];
      for await (const page of on.store.list({ prefix: 'many/' })) pages.push(page);
      expect(pages.every((page) => page.length > 0 && page.length <= 1000)).toBe(true);
      expect(pages.flat().map(({ key }) => key)).toEqual(names.toSorted(compareKeys));
      expect(pages.flat().every(({ sizeBytes }) => sizeBytes === 1)).toBe(true);
    });

    test('a listing may be left early', async () => {
      await put('early/a', '');
      for await (const page of on.store.list({ prefix: 'early/' })) {
        expect(page).toHaveLength(1);
        break;
      }
    });
  });
}
