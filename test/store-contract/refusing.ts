import { once } from 'node:events';
import { Readable } from 'node:stream';
import { finished } from 'node:stream/promises';
import { describe, expect, test } from 'vitest';
import type { Body } from '../../src/objects/store.ts';
import { chunks, expectKind, inChunks, type StoreUnderTest } from './store-under-test.ts';

/** Both kinds of body, of the same chunks. */
const bodies: [name: string, make: (chunks: AsyncGenerator<Uint8Array>) => Body][] = [
  ['a stream', (source) => Readable.from(source)],
  ['a generator', (source) => source],
];

/** Asserts that nothing more comes of a body: also where it is a generator that never began. */
async function expectOver(body: Body): Promise<void> {
  if (!(body instanceof Readable)) return expect(await body.next()).toEqual({ done: true, value: undefined });
  expect(body.destroyed).toBe(true);
  await finished(body).catch(() => {}); // With or without an error: over is over.
}

/** What no store does, and what none leaves behind when it fails or is stopped. */
export function describeRefusing(on: StoreUnderTest): void {
  const { put, text, all, keys, noLeftovers, large, options } = on;
  const pieces = async function* (bytes: number) {
    yield* chunks(large.subarray(0, bytes));
  };

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
        for (const [, make] of bodies) {
          const body = make(pieces(1));
          await expectKind(on.store.write(key, body), 'invalid-key');
          await expectOver(body);
        }
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

  describe.each(bodies)('failing and stopping, where the body is %s', (_, make) => {
    test.each([100, 20_000_000])('a body that breaks after %d bytes leaves nothing', async (bytes) => {
      const broken = new Error('the source broke');
      const body = make(
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
      const broken = new Error('the source broke');
      const body = make(
        (async function* () {
          yield Buffer.from('new');
          await new Promise(setImmediate);
          throw broken;
        })(),
      );
      await expect(on.store.write('broken/kept', body)).rejects.toBe(broken);
      expect(await text('broken/kept')).toBe('old');
      await on.store.delete('broken/kept');
    });

    test.each([
      [5, 3],
      [5, 7],
      [21_000_000, 20_000_000],
      [21_000_000, 22_000_000],
    ])('a body of %d bytes is not stored where %d are announced', async (bytes, sizeBytes) => {
      const body = make(pieces(bytes));
      await expectKind(on.store.write('broken/size', body, { sizeBytes }), 'failed');
      await expectOver(body);
      await expectKind(on.store.head('broken/size'), 'not-found');
      await noLeftovers();
    });

    test('a body that does not end where it should is not read to its end', async () => {
      let asked = 0;
      let isEnded = false;
      const body = make(
        (async function* () {
          try {
            for (; asked < 100; asked++) yield Buffer.alloc(64 * 1024);
          } finally {
            isEnded = true;
          }
        })(),
      );
      await expectKind(on.store.write('broken/endless', body, { sizeBytes: 100_000 }), 'failed');
      await expectOver(body);
      expect(isEnded).toBe(true);
      // The second is too much; a stream may hold a few more.
      expect(asked).toBeLessThan(10);
      await noLeftovers();
    });

    test('a write aborted on its way rejects with the reason and leaves nothing', async () => {
      const abort = new AbortController();
      const reason = new Error('stop');
      const body = make(
        (async function* () {
          yield* chunks(large.subarray(0, 17_000_000));
          abort.abort(reason);
          yield* chunks(large);
        })(),
      );
      await expect(on.store.write('aborted/write', body, { signal: abort.signal })).rejects.toBe(reason);
      await expectOver(body);
      await expectKind(on.store.head('aborted/write'), 'not-found');
      await noLeftovers();
    });

    test('a write with an aborted signal does nothing, and ends the body', async () => {
      const reason = new Error('stop');
      const body = make(pieces(1));
      await expect(on.store.write('aborted/at-once', body, { signal: AbortSignal.abort(reason) })).rejects.toBe(reason);
      await expectOver(body);
      await expectKind(on.store.head('aborted/at-once'), 'not-found');
      await noLeftovers();
    });
  });

  describe('failing and stopping', () => {
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
