import { mkdtemp, readdir, rm, utimes, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { expect, test } from 'vitest';
import { startS3Server } from '../../test/peers/s3-server.ts';
import { openStore, readS3Url } from './open.ts';

test('a file URL opens a directory, made where it is missing, which sweeps what died there', async () => {
  const dir = await mkdtemp(join(tmpdir(), 'objects-'));
  const url = `file:${dir}/a b/objects`;
  const store = await openStore(url);
  await store.write('key', Readable.from(['x']));
  const orphan = join(dir, 'a b/objects/.incoming/orphan');
  await writeFile(orphan, 'half');
  await utimes(orphan, 0, 0);
  const again = await openStore(url);
  expect(await again.sweep({ prefixes: [] })).toBe(1);
  expect(await readdir(join(dir, 'a b/objects/.incoming'))).toEqual([]);
  expect((await again.head('key')).sizeBytes).toBe(1);
  await rm(dir, { recursive: true });
});

test('an S3 URL is read into its parts', () => {
  expect(readS3Url('s3://bucket')).toEqual({ bucket: 'bucket', prefix: '', forcePathStyle: false });
  expect(
    readS3Url('s3://my.bucket/a/b%20c?region=eu-central-1&endpoint=http://localhost:9000&forcePathStyle=true'),
  ).toEqual({
    bucket: 'my.bucket',
    prefix: 'a/b c',
    region: 'eu-central-1',
    endpoint: 'http://localhost:9000',
    forcePathStyle: true,
  });
});

test('the keys of an S3 URL come from the environment', async () => {
  const keys = { accessKeyId: 'from-environment', secretAccessKey: 'secret' };
  const server = await startS3Server({ ...keys, buckets: ['bucket'] });
  Object.assign(process.env, { AWS_ACCESS_KEY_ID: keys.accessKeyId, AWS_SECRET_ACCESS_KEY: keys.secretAccessKey });
  const store = await openStore(`s3://bucket/prefix?endpoint=${server.url}&forcePathStyle=true`);
  await store.write('key', Readable.from(['x']));
  expect([...server.objects('bucket').keys()]).toEqual(['prefix/key']);
  delete process.env.AWS_ACCESS_KEY_ID;
  delete process.env.AWS_SECRET_ACCESS_KEY;
  await store.close();
  await server.close();
});

test('an S3 URL opens a store without a call', async () => {
  const store = await openStore('s3://bucket/prefix?region=eu-central-1');
  expect(store.description).toBe('s3://bucket/prefix/');
  await store.close();
});

test.each([
  ['file:relative/dir', 'absolute'],
  ['ftp://host/dir', 'neither'],
  ['s3:///prefix', 'names no bucket'],
  ['s3://bucket?regoin=eu', 'unknown parameters: regoin'],
  ['s3://bucket?endpoint=localhost:9000', 'endpoint'],
  ['s3://bucket?forcePathStyle=yes', 'forcePathStyle'],
  ['s3://key:top-secret@bucket', 'must not hold keys'],
])('the object store %s is refused', async (url, reason) => {
  const failure: unknown = await openStore(url).catch((error: unknown) => error);
  expect(failure).toMatchObject({ kind: 'failed', message: expect.stringContaining(reason) });
  expect(String(failure)).not.toContain('top-secret');
});
