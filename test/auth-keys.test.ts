import { randomBytes } from 'node:crypto';
import { decodeProtectedHeader } from 'jose';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { createClient, type NewSecret } from '../src/auth/clients.ts';
import { Keyring, rotateKeys, signingKeySecrets } from '../src/auth/keys.ts';
import { replaceMasterKey } from '../src/db/master-key.ts';
import { masterKeyId } from '../src/lib/crypto.ts';
import { MasterKeys } from '../src/lib/master-keys.ts';
import { type AuthNode, authenticate, masterKey, startNode, tokenOf, useDatabase } from './auth-fixture.ts';

const database = useDatabase();
let client: NewSecret;
const nodes: AuthNode[] = [];

beforeAll(async () => {
  client = await createClient(database.pool, { name: 'test', scopes: ['Study:Read'] });
});
beforeEach(async () => {
  await database.pool.query('delete from signing_keys');
  await database.pool.query('update master_key set key_id = $1', [masterKeyId(masterKey.first)]);
});
afterAll(() => Promise.all(nodes.map((node) => node.close())));

async function node(options = {}): Promise<AuthNode> {
  const started = await startNode(database.pool, options);
  nodes.push(started);
  return started;
}

async function published(at: AuthNode): Promise<(string | undefined)[]> {
  const response = await fetch(`${at.url}/.well-known/jwks.json`);
  return ((await response.json()) as { keys: { kid?: string }[] }).keys.map((key) => key.kid);
}

/** Puts the private halves under another master key. */
const reencryptKeys = (to: Buffer) => replaceMasterKey(database.pool, masterKey, to, [signingKeySecrets]);

const keyOf = (token: string) => decodeProtectedHeader(token).kid;

test('nodes that start at once agree on one key', async () => {
  const several = await Promise.all([node(), node(), node(), node()]);
  const keys = await Promise.all(several.map(published));
  expect(keys[0]).toHaveLength(1);
  expect(new Set(keys.flat()).size).toBe(1);
});

test('live tokens outlive a rotation, and all nodes accept tokens by the new key right away', async () => {
  const [a, b] = await Promise.all([node(), node()]);
  const before = await tokenOf(a, client);
  const { keyId, retiredKeyId } = await rotateKeys(database.pool, masterKey);
  expect(retiredKeyId).toBe(keyOf(before));
  const c = await node();
  const after = await tokenOf(c, client);
  expect(keyOf(after)).toBe(keyId);
  for (const one of [a, b, c]) {
    expect((await authenticate(one, `Bearer ${after}`)).clientId).toBe(client.clientId);
    expect((await authenticate(one, `Bearer ${before}`)).clientId).toBe(client.clientId);
  }
  expect(await published(c)).toEqual([keyId, retiredKeyId]);
});

test('a new key is found behind a crowd of unknown ones', async () => {
  const [a, b] = await Promise.all([node(), node()]);
  const good = await tokenOf(a, client);
  const unknown = (i: number) => {
    const kid = `${i}`.padStart(24, '0');
    const header = Buffer.from(JSON.stringify({ alg: 'ES256', typ: 'at+jwt', kid })).toString('base64url');
    return `${header}.${good.split('.')[1]}.${good.split('.')[2]}`;
  };
  const crowd = Promise.allSettled(Array.from({ length: 20 }, (_, i) => authenticate(b, `Bearer ${unknown(i)}`)));
  await rotateKeys(database.pool, masterKey);
  const after = await tokenOf(await node(), client);
  expect((await authenticate(b, `Bearer ${after}`)).clientId).toBe(client.clientId);
  for (const { status } of await crowd) expect(status).toBe('rejected');
});

test('a node goes over to the new key within 5 s', async () => {
  const a = await node();
  const { keyId } = await rotateKeys(database.pool, masterKey);
  const end = Date.now() + 6_000;
  while (keyOf(await tokenOf(a, client)) !== keyId) {
    if (Date.now() > end) expect.fail('it still signs by the retired key');
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
});

test('rotations at once leave one key in use, and all the others published', async () => {
  const a = await node();
  await Promise.all(Array.from({ length: 5 }, () => rotateKeys(database.pool, masterKey)));
  const { rows } = await database.pool.query(
    'select count(*) filter (where retired_date is null) as in_use, count(*) as all from signing_keys',
  );
  expect(rows).toEqual([{ in_use: 1, all: 6 }]);
  const b = await node();
  expect(await published(b)).toHaveLength(6);
  expect((await authenticate(a, `Bearer ${await tokenOf(b, client)}`)).clientId).toBe(client.clientId);
});

test('a retired key has no private half, and is gone when the last of its tokens has expired', async () => {
  const a = await node({ tokenTtlS: 7200 });
  const old = await tokenOf(a, client);
  await rotateKeys(database.pool, masterKey);
  const { rows } = await database.pool.query(
    'select encrypted_private_key from signing_keys where retired_date is not null',
  );
  expect(rows).toEqual([{ encrypted_private_key: null }]);
  const retired = async (seconds: number) => {
    await database.pool.query(
      'update signing_keys set retired_date = now() - make_interval(secs => $2) where key_id = $1',
      [keyOf(old), seconds],
    );
    return published(await node());
  };
  // This node gives tokens half the lifetime; those of the other count.
  expect(await retired(7200)).toContain(keyOf(old));
  expect(await retired(7200 + 66)).not.toContain(keyOf(old));
  await rotateKeys(database.pool, masterKey);
  const left = await database.pool.query('select from signing_keys where key_id = $1', [keyOf(old)]);
  expect(left.rowCount).toBe(0);
});

test('private keys are stored encrypted, and under another master key after re-encryption', async () => {
  const a = await node();
  const { rows } = await database.pool.query('select encrypted_private_key as bytes from signing_keys');
  expect(rows[0].bytes.toString('latin1')).not.toContain('PRIVATE KEY');
  const next = randomBytes(32);
  expect(await reencryptKeys(next)).toBe(1);
  expect(await reencryptKeys(next)).toBe(0);
  const b = await node({ masterKey: new MasterKeys([next]) });
  expect((await authenticate(a, `Bearer ${await tokenOf(b, client)}`)).clientId).toBe(client.clientId);
  // The node that has the key in memory goes on to sign.
  expect((await authenticate(b, `Bearer ${await tokenOf(a, client)}`)).clientId).toBe(client.clientId);
});

test('a node that still has the old master key verifies tokens by keys under the new one', async () => {
  const a = await node();
  const next = randomBytes(32);
  await reencryptKeys(next);
  await rotateKeys(database.pool, new MasterKeys([next]));
  const b = await node({ masterKey: new MasterKeys([next]) });
  expect((await authenticate(a, `Bearer ${await tokenOf(b, client)}`)).clientId).toBe(client.clientId);
});

test('a node with another master key does not start, and says which key it needs', async () => {
  await node();
  const options = { db: database.pool, issuer: 'urn:test', tokenTtlS: 60 };
  const keyring = new Keyring({ ...options, masterKey: new MasterKeys([randomBytes(32)]) });
  await expect(keyring.signer()).rejects.toThrow(/cannot be decrypted.*master key [0-9a-f]{16}/);
});

test('a rotation before any node has started makes the first key', async () => {
  const { keyId, retiredKeyId } = await rotateKeys(database.pool, masterKey);
  expect(retiredKeyId).toBeNull();
  const a = await node();
  const token = await tokenOf(a, client);
  expect(keyOf(token)).toBe(keyId);
  expect((await authenticate(await node(), `Bearer ${token}`)).clientId).toBe(client.clientId);
});
