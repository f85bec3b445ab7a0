import { describe, expect, test } from 'vitest';
import { expectKind, type StoreUnderTest } from './store-under-test.ts';

/** What goes, and what stays. */
export function describeDeleting(on: StoreUnderTest): void {
  const { put, text, keys } = on;

  describe('deleting', () => {
    test('a deleted object is gone, and its neighbours are not', async () => {
      for (const key of ['delete/a/b/one', 'delete/a/two']) await put(key, '1');
      await on.store.delete('delete/a/b/one');
      await expectKind(on.store.head('delete/a/b/one'), 'not-found');
      expect(await keys('delete/')).toEqual(['delete/a/two']);
    });

    test('to delete what is not there is no error', async () => {
      await on.store.delete('delete/never/was');
      await on.store.delete('delete/never/was');
    });

    test('a folder of objects is no object: deleting its name deletes nothing', async () => {
      await put('delete/folder/one', '1');
      await on.store.delete('delete/folder');
      expect(await text('delete/folder/one')).toBe('1');
    });

    test('writes next to deletes in one folder all arrive', async () => {
      for (let round = 0; round < 20; round++) {
        await put('race/folder/old', '1');
        await Promise.all([on.store.delete('race/folder/old'), put(`race/folder/new-${round}`, '2')]);
        await on.store.delete(`race/folder/new-${round}`);
      }
      await Promise.all(
        Array.from({ length: 20 }, async (_, i) => {
          await put(`race/deep/${i % 2}/${i}`, 'x');
          if (i % 4 !== 0) await on.store.delete(`race/deep/${i % 2}/${i}`);
        }),
      );
      expect(await keys('race/')).toEqual([0, 12, 16, 4, 8].map((i) => `race/deep/0/${i}`));
    });
  });
}
