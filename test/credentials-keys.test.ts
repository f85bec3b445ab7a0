import { randomBytes } from 'node:crypto';
import { existsSync } from 'node:fs';
import { mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { rotate, sealedColumns } from '../src/cli/keys.ts';
import { readEnv } from '../src/config.ts';
import { masterKeyId } from '../src/lib/crypto.ts';
import { type S3Server, startS3Server } from './peers/s3-server.ts';
import { type Json, startService, type TestService } from './service.ts';

const path = '/cloud/credentials';
const keys = { accessKeyId: 'test-key-id', secretAccessKey: 'test-secret-access-key' };
const secret = { secretAccessKey: keys.secretAccessKey };

let dir: string;
let s3: S3Server;
let services: TestService[];
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'sds-keys-'));
  s3 = await startS3Server({ ...keys, buckets: ['slides'] });
  services = [];
});
afterEach(async () => {
  for (const service of services) await service.close();
  await s3.close();
  await rm(dir, { recursive: true, force: true });
});

async function start(env: Record<string, string>): Promise<TestService> {
  const service = await startService({ SDS_WORKERS: '0', SDS_CLOUD_ENDPOINTS: s3.url, ...env });
  services.push(service);
  return service;
}

async function store(service: TestService): Promise<string> {
  const settings = { region: 'us-east-1', bucket: 'slides', endpoint: s3.url, forcePathStyle: true };
  const answer = await service.call('POST', path, {
    name: 'Slides',
    provider: 'S3',
    settings: { ...settings, accessKeyId: keys.accessKeyId },
    secret,
  });
  expect(answer.status, answer.text).toBe(201);
  return answer.body.credentialId;
}

const validate = async (service: TestService, id: string): Promise<Json> =>
  (await service.call('POST', `${path}/${id}:validate`)).body;

/** `sds keys rotate --master` on the database of `service`. */
async function rotateMaster(service: TestService, env: Record<string, string>, newKey?: string): Promise<Json> {
  const outcome = await rotate.run({
    arguments: [],
    options: { master: true, ...(newKey && { 'new-key': newKey }) },
    json: true,
    settings: () => readEnv({ SDS_DATABASE_URL: service.databaseUrl, ...env }, dir),
    signal: new AbortController().signal,
    stdout: new PassThrough(),
    say: () => {},
  });
  return outcome?.value;
}

const keyIds = async (service: TestService): Promise<string[]> =>
  (
    await service.pool.query(
      'select distinct master_key_id as id from credentials union select master_key_id from signing_keys',
    )
  ).rows.map((row) => row.id);

const text = (key: Buffer) => key.toString('base64');

test('every column that is encrypted by the master key is known to the rotation', async () => {
  const service = await start({});
  const { rows } = await service.pool.query(
    `select table_name from information_schema.columns where column_name = 'master_key_id' order by 1`,
  );
  expect(rows.map((row) => row.table_name)).toEqual(sealedColumns.map(({ table }) => table).toSorted());
});

test('the master key in a file is replaced while the service runs: everything goes on, before and after a restart', async () => {
  const keyFile = join(dir, 'master.key');
  const old = randomBytes(32);
  await writeFile(keyFile, text(old), { mode: 0o600 });
  const env = { SDS_MASTER_KEY: '', SDS_MASTER_KEY_FILE: keyFile };
  const service = await start(env);
  const ids = await Promise.all(Array.from({ length: 20 }, () => store(service)));
  const before = await Promise.all(ids.map(async (id) => (await service.call('GET', `${path}/${id}`)).body));

  // Clients keep on using and storing secrets all the while.
  let rotated = false;
  const written: string[] = [];
  const clients = Array.from({ length: 4 }, async (_, i) => {
    for (let n = 0; !rotated || n < 3; n++) {
      const outcome = await validate(service, ids[(i + 4 * n) % ids.length] as string);
      expect(outcome.valid, outcome.detail).toBe(true);
      written.push(await store(service));
    }
  });
  const value = await rotateMaster(service, { SDS_MASTER_KEY_FILE: keyFile }).finally(() => {
    rotated = true;
  });
  await Promise.all(clients);

  expect(value.masterKeyFile).toBe(keyFile);
  expect(value.reencrypted).toBeGreaterThan(20);
  const key = Buffer.from(await readFile(keyFile, 'utf8'), 'base64');
  expect(key.equals(old)).toBe(false);
  expect((await stat(keyFile)).mode & 0o777).toBe(0o600);
  expect(existsSync(`${keyFile}.new`)).toBe(false);
  expect(await keyIds(service)).toEqual([masterKeyId(key)]);
  for (const id of [...ids, ...written]) expect((await validate(service, id)).valid).toBe(true);
  const after = await Promise.all(ids.map(async (id) => (await service.call('GET', `${path}/${id}`)).body));
  const bare = (records: Json[]) => records.map(({ lastValidation, ...record }) => record);
  expect(bare(after)).toEqual(bare(before));

  await service.restart();
  for (const id of [...ids.slice(0, 2), ...written.slice(-2)]) expect((await validate(service, id)).valid).toBe(true);
}, 60_000);

test('a rotation that was cut off before the file was replaced leaves nodes that start and go on, and is finished by the next', async () => {
  const keyFile = join(dir, 'master.key');
  await writeFile(keyFile, text(randomBytes(32)), { mode: 0o600 });
  const service = await start({ SDS_MASTER_KEY: '', SDS_MASTER_KEY_FILE: keyFile });
  const id = await store(service);
  // The same as far as it got: another file to be renamed afterwards.
  await rotateMaster(service, { SDS_MASTER_KEY_FILE: keyFile }, `${keyFile}.new`);
  expect(existsSync(`${keyFile}.new`)).toBe(true);
  expect((await validate(service, id)).valid).toBe(true);
  await service.restart();
  expect((await validate(service, id)).valid).toBe(true);
  await store(service);
  expect(await keyIds(service)).toHaveLength(1);
  const value = await rotateMaster(service, { SDS_MASTER_KEY_FILE: keyFile });
  expect(value).toEqual({ masterKeyFile: keyFile, reencrypted: 0 });
  await service.restart();
  expect((await validate(service, id)).valid).toBe(true);
});

test('nodes with the keys in their environment go on when they have both, in whatever order', async () => {
  const [old, next] = [text(randomBytes(32)), text(randomBytes(32))];
  const service = await start({ SDS_MASTER_KEY: old });
  const id = await store(service);
  await service.restart({ SDS_MASTER_KEY: `${next},${old}` });
  const meanwhile = await store(service);
  // It encrypts by the old one until all nodes can have the new one.
  expect(await keyIds(service)).toEqual([masterKeyId(Buffer.from(old, 'base64'))]);
  await service.restart({ SDS_MASTER_KEY: `${old},${next}` });
  const value = await rotateMaster(service, { SDS_MASTER_KEY: `${next},${old}` });
  expect(value).toEqual({ masterKeyFile: null, reencrypted: 3 });
  expect((await validate(service, id)).valid).toBe(true);
  const after = await store(service);
  expect(await keyIds(service)).toEqual([masterKeyId(Buffer.from(next, 'base64'))]);
  await service.restart({ SDS_MASTER_KEY: next });
  for (const one of [id, meanwhile, after]) expect((await validate(service, one)).valid).toBe(true);
});

test('a node without the new key stores no secret, says why it cannot use one, and goes on with the rest', async () => {
  const [old, next] = [text(randomBytes(32)), text(randomBytes(32))];
  const service = await start({ SDS_MASTER_KEY: old });
  const id = await store(service);
  await rotateMaster(service, { SDS_MASTER_KEY: `${next},${old}` });
  const outcome = await validate(service, id);
  expect(outcome.checks.at(-1)).toMatchObject({ name: 'authenticate', ok: false });
  expect(outcome.detail).toContain(masterKeyId(Buffer.from(next, 'base64')));
  const record = (await service.call('GET', `${path}/${id}`)).body;
  expect((await service.call('PUT', `${path}/${id}`, { ...record, name: 'New' })).status).toBe(200);
  expect((await service.call('PUT', `${path}/${id}`, { ...record, secret })).status).toBe(500);
  expect((await service.call('GET', '/studies')).status).toBe(200);
});

test('a secret that cannot be decrypted stops the rotation, which names it and encrypts nothing', async () => {
  const [old, next] = [text(randomBytes(32)), text(randomBytes(32))];
  const service = await start({ SDS_MASTER_KEY: `${old},${next}` });
  const [good, bad] = [await store(service), await store(service)];
  await service.pool.query(
    'update credentials set encrypted_secret = (select encrypted_secret from credentials where credential_id = $1) where credential_id = $2',
    [good, bad],
  );
  const env = { SDS_MASTER_KEY: `${next},${old}` };
  await expect(rotateMaster(service, env)).rejects.toThrow(`credential:${bad}`);
  expect(await keyIds(service)).toEqual([masterKeyId(Buffer.from(old, 'base64'))]);
  expect((await validate(service, good)).valid).toBe(true);
  await service.call('DELETE', `${path}/${bad}`);
  expect((await rotateMaster(service, env)).reencrypted).toBe(2);
  expect((await validate(service, good)).valid).toBe(true);
});
