import { once } from 'node:events';
import { Readable } from 'node:stream';
import { describe, expect, test } from 'vitest';
import { chunks, expectKind, inChunks, type StoreUnderTest } from './store-under-test.ts';

/** What no store does, and what none leaves behind when it fails or is stopped. */
export function describeRefusing(on: StoreUnderTest): void {
  const { put, text, all, keys, noLeftovers, large, options } = on;

  describe('refusals', () => {
    test('an object that is not there is not found', async () => {
      await expectKind(on.store.head('missing/x'), 'not-found');
      await expectKind(on.store.read('missing/x'), 'not-found');
      await expectKind(on.store.read('missing/x', { start: 5 }), 'not-found');
      await expectKind(on.store.read('missing/x', { ifMatch: 'etag' }), 'not-found');
    });

    test.each(['', 'x'.repeat(1025), 'nul\0', 'lone\ud800surrogate', ...(options.refusedKeys ?? [])])(
      'the key %j is refused',
      async (key) => {
        const body = Readable.from(['x']);
        await expectKind(on.store.write(key, body), 'invalid-key');
        expect(body.destroyed).toBe(true);
        await expectKind(on.store.read(key), 'invalid-key');
        await expectKind(on.store.head(key), 'invalid-key');
        await expectKind(on.store.delete(key), 'invalid-key');
      },
    );

    test('a store that works passes its check, which leaves nothing', async () => {
      const before = (await all()).length;
      await on.store.check();
      expect((await all()).length).toBe(before);
      await noLeftovers();
    });
  });

  describe('failing and stopping', () => {
    test.each([100, 20_000_000])('a body that breaks after %d bytes leaves nothing', async (bytes) => {
      const broken = new Error('the source broke');
      const body = Readable.from(
        (async function* () {
          yield* chunks(large.subarray(0, bytes));
          throw broken;
        })(),
      );
      await expect(on.store.write('broken/body', body)).rejects.toBe(broken);
      await expectKind(on.store.head('broken/body'), 'not-found');
      expect(await keys('broken/')).toEqual([]);
      await noLeftovers();
    });

    test('a body that breaks leaves the object that was there', async () => {
      await put('broken/kept', 'old');
      const body = new Readable({ read() {} });
      const writing = on.store.write('broken/kept', body);
      body.push('new');
      setImmediate(() => body.destroy(new Error('the source broke')));
      await expect(writing).rejects.toThrow('the source broke');
      expect(await text('broken/kept')).toBe('old');
      await on.store.delete('broken/kept');
    });

    test.each([3, 7])('a body of another size than announced (%d) is not stored', async (sizeBytes) => {
      await expectKind(on.store.write('broken/size', Readable.from(['12345']), { sizeBytes }), 'failed');
      await expectKind(on.store.head('broken/size'), 'not-found');
      await noLeftovers();
    });

    test('a write aborted on its way rejects with the reason and leaves nothing', async () => {
      const abort = new AbortController();
      const reason = new Error('stop');
      const body = Readable.from(
        (async function* () {
          yield* chunks(large.subarray(0, 17_000_000));
          abort.abort(reason);
          yield* chunks(large);
        })(),
      );
      await expect(on.store.write('aborted/write', body, { signal: abort.signal })).rejects.toBe(reason);
      expect(body.destroyed).toBe(true);
      await expectKind(on.store.head('aborted/write'), 'not-found');
      await noLeftovers();
    });

    test('a write whose body never comes ends when it is aborted', async () => {
      const abort = new AbortController();
      const reason = new Error('stop');
      const writing = on.store.write('aborted/silent', new Readable({ read() {} }), { signal: abort.signal });
      setImmediate(() => abort.abort(reason));
      await expect(writing).rejects.toBe(reason);
      await expectKind(on.store.head('aborted/silent'), 'not-found');
      await noLeftovers();
    });

    test('a read aborted on its way ends with the reason', async () => {
      await on.store.write('aborted/read', inChunks(large), { sizeBytes: large.length });
      const abort = new AbortController();
      const reason = new Error('stop');
      const stream = await on.store.read('aborted/read', { signal: abort.signal });
      await once(stream, 'readable');
      const failed = once(stream, 'error');
      abort.abort(reason);
      stream.resume();
      expect(await failed).toEqual([reason]);
    });

    test('what is called with an aborted signal does nothing', async () => {
      const reason = new Error('stop');
      const signal = AbortSignal.abort(reason);
      await put('aborted/before', 'x');
      await expect(on.store.head('aborted/before', { signal })).rejects.toBe(reason);
      await expect(on.store.read('aborted/before', { signal })).rejects.toBe(reason);
      await expect(on.store.delete('aborted/before', { signal })).rejects.toBe(reason);
      await expect(on.store.write('aborted/before', Readable.from(['y']), { signal })).rejects.toBe(reason);
      await expect(on.store.check({ signal })).rejects.toBe(reason);
      const listing = on.store.list({ signal })[Symbol.asyncIterator]();
      await expect(listing.next()).rejects.toBe(reason);
      expect(await text('aborted/before')).toBe('x');
    });

    test('a reader that walks away early does no harm', async () => {
      const stream = await on.store.read('aborted/read');
      await once(stream, 'readable');
      stream.destroy();
      await once(stream, 'close');
      expect(await text('aborted/before')).toBe('x');
    });
  });
}
