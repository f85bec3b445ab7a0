import { createHash } from 'node:crypto';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { type AddressInfo, connect } from 'node:net';
import { buffer } from 'node:stream/consumers';
import { crc32 } from 'node:zlib';
import { expect, onTestFinished, test, vi } from 'vitest';
import { openS3Store } from './s3.ts';
import { createAgents } from './s3-http.ts';

const content = Buffer.from('hello');
const md5 = createHash('md5').update(content).digest('hex');
const credentials = { accessKeyId: 'key-id', secretAccessKey: 'secret-access-key' };

type Headers = Record<string, string | number>;

/** A store that gives every request this answer, and what was asked of it. */
async function startStore(answer: (request: IncomingMessage) => { status?: number; headers?: Headers; body?: Buffer }) {
  const asked: IncomingMessage[] = [];
  const server = createServer((request: IncomingMessage, response: ServerResponse) => {
    asked.push(request);
    const { status = 200, headers = {}, body = content } = answer(request);
    response.writeHead(status, { etag: `"${md5}"`, 'content-length': body.length, ...headers }).end(body);
  });
  let connections = 0;
  server.on('connection', () => connections++);
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  onTestFinished(() => {
    server.closeAllConnections();
    server.close();
  });
  const { port } = server.address() as AddressInfo;
  return { asked, port, connections: () => connections };
}

function open(port: number) {
  const endpoint = `http://127.0.0.1:${port}`;
  const store = openS3Store({ credentials, bucket: 'bucket', endpoint, forcePathStyle: true });
  onTestFinished(() => store.close());
  return store;
}

async function readWholes(port: number, times: number, ifMatch = md5): Promise<string[]> {
  const store = open(port);
  const found: string[] = [];
  for (let n = 0; n < times; n++) found.push(String(await buffer(await store.read(`key ${n}`, { ifMatch }))));
  return found;
}

const hellos = (times: number) => Array.from({ length: times }, () => 'hello');

test('a whole object of a known MD5 takes one request, which says who asks, and the connection serves again', async () => {
  const store = await startStore(() => ({}));
  expect(await readWholes(store.port, 5)).toEqual(hellos(5));
  expect(store.asked.map(({ headers }) => headers['user-agent'])).toEqual(Array(5).fill('study-data-service'));
  expect(store.connections()).toBe(1);
});

test('objects that are encrypted with a key of KMS are asked for once, after the first has told so', async () => {
  const store = await startStore(() => ({ headers: { 'x-amz-server-side-encryption': 'aws:kms' } }));
  expect(await readWholes(store.port, 5)).toEqual(hellos(5));
  expect(store.asked).toHaveLength(6);
});

test('where the store has a checksum that is not its ETag, that is what the bytes are compared with', async () => {
  const checksum = Buffer.alloc(4);
  const etag = 'f'.repeat(32);
  const store = await startStore(({ headers }) => ({
    headers: {
      etag: `"${etag}"`,
      ...(headers['x-amz-checksum-mode'] && { 'x-amz-checksum-crc32': checksum.toString('base64') }),
    },
  }));
  checksum.writeUInt32BE(crc32(content));
  expect(await readWholes(store.port, 2, etag)).toEqual(hellos(2));
  checksum.writeUInt32BE(crc32('other'));
  await expect(readWholes(store.port, 1, etag)).rejects.toMatchObject({ kind: 'transient' });
});

test('objects that have changed, or are not there, use the same connections', async () => {
  let status = 412;
  const store = await startStore(() => ({ status, body: Buffer.from('<Error/>') }));
  const opened = open(store.port);
  for (let n = 0; n < 5; n++)
    await expect(opened.read('key', { ifMatch: md5 })).rejects.toMatchObject({ kind: 'changed' });
  status = 404;
  await expect(opened.read('key', { start: 0, end: 1 })).rejects.toMatchObject({ kind: 'not-found' });
  // The SDK asks again, on a second one while the first answer is taken in.
  expect(store.connections()).toBeLessThanOrEqual(2);
});

test('no request goes past the endpoint that the environment names', async () => {
  const elsewhere = await startStore(() => ({ status: 404 }));
  const store = await startStore(() => ({ status: 206, headers: { 'content-range': 'bytes 0-4/5' } }));
  vi.stubEnv('AWS_ENDPOINT_URL_S3', `http://127.0.0.1:${store.port}`);
  vi.stubEnv('AWS_ACCESS_KEY_ID', credentials.accessKeyId);
  vi.stubEnv('AWS_SECRET_ACCESS_KEY', credentials.secretAccessKey);
  onTestFinished(() => void vi.unstubAllEnvs());
  const agents = createAgents();
  // Stands for the public host of the region.
  agents.httpsAgent.createConnection = () => connect(elsewhere.port, '127.0.0.1');
  const opened = openS3Store({ bucket: 'bucket', region: 'eu-west-1', forcePathStyle: true, agents });
  onTestFinished(() => opened.close());
  for (let n = 0; n < 3; n++) await buffer(await opened.read('key', { start: 0, end: 4 }));
  expect([store.asked.length, elsewhere.asked.length]).toEqual([3, 0]);
});
