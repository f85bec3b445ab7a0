import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { type CryptoKey, exportJWK, generateKeyPair, type JWK, SignJWT } from 'jose';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { createClient, disableClient } from '../src/auth/clients.ts';
import { Problem } from '../src/lib/problem.ts';
import { type AuthNode, authenticate, requestToken, startNode, tokenOf, useDatabase } from './auth-fixture.ts';

const database = useDatabase();
const audience = 'https://sds.example.org';

/** An OpenID provider as far as a resource server sees it. */
class Issuer {
  readonly server = createServer((request, response) => this.#answer(request, response));
  keys: { publicJwk: JWK; privateKey: CryptoKey; alg: string }[] = [];
  /** Paths asked for, in order. */
  asked: string[] = [];
  /** Where its metadata are. */
  metadataPath = '/realm/.well-known/openid-configuration';
  metadata: Record<string, unknown> = {};
  down = false;
  url = '';

  async open(port = 0): Promise<void> {
    await new Promise<void>((resolve) => this.server.listen(port, '127.0.0.1', resolve));
    this.url = `http://127.0.0.1:${(this.server.address() as AddressInfo).port}/realm`;
  }

  async close(): Promise<void> {
    this.server.closeAllConnections();
    await new Promise((resolve) => this.server.close(resolve));
  }

  async addKey(alg = 'ES256'): Promise<void> {
    const { publicKey, privateKey } = await generateKeyPair(alg);
    const kid = `key${this.keys.length}-${Math.random()}`;
    this.keys.push({ publicJwk: { ...(await exportJWK(publicKey)), kid, alg }, privateKey, alg });
  }

  /** A token by the newest key. */
  async token(claims: Record<string, unknown> = {}, header: Record<string, unknown> = {}): Promise<string> {
    const key = this.keys.at(-1) as Issuer['keys'][number];
    const now = Math.floor(Date.now() / 1000);
    const usual = { iss: this.url, aud: audience, client_id: 'foreign', scope: 'Study:Read openid', exp: now + 60 };
    const all = Object.entries({ ...usual, ...claims }).filter(([, value]) => value !== undefined);
    return new SignJWT(Object.fromEntries(all))
      .setProtectedHeader({ alg: key.alg, kid: key.publicJwk.kid as string, ...header })
      .sign(key.privateKey);
  }

  #answer(request: IncomingMessage, response: ServerResponse): void {
    this.asked.push(request.url ?? '');
    const documents: Record<string, unknown> = {
      [this.metadataPath]: { issuer: this.url, jwks_uri: `${this.url}/keys`, ...this.metadata },
      '/realm/keys': { keys: this.keys.map((key) => key.publicJwk) },
    };
    const document = this.down ? undefined : documents[request.url ?? ''];
    response.writeHead(document ? 200 : this.down ? 500 : 404, { 'content-type': 'application/json' });
    response.end(JSON.stringify(document ?? {}));
  }
}

let issuer: Issuer;
let node: AuthNode;

beforeEach(async () => {
  issuer = new Issuer();
  await issuer.open();
  await issuer.addKey();
  node = await startNode(database.pool, { oidc: { issuer: issuer.url, audience } });
});
afterEach(async () => {
  await node.close();
  await issuer.close();
});

async function status(token: string): Promise<number | string> {
  const outcome = await authenticate(node, `Bearer ${token}`).catch((problem) => problem);
  return outcome instanceof Problem ? outcome.status : outcome.clientId;
}

describe('a token of the foreign issuer is accepted', () => {
  test.each(['RS256', 'PS256', 'ES256', 'ES384', 'EdDSA'])('signed by %s', async (alg) => {
    await issuer.addKey(alg);
    expect(await status(await issuer.token())).toBe('foreign');
  });

  test('whose metadata are those of RFC 8414', async () => {
    issuer.metadataPath = '/.well-known/oauth-authorization-server/realm';
    expect(await status(await issuer.token())).toBe('foreign');
  });

  test('that has a slash at the end of its name', async () => {
    issuer.metadata = { issuer: `${issuer.url}/` };
    expect(await status(await issuer.token({ iss: `${issuer.url}/` }))).toBe('foreign');
  });

  test.each([
    ['client_id', { client_id: 'one', azp: 'two' }, 'one'],
    ['azp without client_id', { client_id: undefined, azp: 'two' }, 'two'],
  ])('with the client of %s', async (_what, claims, clientId) => {
    expect(await status(await issuer.token(claims))).toBe(clientId);
  });

  test.each([
    ['scope as text', { scope: 'Study:Read Audit:Read openid' }],
    ['scp as a list', { scope: undefined, scp: ['Audit:Read', 'Study:Read', 7] }],
    ['scp as text', { scope: undefined, scp: 'Study:Read Audit:Read' }],
  ])('with %s, of which those of the service count', async (_what, claims) => {
    const caller = await authenticate(node, `Bearer ${await issuer.token(claims)}`);
    expect([...caller.scopes].sort()).toEqual(['Audit:Read', 'Study:Read']);
  });

  test.each(['JWT', 'at+jwt', 'application/at+jwt'])('of the type %s', async (typ) => {
    expect(await status(await issuer.token({}, { typ }))).toBe('foreign');
  });

  test('for several audiences', async () => {
    expect(await status(await issuer.token({ aud: ['another', audience] }))).toBe('foreign');
  });

  test('with the scopes that the client has here, where it is registered', async () => {
    const { clientId } = await createClient(database.pool, { name: 'known', scopes: ['Study:Read', 'Audit:Read'] });
    const token = await issuer.token({ client_id: clientId, scope: 'Study:Read Study:Write' });
    expect([...(await authenticate(node, `Bearer ${token}`)).scopes]).toEqual(['Study:Read']);
  });
});

describe('401', () => {
  const now = () => Math.floor(Date.now() / 1000);

  test.each([
    ['another issuer', () => ({ iss: 'https://evil.example.org' })],
    ['another audience', () => ({ aud: 'another' })],
    ['no audience', () => ({ aud: undefined })],
    ['no end', () => ({ exp: undefined })],
    ['an end that is past, however little', () => ({ exp: now() - 1 })],
    ['a beginning in the future', () => ({ nbf: now() + 600 })],
    ['no client', () => ({ client_id: undefined })],
    ['a client that cannot be', () => ({ client_id: 'a\0b' })],
    ['an empty client', () => ({ client_id: '' })],
  ])('for a token with %s', async (_what, claims) => {
    expect(await status(await issuer.token(claims()))).toBe(401);
  });

  test('for a token that is none for access', async () => {
    expect(await status(await issuer.token({}, { typ: 'logout+jwt' }))).toBe(401);
  });

  test('for a token by a key that the issuer does not have', async () => {
    const other = new Issuer();
    await other.addKey();
    other.url = issuer.url;
    expect(await status(await other.token())).toBe(401);
    // The issuer's key id does not make it the issuer's signature.
    expect(await status(await other.token({}, { kid: issuer.keys[0]?.publicJwk.kid }))).toBe(401);
  });

  test('for a token signed by a secret', async () => {
    const token = await new SignJWT({ iss: issuer.url, aud: audience, client_id: 'x', exp: now() + 60 })
      .setProtectedHeader({ alg: 'HS256', kid: issuer.keys[0]?.publicJwk.kid as string })
      .sign(Buffer.alloc(32, 1));
    expect(await status(token)).toBe(401);
  });

  test('for a token of our own', async () => {
    const own = await startNode(database.pool);
    try {
      const client = await createClient(database.pool, { name: 'own', scopes: ['Study:Read'] });
      expect(await status(await tokenOf(own, client))).toBe(401);
    } finally {
      await own.close();
    }
  });

  test('for a client that is disabled here', async () => {
    const { clientId } = await createClient(database.pool, { name: 'disabled', scopes: ['Study:Read'] });
    await disableClient(database.pool, clientId);
    expect(await status(await issuer.token({ client_id: clientId }))).toBe(401);
  });
});

describe('the keys of the issuer', () => {
  test('are read once, however many tokens come', async () => {
    const tokens = await Promise.all(Array.from({ length: 20 }, (_, i) => issuer.token({ client_id: `c${i}` })));
    await Promise.all(tokens.map(status));
    expect(issuer.asked).toEqual(['/realm/.well-known/openid-configuration', '/realm/keys']);
  });

  test('that are new are found with the first token by them', async () => {
    expect(await status(await issuer.token())).toBe('foreign');
    await issuer.addKey();
    expect(await status(await issuer.token())).toBe('foreign');
  });

  test('are not asked for again and again because of made-up key ids', async () => {
    expect(await status(await issuer.token())).toBe('foreign');
    const before = issuer.asked.length;
    for (let i = 0; i < 30; i++) expect(await status(await issuer.token({}, { kid: `made-up-${i}` }))).toBe(401);
    expect(issuer.asked.length - before).toBeLessThanOrEqual(2 * 6);
  });

  test('serve on while the issuer is down', async () => {
    expect(await status(await issuer.token())).toBe('foreign');
    issuer.down = true;
    expect(await status(await issuer.token({ client_id: 'another' }))).toBe('another');
  });
});

describe('an issuer that cannot be reached', () => {
  test('is a 503 for tokens, and no more than that: it is asked again soon', async () => {
    issuer.down = true;
    const problem = await authenticate(node, `Bearer ${await issuer.token()}`).catch((one) => one);
    expect(problem).toBeInstanceOf(Problem);
    expect(problem.status).toBe(503);
    expect(Number(problem.headers['Retry-After'])).toBeGreaterThan(0);
    const asked = issuer.asked.length;
    expect(await status(await issuer.token())).toBe(503);
    expect(issuer.asked.length).toBe(asked);
    issuer.down = false;
    await expect.poll(async () => status(await issuer.token()), { timeout: 5_000 }).toBe('foreign');
  });

  test('is no issuer whose metadata name another one', async () => {
    issuer.metadata = { issuer: 'https://evil.example.org' };
    expect(await status(await issuer.token())).toBe(503);
  });
});

test('the token endpoint says that tokens come from the issuer', async () => {
  const response = await requestToken(node.url, { grant_type: 'client_credentials' });
  expect(response.status).toBe(400);
  expect(await response.json()).toEqual({
    error: 'unsupported_grant_type',
    error_description: expect.stringContaining(issuer.url),
  });
  expect((await fetch(`${node.url}/.well-known/jwks.json`)).status).toBe(404);
});
