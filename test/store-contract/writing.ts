import { Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { describe, expect, test } from 'vitest';
import { chunks, inChunks, type StoreUnderTest, sha256 } from './store-under-test.ts';

/** What is written is what is read. */
export function describeWriting(on: StoreUnderTest): void {
  const { put, get, text, noLeftovers, large } = on;

  describe('writing and reading', () => {
    test('what was written is read back, with its facts', async () => {
      const written = await put('basic/a.txt', 'hello', { contentType: 'text/plain', sizeBytes: 5 });
      expect(written).toMatchObject({ key: 'basic/a.txt', sizeBytes: 5 });
      const head = await on.store.head('basic/a.txt');
      expect(head).toMatchObject({ key: 'basic/a.txt', sizeBytes: 5, etag: written.etag });
      expect(Math.abs((head.modifiedDate?.getTime() ?? Date.now()) - Date.now())).toBeLessThan(600_000);
      expect(await text('basic/a.txt')).toBe('hello');
    });

    test('an empty object is an object', async () => {
      const progress: number[] = [];
      await on.store.write('basic/empty', Readable.from([]), { onProgress: (bytes) => progress.push(bytes) });
      expect((await on.store.head('basic/empty')).sizeBytes).toBe(0);
      expect(await text('basic/empty')).toBe('');
      expect(await text('basic/empty', { start: 0, end: 10 })).toBe('');
      expect(progress.at(-1)).toBe(0);
    });

    test('a body in many small pieces, some of them empty, arrives whole', async () => {
      const pieces = Array.from({ length: 500 }, (_, i) => Buffer.alloc(i % 7, String(i % 10)));
      await on.store.write('basic/pieces', Readable.from(pieces));
      expect(await get('basic/pieces')).toEqual(Buffer.concat(pieces));
    });

    test('a large object arrives whole, and its progress never falls and ends at its size', async () => {
      const progress: number[] = [];
      const written = await on.store.write('large/known', inChunks(large), {
        sizeBytes: large.length,
        onProgress: (bytes) => progress.push(bytes),
      });
      expect(written.sizeBytes).toBe(large.length);
      expect(progress.length).toBeGreaterThan(1);
      expect(progress).toEqual(progress.toSorted((a, b) => a - b));
      expect(progress.at(-1)).toBe(large.length);
      expect(sha256(await get('large/known'))).toBe(sha256(large));
      expect((await on.store.head('large/known')).etag).toBe(written.etag);
    });

    test('a large object of unknown size arrives whole', async () => {
      await on.store.write('large/unknown', inChunks(large, 1_000_003));
      expect(sha256(await get('large/unknown'))).toBe(sha256(large));
      await noLeftovers();
    });

    test('a body may use the memory of a chunk again once it is asked for the next', async () => {
      const body = (async function* () {
        const memory = Buffer.alloc(1_000_003);
        for (const chunk of chunks(large, memory.length)) {
          memory.set(chunk);
          yield memory.subarray(0, chunk.length);
          memory.fill(0);
        }
      })();
      await on.store.write('large/reused', body, { sizeBytes: large.length });
      expect(sha256(await get('large/reused'))).toBe(sha256(large));
    });

    test('a second write replaces the object and changes its etag', async () => {
      const first = await put('basic/twice', 'one');
      const second = await put('basic/twice', 'two');
      expect(second.etag).not.toBe(first.etag);
      expect(await text('basic/twice')).toBe('two');
    });

    test('of writers of one key at once, one wins whole', async () => {
      const bodies = ['a', 'b', 'c', 'd'].map((letter) => Buffer.alloc(300_000, letter));
      await Promise.all(bodies.map((body) => on.store.write('basic/contended', inChunks(body))));
      const winner = await get('basic/contended');
      expect(bodies.some((body) => body.equals(winner))).toBe(true);
      await noLeftovers();
    });

    test('a reader that began before an overwrite never sees a mixture', async () => {
      const [before, after] = [Buffer.alloc(3_000_000, 'x'), Buffer.alloc(3_000_000, 'y')];
      await put('basic/mixture', before);
      const stream = await on.store.read('basic/mixture');
      await put('basic/mixture', after);
      const seen = await buffer(stream).catch((error: unknown) => error);
      if (!(seen instanceof Error)) expect([before, after].some((body) => body.equals(seen as Buffer))).toBe(true);
      expect((await get('basic/mixture')).equals(after)).toBe(true);
    });

    test('twenty small objects at once are all there', async () => {
      await Promise.all(Array.from({ length: 20 }, (_, i) => put(`parallel/${i}`, `body ${i}`)));
      const bodies = await Promise.all(Array.from({ length: 20 }, (_, i) => text(`parallel/${i}`)));
      expect(bodies).toEqual(Array.from({ length: 20 }, (_, i) => `body ${i}`));
    });
  });
}
