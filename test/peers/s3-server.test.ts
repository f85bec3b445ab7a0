import { createHash, randomBytes } from 'node:crypto';
import { request } from 'node:http';
import { Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import {
  CopyObjectCommand,
  CreateMultipartUploadCommand,
  DeleteObjectsCommand,
  GetObjectCommand,
  ListMultipartUploadsCommand,
  ListObjectsV2Command,
  ListPartsCommand,
  PutObjectCommand,
  S3Client,
  type S3ClientConfig,
} from '@aws-sdk/client-s3';
import { Upload } from '@aws-sdk/lib-storage';
import { getSignedUrl } from '@aws-sdk/s3-request-presigner';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type S3Server, startS3Server } from './s3-server.ts';

const credentials = { accessKeyId: 'key-id', secretAccessKey: 'secret-access-key' };
const Bucket = 'bucket';
let server: S3Server;
let client: S3Client;

const connect = (options: S3ClientConfig = {}) =>
  new S3Client({
    credentials,
    endpoint: server.url,
    forcePathStyle: true,
    region: 'eu-central-1',
    maxAttempts: 1,
    ...options,
  });

beforeAll(async () => {
  server = await startS3Server({ ...credentials, buckets: [Bucket] });
  client = connect();
});
afterAll(async () => {
  client.destroy();
  await server.close();
});

/** Status and S3's code of a hand-made request. */
async function raw(method: string, url: string, headers: Record<string, string> = {}, body?: Buffer) {
  return new Promise<{ status: number; code: string | undefined }>((resolve, reject) => {
    const outgoing = request(url, { method, headers }, async (response) => {
      const code = /<Code>(\w+)</.exec((await buffer(response)).toString())?.[1];
      resolve({ status: response.statusCode ?? 0, code });
    });
    outgoing.on('error', reject).end(body);
  });
}

/** Headers that the SDK signs for a put of `body`, as they go over the wire. */
async function signedPut(
  body: Buffer,
  { date, withMd5 = true }: { date?: Date; withMd5?: boolean } = {},
): Promise<Record<string, string>> {
  let seen: Record<string, string> = {};
  const spy = connect(date ? { systemClockOffset: date.getTime() - Date.now() } : {});
  spy.middlewareStack.add(
    (next) => (args) => {
      seen = { ...(args.request as { headers: Record<string, string> }).headers };
      return next(args);
    },
    { step: 'finalizeRequest', name: 'spy', priority: 'low' },
  );
  await spy
    .send(new PutObjectCommand({ Bucket, Key: 'signed', Body: body, ContentMD5: withMd5 ? md5(body) : undefined }))
    .catch(() => undefined);
  spy.destroy();
  return seen;
}

const md5 = (body: Buffer) => createHash('md5').update(body).digest('base64');

describe('the S3 server of the tests', () => {
  test('takes what the SDK sends by itself: signed streams, checksums in trailers, parts', async () => {
    const body = randomBytes(12_000_000);
    await client.send(
      new PutObjectCommand({
        Bucket,
        Key: 'stream',
        Body: Readable.from([body.subarray(0, 100_000), body.subarray(100_000)]),
        ContentLength: body.length,
      }),
    );
    expect((await server.body(Bucket, 'stream')).equals(body)).toBe(true);
    const upload = new Upload({ client, params: { Bucket, Key: 'parts', Body: Readable.from([body]) } });
    await upload.done();
    expect((await server.body(Bucket, 'parts')).equals(body)).toBe(true);
    expect(server.objects(Bucket).get('parts')?.etag).toMatch(/^[0-9a-f]{32}-3$/);
    const { Body } = await client.send(new GetObjectCommand({ Bucket, Key: 'stream', ChecksumMode: 'ENABLED' }));
    expect((await buffer(Body as Readable)).equals(body)).toBe(true);
  });

  test('refuses a wrong secret, an unknown key, a changed request and a wrong clock', async () => {
    const wrong = connect({ credentials: { ...credentials, secretAccessKey: 'other' } });
    await expect(wrong.send(new ListObjectsV2Command({ Bucket }))).rejects.toMatchObject({
      name: 'SignatureDoesNotMatch',
      $metadata: { httpStatusCode: 403 },
    });
    const unknown = connect({ credentials: { ...credentials, accessKeyId: 'other' } });
    await expect(unknown.send(new ListObjectsV2Command({ Bucket }))).rejects.toMatchObject({
      name: 'InvalidAccessKeyId',
    });

    const body = Buffer.from('body');
    const headers = await signedPut(body);
    const url = `${server.url}/${Bucket}/signed?x-id=PutObject`;
    expect(await raw('PUT', url, headers, body)).toMatchObject({ status: 200 });
    expect(await raw('PUT', url.replace('signed', 'other'), headers, body)).toEqual({
      status: 403,
      code: 'SignatureDoesNotMatch',
    });
    expect(await raw('PUT', url, { ...headers, 'x-amz-meta-a': 'b' }, body)).toEqual({
      status: 403,
      code: 'AccessDenied',
    });
    expect(await raw('PUT', url, headers, Buffer.from('bodx'))).toEqual({ status: 400, code: 'BadDigest' });
    const hashed = await signedPut(body, { withMd5: false });
    expect(await raw('PUT', url, hashed, Buffer.from('bodx'))).toEqual({
      status: 400,
      code: 'XAmzContentSHA256Mismatch',
    });
    expect(await raw('PUT', url, {}, body)).toEqual({ status: 403, code: 'AccessDenied' });
    const late = await signedPut(body, { date: new Date(Date.now() - 16 * 60_000) });
    expect(await raw('PUT', url, late, body)).toEqual({ status: 403, code: 'RequestTimeTooSkewed' });
    wrong.destroy();
    unknown.destroy();
  });

  test('serves presigned links until they expire', async () => {
    await client.send(new PutObjectCommand({ Bucket, Key: 'link', Body: 'linked' }));
    const command = new GetObjectCommand({ Bucket, Key: 'link', ResponseContentType: 'text/plain' });
    const link = await getSignedUrl(client, command, { expiresIn: 60 });
    const response = await fetch(link);
    expect([response.status, await response.text()]).toEqual([200, 'linked']);
    expect(response.headers.get('content-type')).toBe('text/plain');
    expect((await fetch(link.replace('text%2Fplain', 'text%2Fhtml'))).status).toBe(403);
    const signingDate = new Date(Date.now() - 61_000);
    expect((await fetch(await getSignedUrl(client, command, { expiresIn: 60, signingDate }))).status).toBe(403);
  });

  test('lists with folders, after a key, and in pages', async () => {
    for (const Key of ['list/a', 'list/b/1', 'list/b/2', 'list/c', 'list/é +%'])
      await client.send(new PutObjectCommand({ Bucket, Key, Body: Key }));
    const list = async (input: object) => {
      const page = await client.send(new ListObjectsV2Command({ Bucket, Prefix: 'list/', ...input }));
      return {
        keys: (page.Contents ?? []).map(({ Key }) => Key),
        folders: (page.CommonPrefixes ?? []).map(({ Prefix }) => Prefix),
        next: page.NextContinuationToken,
      };
    };
    expect(await list({ Delimiter: '/' })).toMatchObject({
      keys: ['list/a', 'list/c', 'list/é +%'],
      folders: ['list/b/'],
    });
    expect((await list({ StartAfter: 'list/b/1' })).keys).toEqual(['list/b/2', 'list/c', 'list/é +%']);
    const first = await list({ MaxKeys: 2, Delimiter: '/' });
    expect(first).toMatchObject({ keys: ['list/a'], folders: ['list/b/'] });
    const second = await list({ MaxKeys: 2, Delimiter: '/', ContinuationToken: first.next });
    expect(second).toEqual({ keys: ['list/c', 'list/é +%'], folders: [], next: undefined });
  });

  test('copies, deletes many, and tells of open uploads and their parts', async () => {
    await client.send(new PutObjectCommand({ Bucket, Key: 'copy/a b', Body: 'copied' }));
    await client.send(new CopyObjectCommand({ Bucket, Key: 'copy/c', CopySource: `${Bucket}/copy/a%20b` }));
    expect((await server.body(Bucket, 'copy/c')).toString()).toBe('copied');
    const Objects = [{ Key: 'copy/a b' }, { Key: 'copy/c' }, { Key: 'copy/none' }];
    await client.send(new DeleteObjectsCommand({ Bucket, Delete: { Objects } }));
    expect([...server.objects(Bucket).keys()].filter((key) => key.startsWith('copy/'))).toEqual([]);

    const hang = server.faults.add({ on: 'complete', does: 'hang' });
    const params = { Bucket, Key: 'open', Body: randomBytes(6_000_000) };
    const upload = new Upload({ client, params, leavePartsOnError: true });
    const done = upload.done();
    while (hang.hits === 0) await new Promise((resolve) => setImmediate(resolve));
    const { Uploads } = await client.send(new ListMultipartUploadsCommand({ Bucket }));
    expect(Uploads).toMatchObject([{ Key: 'open', Initiated: expect.any(Date) }]);
    expect(server.stats.openUploads).toBe(1);
    const UploadId = Uploads?.[0]?.UploadId;
    const { Parts } = await client.send(new ListPartsCommand({ Bucket, Key: 'open', UploadId }));
    expect(Parts).toMatchObject([
      { PartNumber: 1, Size: 5_242_880 },
      { PartNumber: 2, Size: 757_120 },
    ]);
    hang.remove();
    await done;
    expect(server.stats.openUploads).toBe(0);
  });

  test('lists open uploads below a prefix in pages, in the order of their keys and ids', async () => {
    for (const Key of ['pages/b', 'pages/a', 'other', 'pages/a', 'pages/c'])
      await client.send(new CreateMultipartUploadCommand({ Bucket, Key }));
    const list = (more = {}) =>
      client.send(new ListMultipartUploadsCommand({ Bucket, Prefix: 'pages/', MaxUploads: 1, ...more }));
    const seen: string[] = [];
    for (let page = await list(); ; ) {
      seen.push(...(page.Uploads ?? []).map(({ Key, UploadId }) => `${Key} ${UploadId}`));
      if (!page.IsTruncated) break;
      page = await list({ KeyMarker: page.NextKeyMarker, UploadIdMarker: page.NextUploadIdMarker });
    }
    const ours = [...server.uploads(Bucket).values()].filter(({ key }) => key.startsWith('pages/'));
    expect(seen).toEqual(ours.map(({ key, id }) => `${key} ${id}`).sort());
    // Without an id, what comes after the key.
    const { Uploads } = await list({ KeyMarker: 'pages/a', MaxUploads: 9 });
    expect(Uploads?.map(({ Key }) => Key)).toEqual(['pages/b', 'pages/c']);
    server.uploads(Bucket).clear();
  });

  test('fails as often as it is told, and counts', async () => {
    const fault = server.faults.add({ on: 'get', does: 'slow-down', times: 2, key: (key) => key === 'stream' });
    const before = server.stats.requests.get;
    const read = (Key: string) => client.send(new GetObjectCommand({ Bucket, Key, Range: 'bytes=0-0' }));
    await expect(read('stream')).rejects.toMatchObject({ name: 'SlowDown' });
    await read('parts').then(({ Body }) => buffer(Body as Readable));
    await expect(read('stream')).rejects.toMatchObject({ name: 'SlowDown' });
    await read('stream').then(({ Body }) => buffer(Body as Readable));
    expect([fault.hits, server.stats.requests.get - before]).toEqual([2, 4]);
    server.faults.add({ on: 'get', does: 'slow-down', after: 1 });
    await read('stream').then(({ Body }) => buffer(Body as Readable));
    await expect(read('stream')).rejects.toMatchObject({ name: 'SlowDown' });
  });
});
