import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { Agent as HttpAgent } from 'node:http';
import { Agent as HttpsAgent } from 'node:https';
import type { LookupFunction } from 'node:net';
import { Readable } from 'node:stream';
import { buffer, text } from 'node:stream/consumers';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { type S3Server, startS3Server } from '../../test/peers/s3-server.ts';
import { describeStoreContract, expectKind } from './contract.ts';
import { openS3Store, type S3StoreOptions } from './s3.ts';
import type { ObjectStore } from './store.ts';

const credentials = { accessKeyId: 'key-id', secretAccessKey: 'secret-access-key' };
const large = randomBytes(21 * 1024 * 1024 + 17);

let server: S3Server;
let store: ObjectStore;
const opened: ObjectStore[] = [];

/** A store of the test server; closed at the end. */
function open(options: Partial<S3StoreOptions> = {}): ObjectStore {
  const made = openS3Store({ credentials, bucket: 'bucket', endpoint: server.url, forcePathStyle: true, ...options });
  opened.push(made);
  return made;
}

const put = (key: string, body: Buffer, to = store) => to.write(key, Readable.from([body]), { sizeBytes: body.length });
const get = async (key: string, from = store) => buffer(await from.read(key));

beforeAll(async () => {
  server = await startS3Server({ ...credentials, buckets: ['bucket'] });
  store = open({ idleTimeoutMs: 400 });
});
afterEach(() => server.faults.clear());
afterAll(async () => {
  for (const one of opened) await one.close();
  await server.close();
});

let contractServer: S3Server;
describeStoreContract(
  's3',
  async () => {
    contractServer = await startS3Server({ ...credentials, buckets: ['bucket'] });
    const endpoint = contractServer.url;
    return {
      store: openS3Store({ credentials, bucket: 'bucket', prefix: 'a prefix/of+ours', endpoint, forcePathStyle: true }),
      close: () => contractServer.close(),
    };
  },
  { leftovers: () => contractServer.stats.openUploads },
);

describe('a store that fails for a while', () => {
  test.each(['slow-down', 'internal', 'reset'] as const)('%s is repeated until it works', async (does) => {
    server.faults.add({ on: ['put', 'get', 'head', 'list', 'delete'], does, times: 2 });
    await put('retry/small', Buffer.from('small'));
    server.faults.add({ on: ['get', 'head', 'list', 'delete'], does, times: 2 });
    expect((await get('retry/small')).toString()).toBe('small');
    const parts = server.faults.add({ on: ['create', 'part', 'complete'], does, times: 2 });
    await put('retry/large', large);
    expect(parts.hits).toBe(2);
    expect((await server.body('bucket', 'retry/large')).equals(large)).toBe(true);
    expect(server.stats.openUploads).toBe(0);
  });

  test.each(['slow-down', 'internal', 'reset'] as const)(
    '%s for good is transient, and leaves nothing',
    async (does) => {
      server.faults.add({
        on: ['put', 'part', 'get', 'head', 'list', 'delete'],
        does,
        times: Number.POSITIVE_INFINITY,
      });
      await expectKind(put('broken/small', Buffer.from('small')), 'transient');
      await expectKind(put('broken/large', large), 'transient');
      await expectKind(store.read('broken/small'), 'transient');
      await expectKind(store.head('broken/small'), 'transient');
      await expectKind(store.delete('broken/small'), 'transient');
      await expectKind(store.list()[Symbol.asyncIterator]().next(), 'transient');
      expect([...server.objects('bucket').keys()].filter((key) => key.startsWith('broken/'))).toEqual([]);
      expect(server.stats.openUploads).toBe(0);
    },
  );

  test('a completion whose answer gets lost is a success', async () => {
    server.faults.add({ on: 'complete', does: 'lose-answer' });
    const { etag } = await put('lost/answer', large);
    expect((await store.head('lost/answer')).etag).toBe(etag);
    expect(server.stats.openUploads).toBe(0);
  });

  test('a completion that fails for good leaves neither object nor parts', async () => {
    server.faults.add({ on: 'complete', does: 'internal', times: Number.POSITIVE_INFINITY });
    await expectKind(put('lost/complete', large), 'transient');
    expect(server.objects('bucket').has('lost/complete')).toBe(false);
    expect(server.stats.openUploads).toBe(0);
  });

  test('of a body whose second part is refused, only a few further chunks are asked for', async () => {
    server.faults.add({ on: 'part', does: 'denied', after: 1 });
    const chunk = Buffer.alloc(1024 * 1024);
    let asked = 0;
    let isEnded = false;
    const body = (async function* () {
      try {
        for (; asked < 100; asked++) yield chunk;
      } finally {
        isEnded = true;
      }
    })();
    await expectKind(store.write('lost/part', body, { sizeBytes: 100 * chunk.length }), 'denied');
    expect(await body.next()).toEqual({ done: true, value: undefined });
    expect(isEnded).toBe(true);
    // Four parts of 5 MiB: the first, the refused one, the one that was sent beside it, and the one being filled.
    expect(asked).toBeLessThanOrEqual(25);
    expect(server.stats.openUploads).toBe(0);
  });

  test('the abort of an upload is repeated too', async () => {
    server.faults.add({ on: 'part', does: 'denied', times: Number.POSITIVE_INFINITY });
    server.faults.add({ on: 'abort', does: 'slow-down', times: 2 });
    await expectKind(put('lost/abort', large), 'denied');
    expect(server.stats.openUploads).toBe(0);
  });
});

describe('bytes damaged on their way', () => {
  test('up: they are refused by the store and sent again', async () => {
    server.faults.add({ on: ['put', 'part'], does: 'corrupt', times: 2, afterBytes: 3 });
    await put('corrupt/small', Buffer.from('small'));
    server.faults.add({ on: 'part', does: 'corrupt', times: 2, afterBytes: 1_000_000 });
    await put('corrupt/large', large);
    expect((await server.body('bucket', 'corrupt/small')).toString()).toBe('small');
    expect((await server.body('bucket', 'corrupt/large')).equals(large)).toBe(true);
  });

  test('up, for good: transient, and nothing is stored', async () => {
    server.faults.add({ on: ['put', 'part'], does: 'corrupt', times: Number.POSITIVE_INFINITY });
    await expectKind(put('corrupt/never', Buffer.from('small')), 'transient');
    await expectKind(put('corrupt/never', large), 'transient');
    expect(server.objects('bucket').has('corrupt/never')).toBe(false);
    expect(server.stats.openUploads).toBe(0);
  });

  test('down: the stream ends in an error', async () => {
    await put('corrupt/down', large.subarray(0, 1_000_000));
    server.faults.add({ on: 'get', does: 'corrupt', afterBytes: 999_999 });
    await expectKind(get('corrupt/down'), 'transient');
    expect((await get('corrupt/down')).equals(large.subarray(0, 1_000_000))).toBe(true);
  });

  test.each(['truncate', 'reset'] as const)('%s in the middle of a body ends the stream in an error', async (does) => {
    await put('cut/down', large);
    server.faults.add({ on: 'get', does, afterBytes: 10_000_000 });
    const stream = await store.read('cut/down');
    const received: Buffer[] = [];
    stream.on('data', (chunk: Buffer) => received.push(chunk));
    const [error] = await once(stream, 'error');
    expect(error).toMatchObject({ name: 'ObjectError', kind: 'transient' });
    const start = Buffer.concat(received).length;
    const rest = await buffer(await store.read('cut/down', { start, ifMatch: (await store.head('cut/down')).etag }));
    expect(Buffer.concat([...received, rest]).equals(large)).toBe(true);
  });
});

describe('a store that falls silent', () => {
  test('before it answers: transient', async () => {
    server.faults.add({ on: ['get', 'head', 'list', 'put'], does: 'hang', times: Number.POSITIVE_INFINITY });
    await Promise.all([
      expectKind(store.read('silent/x'), 'transient'),
      expectKind(store.head('silent/x'), 'transient'),
      expectKind(store.list()[Symbol.asyncIterator]().next(), 'transient'),
      expectKind(put('silent/x', Buffer.from('x')), 'transient'),
    ]);
  });

  test('in the middle of a body: transient', async () => {
    await put('silent/body', large);
    server.faults.add({ on: 'get', does: 'hang', afterBytes: 1_000_000 });
    await expectKind(get('silent/body'), 'transient');
  });

  test('in the middle of a part: the part is sent again', async () => {
    server.faults.add({ on: 'part', does: 'hang', afterBytes: 5_000_000, times: 2 });
    await put('silent/part', large);
    expect((await server.body('bucket', 'silent/part')).equals(large)).toBe(true);
    expect(server.stats.openUploads).toBe(0);
  });

  test('at a completion: it is asked again', async () => {
    server.faults.add({ on: 'complete', does: 'hang', times: 2 });
    await put('silent/complete', large);
    expect((await server.body('bucket', 'silent/complete')).equals(large)).toBe(true);
    expect(server.stats.openUploads).toBe(0);
  });

  test('while it is connected to: transient', async () => {
    const silent: LookupFunction = () => {};
    const agents = { httpAgent: new HttpAgent({ lookup: silent }), httpsAgent: new HttpsAgent() };
    await expectKind(open({ agents, idleTimeoutMs: 100, endpoint: 'http://silent.test' }).head('x'), 'transient');
  });

  test('an abort does not wait for it', async () => {
    const hang = server.faults.add({ on: 'part', does: 'hang', times: Number.POSITIVE_INFINITY });
    const patient = open({ idleTimeoutMs: 3_600_000 });
    const abort = new AbortController();
    const reason = new Error('stop');
    const writing = patient.write('silent/abort', Readable.from([large]), { signal: abort.signal });
    while (hang.hits === 0) await new Promise((resolve) => setImmediate(resolve));
    abort.abort(reason);
    await expect(writing).rejects.toBe(reason);
    expect(server.stats.openUploads).toBe(0);
  });

  test('a reader that pauses for longer than the timeout is not cut off', async () => {
    await put('silent/reader', large);
    const hasty = open({ idleTimeoutMs: 100 });
    const stream = await hasty.read('silent/reader');
    await once(stream, 'readable');
    await new Promise((resolve) => setTimeout(resolve, 500));
    expect((await buffer(stream)).equals(large)).toBe(true);
  });
});

describe('memory', () => {
  test('of a body, no more than three parts of 5 MiB are taken before the store has them', async () => {
    const part = 5 * 1024 * 1024;
    const hang = server.faults.add({ on: 'part', does: 'hang', times: Number.POSITIVE_INFINITY });
    let taken = 0;
    const piece = Buffer.alloc(1024 * 1024);
    const body = Readable.from(
      (function* () {
        for (; taken < 20 * part; taken += piece.length) yield piece;
      })(),
      { highWaterMark: 1 },
    );
    const patient = open({ idleTimeoutMs: 3_600_000 });
    const writing = patient.write('memory/large', body);
    while (hang.hits < 2) await new Promise((resolve) => setImmediate(resolve));
    for (let turns = 0; turns < 100; turns++) await new Promise((resolve) => setImmediate(resolve));
    // One chunk in the stream's own hands, and one in the generator's.
    expect(taken).toBeLessThanOrEqual(3 * part + 2 * piece.length);
    hang.remove();
    expect((await writing).sizeBytes).toBe(20 * part);
  });
});

describe('errors', () => {
  test('a wrong secret is denied, and the message does not hold it', async () => {
    const wrong = open({ credentials: { ...credentials, secretAccessKey: 'another-secret' } });
    const error: unknown = await wrong.head('x').catch((failure: unknown) => failure);
    expect(error).toMatchObject({ kind: 'denied' });
    await expectKind(wrong.check(), 'denied');
    const reading: unknown = await wrong.read('x').catch((failure: unknown) => failure);
    expect(String(reading)).toContain('secret access key is wrong');
    expect(JSON.stringify([String(error), String(reading)])).not.toContain('another-secret');
  });

  test('an unknown access key is denied', async () => {
    await expectKind(open({ credentials: { ...credentials, accessKeyId: 'other' } }).read('x'), 'denied');
  });

  test('a session token goes along', async () => {
    const own = await startS3Server({ ...credentials, sessionToken: 'token', buckets: ['bucket'] });
    const endpoint = own.url;
    await open({ endpoint, credentials: { ...credentials, sessionToken: 'token' } }).check();
    await expectKind(open({ endpoint, credentials: { ...credentials, sessionToken: 'old' } }).read('x'), 'denied');
    await own.close();
  });

  test('a missing bucket has failed, and says so', async () => {
    const missing = open({ bucket: 'missing' });
    await expect(missing.check()).rejects.toMatchObject({ kind: 'failed', message: /bucket does not exist/ });
    await expect(missing.read('x')).rejects.toMatchObject({ kind: 'failed', message: /bucket does not exist/ });
    await expectKind(put('x', Buffer.from('x'), missing), 'failed');
  });

  test('a bucket of another region has failed, and says so', async () => {
    const own = await startS3Server({ ...credentials, region: 'eu-west-1', buckets: ['bucket'] });
    const elsewhere = open({ endpoint: own.url, region: 'eu-central-1' });
    await expect(elsewhere.read('x')).rejects.toMatchObject({ kind: 'failed', message: /another region/ });
    await own.close();
  });

  test('a server that is not there is transient', async () => {
    const own = await startS3Server({ ...credentials, buckets: [] });
    await own.close();
    await expectKind(open({ endpoint: own.url }).head('x'), 'transient');
  });

  test('an endpoint in the environment does not get the keys of a customer', async () => {
    const own = await startS3Server({ ...credentials, buckets: ['bucket'] });
    process.env.AWS_ENDPOINT_URL = own.url;
    const refused: LookupFunction = (_host, _options, callback) => callback(new Error('no network here'), []);
    const agents = { httpAgent: new HttpAgent(), httpsAgent: new HttpsAgent({ lookup: refused }) };
    const customer = openS3Store({ credentials, bucket: 'bucket', region: 'eu-central-1', agents });
    await expectKind(customer.head('x'), 'failed');
    delete process.env.AWS_ENDPOINT_URL;
    expect(own.stats.connections).toBe(0);
    await customer.close();
    await own.close();
  });
});

describe('links and sockets', () => {
  test('a presigned link downloads without credentials, under the given name', async () => {
    await put('links/a b+c.json', Buffer.from('{}'));
    const url = await store.presignRead('links/a b+c.json', {
      expiresInS: 60,
      fileName: 'Größe "1".json',
      contentType: 'application/json',
    });
    const response = await fetch(url ?? '');
    expect(response.status).toBe(200);
    expect(await response.text()).toBe('{}');
    expect(response.headers.get('content-type')).toBe('application/json');
    expect(response.headers.get('content-disposition')).toBe(
      `attachment; filename="Gr__e _1_.json"; filename*=UTF-8''Gr%C3%B6%C3%9Fe%20%221%22.json`,
    );
    expect((await fetch((url ?? '').replace('a%20b', 'other'))).status).toBe(403);
  });

  test('the media type is kept with the object', async () => {
    await store.write('links/type', Readable.from(['x']), { contentType: 'image/tiff' });
    await store.write('links/types', Readable.from([large]), { contentType: 'image/tiff' });
    const kept = ['links/type', 'links/types'].map((key) => server.objects('bucket').get(key)?.headers['content-type']);
    expect(kept).toEqual(['image/tiff', 'image/tiff']);
  });

  test('every connection goes through the given agents, also those of large bodies', async () => {
    const own = await startS3Server({ ...credentials, buckets: ['bucket'] });
    const asked: string[] = [];
    const lookup: LookupFunction = (host, options, callback) => {
      asked.push(host);
      if (options.all) callback(null, [{ address: '127.0.0.1', family: 4 }]);
      else callback(null, '127.0.0.1', 4);
    };
    const agents = { httpAgent: new HttpAgent({ keepAlive: true, lookup }), httpsAgent: new HttpsAgent() };
    const customer = open({ agents, endpoint: own.url.replace('127.0.0.1', 'storage.test'), forcePathStyle: false });
    await put('large', large, customer);
    expect((await get('large', customer)).equals(large)).toBe(true);
    expect(asked.length).toBe(own.stats.connections);
    expect(new Set(asked)).toEqual(new Set(['bucket.storage.test']));
    await own.close();
  });

  test('requests one after the other share a connection, and close ends it', async () => {
    const own = await startS3Server({ ...credentials, buckets: ['bucket'] });
    const thrifty = open({ endpoint: own.url });
    for (let i = 0; i < 5; i++) {
      await put(`${i}`, Buffer.from('x'), thrifty);
      expect(await text(await thrifty.read(`${i}`))).toBe('x');
      await thrifty.head(`${i}`);
    }
    expect(own.stats.connections).toBe(1);
    await thrifty.close();
    await own.close();
  });
});
