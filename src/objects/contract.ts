import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { compareKeys, type ObjectErrorKind, type ObjectInfo, type ObjectStore, type WriteOptions } from './store.ts';

export interface ContractOptions {
  /** Size of the object that must go in several parts. Default 21 MiB: over two parts of 8 MiB and not a multiple. */
  largeBytes?: number;
  /** How many objects the test of several pages makes. Default 1,010: just over one page. */
  manyObjects?: number;
  /** Keys that this store refuses besides those that none can hold. */
  refusedKeys?: string[];
  /** Counts what unfinished writes have left behind (temporary files, open multipart uploads). */
  leftovers?: () => Promise<number> | number;
}

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
  'café-nfc',
  'café-nfd',
  '日本語',
  'emoji-🔬',
  'private-use-\uf8ff',
  'dots...',
  '.hidden',
  '-dash',
];

/**
 * What every object store must do, as one suite: `describeStoreContract('file', open)`. `open` makes an empty store;
 * the suite closes it.
 */
export function describeStoreContract(
  name: string,
  open: () => Promise<{ store: ObjectStore; close: () => Promise<void> }>,
  options: ContractOptions = {},
): void {
  describe(`object store contract: ${name}`, () => {
    let store: ObjectStore;
    let close: () => Promise<void>;
    const large = randomBytes(options.largeBytes ?? 21 * 1024 * 1024 + 17);

    beforeAll(async () => {
      ({ store, close } = await open());
    });
    afterAll(async () => {
      await store?.close();
      await close?.();
    });

    const put = (key: string, body: string | Uint8Array, write?: WriteOptions) =>
      store.write(key, Readable.from([Buffer.from(body)]), write);
    const get = async (key: string, read?: Parameters<ObjectStore['read']>[1]) => buffer(await store.read(key, read));
    const text = async (key: string, read?: Parameters<ObjectStore['read']>[1]) => (await get(key, read)).toString();
    const all = async (prefix?: string) => {
      const infos: ObjectInfo[] = [];
      for await (const page of store.list(prefix === undefined ? {} : { prefix })) infos.push(...page);
      return infos;
    };
    const keys = async (prefix: string) => (await all(prefix)).map(({ key }) => key);
    const noLeftovers = async () => expect((await options.leftovers?.()) ?? 0).toBe(0);

    describe('writing and reading', () => {
      test('what was written is read back, with its facts', async () => {
        const written = await put('basic/a.txt', 'hello', { contentType: 'text/plain', sizeBytes: 5 });
        expect(written).toMatchObject({ key: 'basic/a.txt', sizeBytes: 5 });
        const head = await store.head('basic/a.txt');
        expect(head).toMatchObject({ key: 'basic/a.txt', sizeBytes: 5, etag: written.etag });
        expect(Math.abs((head.modifiedDate?.getTime() ?? Date.now()) - Date.now())).toBeLessThan(600_000);
        expect(await text('basic/a.txt')).toBe('hello');
      });

      test('an empty object is an object', async () => {
        const progress: number[] = [];
        await store.write('basic/empty', Readable.from([]), { onProgress: (bytes) => progress.push(bytes) });
        expect((await store.head('basic/empty')).sizeBytes).toBe(0);
        expect(await text('basic/empty')).toBe('');
        expect(await text('basic/empty', { start: 0, end: 10 })).toBe('');
        expect(progress.at(-1)).toBe(0);
      });

      test('a body in many small pieces, some of them empty, arrives whole', async () => {
        const pieces = Array.from({ length: 500 }, (_, i) => Buffer.alloc(i % 7, String(i % 10)));
        await store.write('basic/pieces', Readable.from(pieces));
        expect(await get('basic/pieces')).toEqual(Buffer.concat(pieces));
      });

      test('a large object arrives whole, and its progress never falls and ends at its size', async () => {
        const progress: number[] = [];
        const written = await store.write('large/known', inChunks(large), {
          sizeBytes: large.length,
          onProgress: (bytes) => progress.push(bytes),
        });
        expect(written.sizeBytes).toBe(large.length);
        expect(progress.length).toBeGreaterThan(1);
        expect(progress).toEqual(progress.toSorted((a, b) => a - b));
        expect(progress.at(-1)).toBe(large.length);
        expect(sha256(await get('large/known'))).toBe(sha256(large));
        expect((await store.head('large/known')).etag).toBe(written.etag);
      });

      test('a large object of unknown size arrives whole', async () => {
        await store.write('large/unknown', inChunks(large, 1_000_003));
        expect(sha256(await get('large/unknown'))).toBe(sha256(large));
        await noLeftovers();
      });

      test('a second write replaces the object and changes its etag', async () => {
        const first = await put('basic/twice', 'one');
        const second = await put('basic/twice', 'two');
        expect(second.etag).not.toBe(first.etag);
        expect(await text('basic/twice')).toBe('two');
      });

      test('of writers of one key at once, one wins whole', async () => {
        const bodies = ['a', 'b', 'c', 'd'].map((letter) => Buffer.alloc(300_000, letter));
        await Promise.all(bodies.map((body) => store.write('basic/contended', inChunks(body))));
        const winner = await get('basic/contended');
        expect(bodies.some((body) => body.equals(winner))).toBe(true);
        await noLeftovers();
      });

      test('a reader that began before an overwrite never sees a mixture', async () => {
        const [before, after] = [Buffer.alloc(3_000_000, 'x'), Buffer.alloc(3_000_000, 'y')];
        await put('basic/mixture', before);
        const stream = await store.read('basic/mixture');
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
        await store.write('large/range', inChunks(large), { sizeBytes: large.length });
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
        expect(listed).toEqual(await store.head('range/digits'));
      });
    });

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
        for await (const page of store.list({ prefix: 'many/' })) pages.push(page);
        expect(pages.every((page) => page.length > 0 && page.length <= 1000)).toBe(true);
        expect(pages.flat().map(({ key }) => key)).toEqual(names.toSorted(compareKeys));
        expect(pages.flat().every(({ sizeBytes }) => sizeBytes === 1)).toBe(true);
      });

      test('a listing may be left early', async () => {
        await put('early/a', '');
        for await (const page of store.list({ prefix: 'early/' })) {
          expect(page).toHaveLength(1);
          break;
        }
      });
    });

    describe('deleting', () => {
      test('a deleted object is gone, and its neighbours are not', async () => {
        for (const key of ['delete/a/b/one', 'delete/a/two']) await put(key, '1');
        await store.delete('delete/a/b/one');
        await expectKind(store.head('delete/a/b/one'), 'not-found');
        expect(await keys('delete/')).toEqual(['delete/a/two']);
      });

      test('to delete what is not there is no error', async () => {
        await store.delete('delete/never/was');
        await store.delete('delete/never/was');
      });

      test('a folder of objects is no object: deleting its name deletes nothing', async () => {
        await put('delete/folder/one', '1');
        await store.delete('delete/folder');
        expect(await text('delete/folder/one')).toBe('1');
      });

      test('writes next to deletes in one folder all arrive', async () => {
        for (let round = 0; round < 20; round++) {
          await put('race/folder/old', '1');
          await Promise.all([store.delete('race/folder/old'), put(`race/folder/new-${round}`, '2')]);
          await store.delete(`race/folder/new-${round}`);
        }
        await Promise.all(
          Array.from({ length: 20 }, async (_, i) => {
            await put(`race/deep/${i % 2}/${i}`, 'x');
            if (i % 4 !== 0) await store.delete(`race/deep/${i % 2}/${i}`);
          }),
        );
        expect(await keys('race/')).toEqual([0, 12, 16, 4, 8].map((i) => `race/deep/0/${i}`));
      });
    });

    describe('refusals', () => {
      test('an object that is not there is not found', async () => {
        await expectKind(store.head('missing/x'), 'not-found');
        await expectKind(store.read('missing/x'), 'not-found');
        await expectKind(store.read('missing/x', { start: 5 }), 'not-found');
        await expectKind(store.read('missing/x', { ifMatch: 'etag' }), 'not-found');
      });

      test.each(['', 'x'.repeat(1025), 'nul\0', 'lone\ud800surrogate', ...(options.refusedKeys ?? [])])(
        'the key %j is refused',
        async (key) => {
          const body = Readable.from(['x']);
          await expectKind(store.write(key, body), 'invalid-key');
          expect(body.destroyed).toBe(true);
          await expectKind(store.read(key), 'invalid-key');
          await expectKind(store.head(key), 'invalid-key');
          await expectKind(store.delete(key), 'invalid-key');
        },
      );

      test('a store that works passes its check, which leaves nothing', async () => {
        const before = (await all()).length;
        await store.check();
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
        await expect(store.write('broken/body', body)).rejects.toBe(broken);
        await expectKind(store.head('broken/body'), 'not-found');
        expect(await keys('broken/')).toEqual([]);
        await noLeftovers();
      });

      test('a body that breaks leaves the object that was there', async () => {
        await put('broken/kept', 'old');
        const body = new Readable({ read() {} });
        const writing = store.write('broken/kept', body);
        body.push('new');
        setImmediate(() => body.destroy(new Error('the source broke')));
        await expect(writing).rejects.toThrow('the source broke');
        expect(await text('broken/kept')).toBe('old');
        await store.delete('broken/kept');
      });

      test.each([3, 7])('a body of another size than announced (%d) is not stored', async (sizeBytes) => {
        await expectKind(store.write('broken/size', Readable.from(['12345']), { sizeBytes }), 'failed');
        await expectKind(store.head('broken/size'), 'not-found');
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
        await expect(store.write('aborted/write', body, { signal: abort.signal })).rejects.toBe(reason);
        expect(body.destroyed).toBe(true);
        await expectKind(store.head('aborted/write'), 'not-found');
        await noLeftovers();
      });

      test('a write whose body never comes ends when it is aborted', async () => {
        const abort = new AbortController();
        const reason = new Error('stop');
        const writing = store.write('aborted/silent', new Readable({ read() {} }), { signal: abort.signal });
        setImmediate(() => abort.abort(reason));
        await expect(writing).rejects.toBe(reason);
        await expectKind(store.head('aborted/silent'), 'not-found');
        await noLeftovers();
      });

      test('a read aborted on its way ends with the reason', async () => {
        await store.write('aborted/read', inChunks(large), { sizeBytes: large.length });
        const abort = new AbortController();
        const reason = new Error('stop');
        const stream = await store.read('aborted/read', { signal: abort.signal });
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
        await expect(store.head('aborted/before', { signal })).rejects.toBe(reason);
        await expect(store.read('aborted/before', { signal })).rejects.toBe(reason);
        await expect(store.delete('aborted/before', { signal })).rejects.toBe(reason);
        await expect(store.write('aborted/before', Readable.from(['y']), { signal })).rejects.toBe(reason);
        await expect(store.check({ signal })).rejects.toBe(reason);
        const listing = store.list({ signal })[Symbol.asyncIterator]();
        await expect(listing.next()).rejects.toBe(reason);
        expect(await text('aborted/before')).toBe('x');
      });

      test('a reader that walks away early does no harm', async () => {
        const stream = await store.read('aborted/read');
        await once(stream, 'readable');
        stream.destroy();
        await once(stream, 'close');
        expect(await text('aborted/before')).toBe('x');
      });
    });
  });
}

/** Asserts that the promise rejects with an ObjectError of that kind. */
export async function expectKind(promise: Promise<unknown>, kind: ObjectErrorKind): Promise<void> {
  await expect(promise).rejects.toMatchObject({ name: 'ObjectError', kind });
}

function* chunks(body: Uint8Array, size = 64 * 1024): Generator<Uint8Array> {
  for (let i = 0; i < body.length; i += size) yield body.subarray(i, i + size);
}

function inChunks(body: Uint8Array, size?: number): Readable {
  return Readable.from(chunks(body, size), { objectMode: false });
}

function sha256(body: Uint8Array): string {
  return createHash('sha256').update(body).digest('hex');
}
