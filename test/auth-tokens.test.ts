import { type CryptoKey, exportJWK, exportPKCS8, generateKeyPair, SignJWT } from 'jose';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createClient, disableClient, enableClient, type NewSecret, setScopes } from '../src/auth/clients.ts';
import { scopeNames } from '../src/auth/scopes.ts';
import { openPool } from '../src/db/database.ts';
import { seal } from '../src/lib/crypto.ts';
import { newId } from '../src/lib/id.ts';
import { Problem } from '../src/lib/problem.ts';
import { type AuthNode, authenticate, masterKey, startNode, tokenOf, useDatabase } from './auth-fixture.ts';

const database = useDatabase();
let node: AuthNode;
let other: AuthNode;
let client: NewSecret;
let token: string;

/** A key of the service whose private half the test knows, to sign what the service would not. */
const keyId = newId();
let privateKey: CryptoKey;
let publicJwk: Record<string, unknown>;

beforeAll(async () => {
  const pair = await generateKeyPair('ES256', { extractable: true });
  privateKey = pair.privateKey;
  publicJwk = { ...(await exportJWK(pair.publicKey)), kid: keyId, alg: 'ES256', use: 'sig' };
  const sealed = seal(masterKey.first, await exportPKCS8(privateKey), `signing-key:${keyId}`);
  await database.pool.query(
    `insert into signing_keys (key_id, public_jwk, encrypted_private_key, master_key_id, issuers, token_ttl_s)
     values ($1, $2, $3, $4, '{}', 0)`,
    [keyId, publicJwk, sealed.bytes, sealed.keyId],
  );
  node = await startNode(database.pool);
  other = await startNode(database.pool, { publicUrl: 'https://sds.example.org' });
  client = await createClient(database.pool, { name: 'test', scopes: ['Study:Read', 'Study:Write'] });
  token = await tokenOf(node, client);
});
afterAll(async () => {
  await node.close();
  await other.close();
});

/** A token as the service would sign it, apart from `claims` and `header`. */
function forge(
  claims: Record<string, unknown> = {},
  header: Record<string, unknown> = {},
  key: CryptoKey | Uint8Array = privateKey,
) {
  const now = Math.floor(Date.now() / 1000);
  const usual = {
    iss: 'urn:study-data-service:issuer',
    aud: 'urn:study-data-service:api',
    sub: client.clientId,
    client_id: client.clientId,
    scope: 'Study:Read',
    jti: newId(),
    iat: now,
    exp: now + 60,
  };
  const payload = Object.fromEntries(
    Object.entries({ ...usual, ...claims }).filter(([, value]) => value !== undefined),
  );
  const crit = header.crit ? { crit: { ext: true } } : undefined;
  return new SignJWT(payload)
    .setProtectedHeader({ alg: 'ES256', typ: 'at+jwt', kid: keyId, ...header })
    .sign(key, crit);
}

async function refusal(authorization: string | undefined, at = node): Promise<Problem> {
  const outcome = await authenticate(at, authorization).catch((problem) => problem);
  expect(outcome).toBeInstanceOf(Problem);
  return outcome;
}

describe('a token is accepted', () => {
  test('with its client, scopes and end', async () => {
    const caller = await authenticate(node, `Bearer ${token}`);
    expect(caller.clientId).toBe(client.clientId);
    expect([...caller.scopes]).toEqual(['Study:Read', 'Study:Write']);
    expect(caller.expiresAt / 1000 - Date.now() / 1000).toBeGreaterThan(3590);
  });

  test('the second time at once', async () => {
    await authenticate(node, `Bearer ${token}`);
    expect(node.auth.authenticate(`Bearer ${token}`)).toMatchObject({ clientId: client.clientId });
  });

  test('whatever the case of Bearer', async () => {
    expect((await authenticate(node, `bearer ${token}`)).clientId).toBe(client.clientId);
  });

  test('by a node with another address, in both directions', async () => {
    expect((await authenticate(other, `Bearer ${token}`)).clientId).toBe(client.clientId);
    const foreign = await tokenOf(other, client);
    expect((await authenticate(node, `Bearer ${foreign}`)).clientId).toBe(client.clientId);
  });

  test('by a node that joins later under another address, and by those that were there before', async () => {
    const late = await startNode(database.pool, { publicUrl: 'https://late.example.org' });
    try {
      expect((await authenticate(late, `Bearer ${token}`)).clientId).toBe(client.clientId);
      expect((await authenticate(node, `Bearer ${await tokenOf(late, client)}`)).clientId).toBe(client.clientId);
    } finally {
      await late.close();
    }
  });

  test('as the test forges it, so that the refusals below are for what they change', async () => {
    expect((await authenticate(node, `Bearer ${await forge()}`)).clientId).toBe(client.clientId);
  });

  test('with the scopes that exist only', async () => {
    const caller = await authenticate(node, `Bearer ${await forge({ scope: 'Study:Read Study:Gone Audit:Read' })}`);
    expect([...caller.scopes]).toEqual(['Study:Read']);
  });
});

describe('401 without an error code', () => {
  test.each([undefined, '', 'Basic YTpi', 'Bearers x'])('for %j, which is no bearer token', async (authorization) => {
    const problem = await refusal(authorization);
    expect(problem.kind).toBe('unauthorized');
    expect(problem.headers).toEqual({ 'WWW-Authenticate': 'Bearer' });
  });
});

describe('401 invalid_token', () => {
  async function expectInvalid(bearer: string, description = 'The access token is not valid.') {
    const problem = await refusal(`Bearer ${bearer}`);
    expect(problem.kind).toBe('unauthorized');
    expect(problem.headers['WWW-Authenticate']).toBe(
      `Bearer error="invalid_token", error_description="${description}"`,
    );
  }
  const encode = (value: unknown) => Buffer.from(JSON.stringify(value)).toString('base64url');
  const parts = async () => (await forge()).split('.') as [string, string, string];

  test.each(['', 'x', 'a.b', 'a.b.c', '..', 'a b', 'a.b.c.d.e', 'é'])('for %j', (bearer) => expectInvalid(bearer));

  test('for a token that has expired', async () => {
    const past = Math.floor(Date.now() / 1000) - 1;
    await expectInvalid(await forge({ exp: past }), 'The access token has expired.');
  });

  test('for a token that was good until it expired', async () => {
    const end = Math.floor(Date.now() / 1000) + 2;
    const short = await forge({ exp: end });
    expect((await authenticate(node, `Bearer ${short}`)).expiresAt).toBe(end * 1000);
    await new Promise((resolve) => setTimeout(resolve, end * 1000 - Date.now() + 1));
    await expectInvalid(short, 'The access token has expired.');
  });

  test.each([
    ['another issuer', { iss: 'https://evil.example.org' }],
    ['no issuer', { iss: undefined }],
    ['another audience', { aud: 'another-api' }],
    ['no audience', { aud: undefined }],
    ['no end', { exp: undefined }],
    ['an end that is no number', { exp: 'tomorrow' }],
    ['no client', { client_id: undefined }],
    ['a client that is no text', { client_id: 7 }],
    ['no subject', { sub: undefined }],
    ['no id', { jti: undefined }],
    ['a beginning in the future', { nbf: Math.floor(Date.now() / 1000) + 100 }],
  ])('for a token with %s', async (_what, claims) => {
    await expectInvalid(await forge(claims));
  });

  test.each([
    ['of another type, such as an ID token', { typ: 'JWT' }],
    ['without a type', { typ: undefined }],
    ['by an unknown key', { kid: newId() }],
    ['by a key of no known form', { kid: '../../etc/passwd' }],
    ['without a key', { kid: undefined }],
    ['with a critical extension', { crit: ['ext'], ext: 1 }],
  ])('for a token %s', async (_what, header) => {
    await expectInvalid(await forge({}, header));
  });

  test('for a token without a signature (alg none)', async () => {
    const [, payload] = await parts();
    for (const alg of ['none', 'None', 'NONE']) {
      await expectInvalid(`${encode({ alg, typ: 'at+jwt', kid: keyId })}.${payload}.`);
    }
  });

  test('for a token signed by the public key as a shared secret (alg confusion)', async () => {
    await expectInvalid(await forge({}, { alg: 'HS256' }, Buffer.from(JSON.stringify(publicJwk))));
  });

  test('for a token that brings its own key', async () => {
    const own = await generateKeyPair('ES256', { extractable: true });
    await expectInvalid(await forge({}, { jwk: await exportJWK(own.publicKey) }, own.privateKey));
  });

  test('for a token with changed claims', async () => {
    const [header, payload, signature] = await parts();
    const claims = JSON.parse(Buffer.from(payload, 'base64url').toString());
    await expectInvalid(`${header}.${encode({ ...claims, scope: 'Audit:Read' })}.${signature}`);
  });

  test('for a token that is too long', async () => {
    await expectInvalid(await forge({ padding: 'x'.repeat(8_192) }), 'The access token is too long.');
  });

  test('for a token of a client that does not exist', async () => {
    const nobody = newId();
    const problem = await refusal(`Bearer ${await forge({ client_id: nobody, sub: nobody })}`);
    expect(problem.kind).toBe('unauthorized');
  });
});

describe('within 5 s on every node', () => {
  /** Calls on both nodes until both answer as `done` wants; fails after 5 s. */
  async function takesEffect(bearer: string, done: (outcome: unknown) => boolean): Promise<void> {
    const end = Date.now() + 5_000;
    for (;;) {
      const outcomes = await Promise.all(
        [node, other].map((one) => authenticate(one, `Bearer ${bearer}`).catch((problem) => problem)),
      );
      if (outcomes.every(done)) return;
      if (Date.now() > end) expect.fail('it did not take effect within 5 s');
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }
  const has = (scope: string) => (outcome: unknown) =>
    (outcome as { scopes?: Set<string> }).scopes?.has(scope) === true;

  test('a scope taken away is missing from live tokens, and one given later is not in them', async () => {
    const fresh = await createClient(database.pool, { name: 'scopes', scopes: ['Study:Read', 'Study:Write'] });
    const live = await tokenOf(node, fresh);
    await takesEffect(live, has('Study:Write'));
    await setScopes(database.pool, fresh.clientId, ['Study:Read', 'Audit:Read']);
    await takesEffect(live, (outcome) => has('Study:Read')(outcome) && !has('Study:Write')(outcome));
    expect((await authenticate(node, `Bearer ${live}`)).scopes.has('Audit:Read')).toBe(false);
  });

  test('a disabled client is refused, and accepted again when it is enabled', async () => {
    const fresh = await createClient(database.pool, { name: 'disabled', scopes: ['Study:Read'] });
    const live = await tokenOf(node, fresh);
    await takesEffect(live, has('Study:Read'));
    await disableClient(database.pool, fresh.clientId);
    await takesEffect(live, (outcome) => outcome instanceof Problem && outcome.status === 401);
    await enableClient(database.pool, fresh.clientId);
    await takesEffect(live, has('Study:Read'));
  });
});

test('a database out of reach is a fault of the database, not a 401', async () => {
  const pool = openPool({ url: database.url, name: 'soon gone', max: 1 });
  const alone = await startNode(pool);
  try {
    await authenticate(alone, `Bearer ${token}`);
    await pool.end();
    const fresh = await createClient(database.pool, { name: 'unseen', scopes: [...scopeNames] });
    const unseen = await tokenOf(node, fresh);
    const outcome = await authenticate(alone, `Bearer ${unseen}`).catch((fault) => fault);
    expect(outcome).toBeInstanceOf(Error);
    expect(outcome).not.toBeInstanceOf(Problem);
    expect((await authenticate(alone, `Bearer ${token}`)).clientId).toBe(client.clientId);
  } finally {
    await alone.close();
  }
});
