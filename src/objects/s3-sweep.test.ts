import { CreateMultipartUploadCommand, S3Client } from '@aws-sdk/client-s3';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { type S3Server, startS3Server } from '../../test/peers/s3-server.ts';
import { expectKind } from './contract.ts';
import { openS3Store } from './s3.ts';
import type { OwnStore } from './store.ts';

const credentials = { accessKeyId: 'key-id', secretAccessKey: 'secret-access-key' };
const hourMs = 3_600_000;
const prefixes = ['exports/', 'images/'];
let own: S3Server;
let client: S3Client;
let swept: OwnStore;

beforeEach(async () => {
  own = await startS3Server({ ...credentials, buckets: ['bucket'], pageSize: 2 });
  const access = { credentials, endpoint: own.url, forcePathStyle: true };
  client = new S3Client({ ...access, region: 'us-east-1' });
  swept = openS3Store({ ...access, bucket: 'bucket', prefix: 'ours' });
});
afterEach(async () => {
  client.destroy();
  await swept.close();
  await own.close();
});

/** An upload that was begun so long ago, and that nobody goes on with. */
async function begin(Key: string, ageMs = 25 * hourMs): Promise<void> {
  const { UploadId = '' } = await client.send(new CreateMultipartUploadCommand({ Bucket: 'bucket', Key }));
  const upload = own.uploads('bucket').get(UploadId);
  if (upload) upload.initiatedDate = new Date(Date.now() - ageMs);
}
const open = () => [...own.uploads('bucket').values()].map(({ key }) => key).sort();

test('a sweep aborts uploads that nobody completed for a day, and no younger ones', async () => {
  await begin('ours/images/25-hours', 25 * hourMs);
  await begin('ours/images/23-hours', 23 * hourMs);
  expect(await swept.sweep({ prefixes })).toBe(1);
  expect(open()).toEqual(['ours/images/23-hours']);
  expect(await swept.sweep({ prefixes, olderThanMs: 22 * hourMs })).toBe(1);
  expect(open()).toEqual([]);
  expect(await swept.sweep({ prefixes })).toBe(0);
});

test('a sweep keeps to what is its own', async () => {
  const others = ['exports/a', 'images/a', 'ours/other', 'ours2/images/a', 'theirs/images/a'];
  for (const key of [...others, 'ours/exports/a', 'ours/images/a']) await begin(key);
  expect(await swept.sweep({ prefixes })).toBe(2);
  expect(open()).toEqual(others);
});

test('a sweep works through page after page, also where one ends between uploads of one key', async () => {
  for (const name of ['a', 'b', 'b', 'b', 'b', 'c']) await begin(`ours/images/${name}`);
  for (const name of ['a', 'b', 'b', 'd']) await begin(`ours/images/${name}`, 0);
  expect(await swept.sweep({ prefixes: ['images/'] })).toBe(6);
  expect(open()).toEqual(['a', 'b', 'b', 'd'].map((name) => `ours/images/${name}`));
  expect(own.stats.requests.uploads).toBe(5);
});

test('a sweep that may not abort one upload aborts the others, and then fails', async () => {
  for (const name of ['exports/a', 'exports/b', 'exports/c', 'exports/d']) await begin(`ours/${name}`);
  own.faults.add({ on: 'abort', does: 'denied', key: (key) => key.endsWith('a') });
  await expectKind(swept.sweep({ prefixes }), 'denied');
  expect(open()).toEqual(['ours/exports/a']);
  expect(await swept.sweep({ prefixes })).toBe(1);
});

test('a sweep does not mind that an upload has gone meanwhile', async () => {
  await begin('ours/images/a');
  own.faults.add({ on: 'abort', does: 'lose-answer' });
  expect(await swept.sweep({ prefixes })).toBe(0);
  expect(open()).toEqual([]);
});

test('a sweep ends when it is stopped', async () => {
  await begin('ours/images/a');
  const hang = own.faults.add({ on: 'abort', does: 'hang' });
  const abort = new AbortController();
  const reason = new Error('stop');
  const sweeping = swept.sweep({ prefixes, signal: abort.signal });
  while (hang.hits === 0) await new Promise((resolve) => setImmediate(resolve));
  abort.abort(reason);
  await expect(sweeping).rejects.toBe(reason);
});
