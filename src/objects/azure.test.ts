import { Readable } from 'node:stream';
import { buffer, text } from 'node:stream/consumers';
import { setTimeout } from 'node:timers/promises';
import {
  ContainerSASPermissions,
  generateBlobSASQueryParameters,
  StorageSharedKeyCredential,
} from '@azure/storage-blob';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { type Azurite, startAzurite } from '../../test/peers/azurite.ts';
import { type FaultyProxy, startFaultyProxy } from '../../test/peers/faulty-proxy.ts';
import { openAzureStore } from './azure.ts';
import { describeStoreContract, expectKind } from './contract.ts';
import type { CloudAccess } from './egress.ts';
import type { ObjectInfo, ObjectStore } from './store.ts';

let azurite: Azurite;
let proxy: FaultyProxy;
beforeAll(async () => {
  azurite = await startAzurite();
  proxy = await startFaultyProxy(azurite.endpoint);
  await azurite.makeContainer('slides');
});
afterEach(() => proxy.clear());
afterAll(async () => {
  await proxy.stop();
  await azurite.stop();
});

/** A store behind the proxy that injects faults. */
function open(settings: Partial<Parameters<typeof openAzureStore>[0]> = {}, access: Partial<CloudAccess> = {}) {
  const { account, accountKey } = azurite;
  return openAzureStore(
    { account, accountKey, container: 'slides', endpoint: proxy.origin, ...settings },
    { allowedOrigins: [proxy.origin], ...access },
  );
}
const large = Buffer.alloc(20 * 1024 * 1024, 'slide');
const put = (store: ObjectStore, key: string, body: Buffer | string = 'bytes') =>
  store.write(key, Readable.from([Buffer.from(body)]));

describeStoreContract('azure', async () => {
  await azurite.makeContainer('contract');
  const { account, accountKey, endpoint } = azurite;
  const store = openAzureStore(
    { account, accountKey, container: 'contract', endpoint },
    { allowedOrigins: [endpoint] },
  );
  return { store: withoutBackslash(store), close: () => store.close() };
});

/** The suite's one name with a backslash, which Azure does not have, written with a character that looks like it. */
function withoutBackslash(store: ObjectStore): ObjectStore {
  const there = (key: string) => key.replaceAll('\\', '⧵');
  const back = (info: ObjectInfo) => ({ ...info, key: info.key.replaceAll('⧵', '\\') });
  return {
    description: store.description,
    async *list({ prefix = '', signal } = {}) {
      const options = { prefix: there(prefix), ...(signal && { signal }) };
      for await (const page of store.list(options)) yield page.map(back);
    },
    head: async (key, options) => back(await store.head(there(key), options)),
    read: (key, options) => store.read(there(key), options),
    write: async (key, body, options) => back(await store.write(there(key), body, options)),
    delete: (key, options) => store.delete(there(key), options),
    presignRead: (key, options) => store.presignRead(there(key), options),
    check: (options) => store.check(options),
    close: () => store.close(),
  };
}

describe('an Azure container', () => {
  test.each(['a\\b', '..', '../contract/secret', 'a/./b', 'a/..'])(
    'does not take the key %j for another',
    async (key) => {
      const store = open();
      await expectKind(put(store, key), 'invalid-key');
      await expectKind(store.read(key), 'invalid-key');
      await expectKind(store.head(key), 'invalid-key');
      await expectKind(store.delete(key), 'invalid-key');
      await store.close();
    },
  );

  test('is opened with a SAS token as well, and does no more than it permits', async () => {
    const credential = new StorageSharedKeyCredential(azurite.account, azurite.accountKey);
    const expiresOn = new Date(Date.now() + 3_600_000);
    const permissions = ContainerSASPermissions.parse('rl');
    const sas = generateBlobSASQueryParameters({ containerName: 'slides', permissions, expiresOn }, credential);
    const owner = open();
    await put(owner, 'sas/a', 'by token');
    for (const sasToken of [sas.toString(), `?${sas}`]) {
      const store = open({ accountKey: undefined, sasToken });
      expect(await text(await store.read('sas/a'))).toBe('by token');
      await store.check();
      const refused = await put(store, 'sas/b').catch((error: unknown) => error);
      expect(refused).toMatchObject({ kind: 'denied' });
      expect(JSON.stringify([String(refused), refused])).not.toContain('sig=');
      await store.close();
    }
    await owner.close();
  });

  test('that is not there, or a wrong key, is told apart from a missing object', async () => {
    const missing = open({ container: 'nowhere' });
    await expectKind(missing.head('x'), 'failed');
    await expectKind(missing.check(), 'failed');
    const stranger = open({ accountKey: Buffer.alloc(64).toString('base64') });
    await expectKind(stranger.head('x'), 'denied');
    await expectKind(stranger.check(), 'denied');
    await expectKind(put(stranger, 'x'), 'denied');
    await missing.close();
    await stranger.close();
  });

  test('keeps media type and checksum with what it is given, in one request or in many', async () => {
    const store = open();
    const container = await azurite.makeContainer('facts');
    const facts = open({ container: 'facts' });
    for (const body of [Buffer.from('small'), large]) {
      await facts.write('x', Readable.from([body]), { contentType: 'image/tiff' });
      const { contentType, contentMD5 } = await container.getBlobClient('x').getProperties();
      expect(contentType).toBe('image/tiff');
      expect(contentMD5).toHaveLength(16);
    }
    await store.close();
    await facts.close();
  });

  test('an object without a checksum is read all the same', async () => {
    const container = await azurite.makeContainer('plain');
    const client = container.getBlockBlobClient('x');
    await client.stageBlock(Buffer.from('1').toString('base64'), 'foreign', 7);
    await client.commitBlockList([Buffer.from('1').toString('base64')]);
    const store = open({ container: 'plain' });
    expect(await text(await store.read('x'))).toBe('foreign');
    await store.close();
  });
});

describe('when the way to Azure is bad', () => {
  test('an answer of 503, a reset or a lost answer now and then does not matter', async () => {
    const store = open();
    for (const does of ['unavailable', 'reset', 'lose-answer'] as const) {
      proxy.add({ on: ({ method }) => method === 'PUT', does, afterBytes: 100_000 });
      await put(store, `bad/${does}`, large);
      proxy.add({ on: ({ method }) => method === 'HEAD', does });
      expect((await store.head(`bad/${does}`)).sizeBytes).toBe(large.length);
      proxy.add({ on: ({ path }) => path.includes('comp=list'), does });
      await store.check();
    }
    await store.close();
  });

  test('an answer of 503 or a reset that stays is transient, and nothing was written', async () => {
    const store = open();
    for (const does of ['unavailable', 'reset'] as const) {
      proxy.add({ on: () => true, does, times: 1000 });
      await expectKind(store.head('bad/never'), 'transient');
      await expectKind(put(store, 'bad/never', large), 'transient');
      await expectKind(put(store, 'bad/never'), 'transient');
      await expectKind(store.read('bad/never'), 'transient');
      await expectKind(store.delete('bad/never'), 'transient');
      await expectKind(store.list()[Symbol.asyncIterator]().next(), 'transient');
      proxy.clear();
      await expectKind(store.head('bad/never'), 'not-found');
    }
    await store.close();
  });

  test('a server that hangs is given up after the idle timeout, whatever it was doing', async () => {
    const writer = open();
    await put(writer, 'bad/hangs', large);
    await writer.close();
    const store = open({}, { idleTimeoutMs: 500 });
    proxy.add({ on: () => true, does: 'hang', times: 1000, afterBytes: 1_000_000 });
    const body = await store.read('bad/hangs');
    await expectKind(buffer(body), 'transient');
    await expectKind(put(store, 'bad/upload', large), 'transient');
    proxy.clear();
    proxy.add({ on: () => true, does: 'hang', times: 1000 });
    for (const call of [store.head('x'), store.read('x'), store.check(), store.delete('x'), put(store, 'x')]) {
      await expectKind(call, 'transient');
    }
    await store.close();
  });

  test('a slow reader is not taken for a cloud that hangs', async () => {
    const writer = open();
    await put(writer, 'slow/reader', large);
    const store = open({}, { idleTimeoutMs: 1000 });
    const body = await store.read('slow/reader');
    await setTimeout(3000);
    expect((await buffer(body)).equals(large)).toBe(true);
    await writer.close();
    await store.close();
  });

  test.each(['reset', 'truncate', 'corrupt'] as const)(
    'a body with a fault (%s) ends in a transient error',
    async (does) => {
      const store = open();
      await put(store, 'bad/body', large);
      proxy.add({ on: ({ method }) => method === 'GET', does, afterBytes: 3_000_000 });
      await expectKind(buffer(await store.read('bad/body')), 'transient');
      expect((await buffer(await store.read('bad/body'))).equals(large)).toBe(true);
      await store.close();
    },
  );

  test('bytes that change on their way to Azure are not stored', async () => {
    const store = open();
    for (const body of [Buffer.from('small'), large]) {
      proxy.add({ on: ({ method }) => method === 'PUT', does: 'corrupt' });
      await expect(put(store, 'corrupt/upload', body)).rejects.toMatchObject({ name: 'ObjectError' });
      await expectKind(store.head('corrupt/upload'), 'not-found');
    }
    await store.close();
  });
});

describe('what Azure may be reached by', () => {
  test('a name that resolves to a metadata address is refused, and the message says so', async () => {
    const endpoint = 'http://scanner.example:10000';
    const lookup: CloudAccess['lookup'] = (_, __, callback) =>
      callback(null, [{ address: '169.254.169.254', family: 4 }]);
    const store = open({ endpoint }, { allowedOrigins: [endpoint], lookup });
    await expect(store.check()).rejects.toMatchObject({ kind: 'denied', message: expect.stringMatching(/metadata/) });
    await store.close();
  });

  test('an endpoint that nobody opened is refused though it would answer', async () => {
    const store = open({}, { allowedOrigins: [] });
    await expectKind(store.check(), 'denied');
    await store.close();
  });

  test('a redirect to another origin is not followed', async () => {
    const store = open();
    const before = proxy.requests.length;
    const other = await startFaultyProxy(azurite.endpoint);
    proxy.add({ on: ({ method }) => method === 'GET', does: 'redirect', location: `${other.origin}/stolen` });
    await expect(store.check()).rejects.toMatchObject({ name: 'ObjectError' });
    expect(proxy.requests.length).toBe(before + 1);
    expect(other.requests).toEqual([]);
    await other.stop();
    await store.close();
  });

  test('a proxy in the environment is no way around', async () => {
    const elsewhere = await startFaultyProxy(azurite.endpoint);
    const { HTTP_PROXY, HTTPS_PROXY } = process.env;
    process.env.HTTP_PROXY = process.env.HTTPS_PROXY = elsewhere.origin;
    try {
      const store = open({}, { allowedOrigins: [] });
      await expectKind(store.check(), 'denied');
      await store.close();
      const opened = open();
      await opened.check();
      await opened.close();
      expect(elsewhere.requests).toEqual([]);
    } finally {
      Object.assign(process.env, { HTTP_PROXY, HTTPS_PROXY });
      if (HTTP_PROXY === undefined) delete process.env.HTTP_PROXY;
      if (HTTPS_PROXY === undefined) delete process.env.HTTPS_PROXY;
      await elsewhere.stop();
    }
  });

  test('secrets are in no error', async () => {
    const accountKey = Buffer.from('the secret of the account'.repeat(3)).toString('base64');
    const store = open({ accountKey });
    const error = await store.check().catch((refused: Error) => refused);
    expect(JSON.stringify([error, String(error), (error as Error).stack])).not.toContain(accountKey.slice(0, 20));
    expect((error as Error).cause).toBeUndefined();
    await store.close();
  });
});
