import { generateKeyPairSync } from 'node:crypto';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { setTimeout } from 'node:timers/promises';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { type ProxyFault, startFaultyProxy } from '../../test/peers/faulty-proxy.ts';
import { type GcsServer, startGcsServer } from '../../test/peers/gcs-server.ts';
import { describeStoreContract, expectKind } from './contract.ts';
import type { CloudAccess } from './egress.ts';
import { openGcsStore } from './gcs.ts';
import type { ObjectStore } from './store.ts';

const clientEmail = 'importer@slides.iam.gserviceaccount.com';
const { publicKey, privateKey: key } = generateKeyPairSync('rsa', { modulusLength: 2048 });
const privateKey = key.export({ type: 'pkcs8', format: 'pem' }).toString();
let gcs: GcsServer;
beforeAll(async () => {
  gcs = await startGcsServer({ clientEmail, publicKey }, ['contract', 'slides']);
});
afterAll(() => gcs.stop());

const open = (bucket: string, settings = {}, access = {}) =>
  openGcsStore(
    { bucket, clientEmail, privateKey, endpoint: gcs.endpoint, ...settings },
    { allowedOrigins: [gcs.endpoint], ...access },
  );

describeStoreContract(
  'gcs',
  async () => {
    const store = open('contract');
    return { store, close: () => store.close() };
  },
  { refusedKeys: ['.', '..', 'a\nb'], leftovers: () => gcs.openUploads },
);

afterEach(() => {
  gcs.proxy.clear();
  gcs.pageSize = 1000;
  gcs.keepsOf = (bytes) => bytes;
});
const large = Buffer.alloc(20 * 1024 * 1024 + 5, 'slide');
const put = (store: ObjectStore, key: string, body: Buffer | string = 'bytes') =>
  store.write(key, Readable.from([Buffer.from(body)]));
const isUpload = ({ method }: { method: string }) => method === 'PUT';

describe('a bucket of Google', () => {
  test('is reached with a token for a signed assertion, kept while it is good and renewed when it is refused', async () => {
    const store = open('slides');
    const tokens = () => gcs.proxy.requests.filter(({ path }) => path === '/token').length;
    const before = tokens();
    await store.check();
    await store.check();
    expect(tokens()).toBe(before + 1);
    gcs.revokeTokens();
    await put(store, 'token/renewed');
    expect(tokens()).toBe(before + 2);
    await store.close();
  });

  test('is not opened by another account, another key, or what is no key', async () => {
    const other = generateKeyPairSync('rsa', { modulusLength: 2048 }).privateKey.export({
      type: 'pkcs8',
      format: 'pem',
    });
    for (const settings of [{ clientEmail: 'else@x' }, { privateKey: other.toString() }, { privateKey: 'no key' }]) {
      const store = open('slides', settings);
      await expectKind(store.check(), 'denied');
      await expectKind(put(store, 'x'), 'denied');
      await store.close();
    }
  });

  test('takes the key as JSON writes it, with its line ends escaped', async () => {
    const store = open('slides', { privateKey: privateKey.replaceAll('\n', '\\n') });
    await store.check();
    await store.close();
  });

  test('that is not there is told apart from a missing object', async () => {
    const store = open('nowhere');
    await expectKind(store.check(), 'failed');
    await expectKind(put(store, 'x'), 'failed');
    await expectKind(store.list()[Symbol.asyncIterator]().next(), 'failed');
    await store.close();
  });

  test('lists page by page, as small as the pages may be', async () => {
    const store = open('slides');
    gcs.pageSize = 2;
    const keys = ['pages/1', 'pages/2', 'pages/3', 'pages/4', 'pages/5'];
    for (const key of keys) await put(store, key);
    const pages: string[][] = [];
    for await (const page of store.list({ prefix: 'pages/' })) pages.push(page.map(({ key }) => key));
    expect(pages).toEqual([keys.slice(0, 2), keys.slice(2, 4), keys.slice(4)]);
    await store.close();
  });

  test('keeps the media type', async () => {
    const store = open('slides');
    await store.write('typed', Readable.from(['x']), { contentType: 'image/tiff' });
    expect(gcs.buckets.get('slides')?.get('typed')?.contentType).toBe('image/tiff');
    await store.close();
  });

  test('an answer that is not that of Google is an error, not an object', async () => {
    const stranger = createServer((request, response) => {
      response.end(request.url === '/token' ? '{"access_token":"t","expires_in":60}' : '<html>welcome</html>');
    });
    await once(stranger.listen(0, '127.0.0.1'), 'listening');
    const endpoint = `http://127.0.0.1:${(stranger.address() as AddressInfo).port}`;
    const store = open('slides', { endpoint }, { allowedOrigins: [endpoint] });
    await expectKind(store.head('x'), 'failed');
    await expectKind(put(store, 'x'), 'failed');
    await store.close();
    stranger.close();
  });
});

describe('when the way to Google is bad', () => {
  test.each(['unavailable', 'reset', 'lose-answer'] as const)('an upload goes on after a fault (%s)', async (does) => {
    const store = open('slides');
    let parts = 0;
    const on: ProxyFault['on'] = (request) => isUpload(request) && [1, 3, 6].includes(++parts);
    gcs.proxy.add({ on, does, times: 3, afterBytes: 1_000_000 });
    await put(store, `bad/${does}`, large);
    expect((await buffer(await store.read(`bad/${does}`))).equals(large)).toBe(true);
    expect(parts).toBeGreaterThan(3);
    expect(gcs.openUploads).toBe(0);
    await store.close();
  });

  test('of a part that arrived only half, the other half is sent again', async () => {
    const store = open('slides');
    gcs.keepsOf = (bytes) => bytes / 2;
    await expectKind(put(store, 'bad/half', large), 'transient');
    expect(gcs.openUploads).toBe(0);
    let requests = 0;
    gcs.keepsOf = (bytes) => (++requests % 2 === 0 ? bytes : bytes / 4);
    await put(store, 'bad/half', large);
    expect((await buffer(await store.read('bad/half'))).equals(large)).toBe(true);
    await store.close();
  });

  test('an answer of 503 or a reset that stays is transient, and nothing was written', async () => {
    const store = open('slides');
    await store.check();
    for (const does of ['unavailable', 'reset'] as const) {
      gcs.proxy.add({ on: isUpload, does, times: 1000 });
      await expectKind(put(store, 'bad/never', large), 'transient');
      await expectKind(put(store, 'bad/never'), 'transient');
      expect(gcs.openUploads).toBe(0);
      gcs.proxy.add({ on: () => true, does, times: 1000 });
      await expectKind(put(store, 'bad/never'), 'transient');
      await expectKind(store.head('bad/never'), 'transient');
      await expectKind(store.read('bad/never'), 'transient');
      await expectKind(store.delete('bad/never'), 'transient');
      await expectKind(store.list()[Symbol.asyncIterator]().next(), 'transient');
      gcs.proxy.clear();
      await expectKind(store.head('bad/never'), 'not-found');
    }
    await store.close();
  });

  test('a token endpoint that fails or hangs is transient', async () => {
    for (const does of ['unavailable', 'reset', 'hang'] as const) {
      const store = open('slides', {}, { idleTimeoutMs: 500 });
      gcs.proxy.add({ on: ({ path }) => path === '/token', does });
      await expectKind(store.check(), 'transient');
      await store.close();
    }
  });

  test('a server that hangs is given up after the idle timeout, whatever it was doing', async () => {
    const store = open('slides', {}, { idleTimeoutMs: 500 });
    await put(store, 'bad/hangs', large);
    gcs.proxy.add({ on: () => true, does: 'hang', times: 1000, afterBytes: 1_000_000 });
    await expectKind(buffer(await store.read('bad/hangs')), 'transient');
    await expectKind(put(store, 'bad/upload', large), 'transient');
    gcs.proxy.clear();
    gcs.proxy.add({ on: () => true, does: 'hang', times: 1000 });
    for (const call of [store.head('x'), store.read('x'), store.check(), store.delete('x'), put(store, 'x')]) {
      await expectKind(call, 'transient');
    }
    await store.close();
  });

  test('a slow reader is not taken for a cloud that hangs', async () => {
    const store = open('slides', {}, { idleTimeoutMs: 1000 });
    await put(store, 'slow/reader', large);
    const body = await store.read('slow/reader');
    await setTimeout(3000);
    expect((await buffer(body)).equals(large)).toBe(true);
    await store.close();
  });

  test.each(['reset', 'truncate', 'corrupt'] as const)(
    'a body with a fault (%s) ends in a transient error',
    async (does) => {
      const store = open('slides');
      await put(store, 'bad/body', large);
      gcs.proxy.add({ on: ({ method }) => method === 'GET', does, afterBytes: 3_000_000 });
      await expectKind(buffer(await store.read('bad/body')), 'transient');
      expect((await buffer(await store.read('bad/body'))).equals(large)).toBe(true);
      await store.close();
    },
  );

  test('bytes that change on their way to Google are not kept', async () => {
    const store = open('slides');
    gcs.proxy.add({ on: isUpload, does: 'corrupt' });
    await expectKind(put(store, 'corrupt/upload'), 'transient');
    await expectKind(store.head('corrupt/upload'), 'not-found');
    await store.close();
  });

  test('what is aborted while a part is sent is cancelled there too', async () => {
    const store = open('slides');
    const abort = new AbortController();
    const reason = new Error('stop');
    gcs.proxy.add({
      on: (request) => {
        if (isUpload(request)) setImmediate(() => abort.abort(reason));
        return isUpload(request);
      },
      does: 'hang',
    });
    const body = Readable.from([large]);
    await expect(store.write('aborted/part', body, { signal: abort.signal })).rejects.toBe(reason);
    expect(gcs.openUploads).toBe(0);
    await store.close();
  });
});

describe('what Google may be reached by', () => {
  test('a name that resolves to a metadata address is refused, tokens included, and the message says so', async () => {
    const endpoint = 'http://gcs.example:4443';
    const lookup: CloudAccess['lookup'] = (_, __, callback) =>
      callback(null, [{ address: '169.254.169.254', family: 4 }]);
    const store = open('slides', { endpoint }, { allowedOrigins: [endpoint], lookup });
    await expect(store.check()).rejects.toMatchObject({ kind: 'denied', message: expect.stringMatching(/metadata/) });
    await store.close();
  });

  test('an endpoint that nobody opened is refused though it would answer', async () => {
    const store = open('slides', {}, { allowedOrigins: [] });
    await expectKind(store.check(), 'denied');
    await store.close();
  });

  test('Google itself is asked for tokens at its own address, and only by public ones', async () => {
    const asked: string[] = [];
    const lookup: CloudAccess['lookup'] = (host, _, callback) => {
      asked.push(host);
      callback(null, [{ address: '127.0.0.1', family: 4 }]);
    };
    const store = open('slides', { endpoint: undefined }, { lookup });
    await expectKind(store.check(), 'denied');
    expect(asked).toEqual(['oauth2.googleapis.com']);
    await store.close();
  });

  test('a redirect, and an upload that is sent elsewhere, are not followed', async () => {
    const other = await startFaultyProxy(gcs.endpoint);
    const store = open('slides');
    await store.check();
    gcs.proxy.add({ on: ({ method }) => method === 'GET', does: 'redirect', location: `${other.origin}/stolen` });
    await expectKind(store.check(), 'failed');
    gcs.proxy.add({ on: ({ method }) => method === 'POST', does: 'redirect', location: `${other.origin}/stolen` });
    await expectKind(put(store, 'x'), 'failed');
    expect(other.requests).toEqual([]);
    await other.stop();
    await store.close();
  });

  test('secrets are in no error', async () => {
    const broken = privateKey.replace('PRIVATE', 'PUBLIC');
    const store = open('slides', { privateKey: broken });
    const error = await store.check().catch((refused: Error) => refused);
    expect(JSON.stringify([error, String(error), (error as Error).stack])).not.toContain(broken.slice(100, 140));
    expect((error as Error).cause).toBeUndefined();
    await store.close();
  });
});
