import { createPublicKey } from 'node:crypto';
import { decodeJwt, decodeProtectedHeader, jwtVerify } from 'jose';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createClient, disableClient, type NewSecret, rotateSecret } from '../src/auth/clients.ts';
import { scopeNames } from '../src/auth/scopes.ts';
import { hashSecret } from '../src/auth/secrets.ts';
import { type AuthNode, requestToken, startNode, type TokenAnswer, useDatabase } from './auth-fixture.ts';

const database = useDatabase();
let node: AuthNode;
let client: NewSecret;

beforeAll(async () => {
  node = await startNode(database.pool, { trustProxy: true });
  client = await createClient(database.pool, { name: 'test', scopes: ['Study:Write', 'Study:Read'] });
});
afterAll(() => node.close());

const grant = { grant_type: 'client_credentials' };
const secretInBody = () => ({ ...grant, client_id: client.clientId, client_secret: client.clientSecret });
const basic = () => ({ basic: `${client.clientId}:${client.clientSecret}` });

async function errorOf(response: Response): Promise<{ status: number; error: string }> {
  expect(response.headers.get('content-type')).toMatch(/^application\/json/);
  expect(response.headers.get('cache-control')).toBe('no-store');
  const { error, error_description } = (await response.json()) as Record<string, string>;
  // RFC 6749 §5.2 allows these characters only.
  expect(error_description).toMatch(/^[\x20-\x21\x23-\x5b\x5d-\x7e]+$/);
  return { status: response.status, error: error ?? '' };
}

describe('a token is given', () => {
  test.each(['/oauth/token', '/api/v1/oauth/token'])('at %s, to a client with HTTP Basic', async (path) => {
    const response = await requestToken(node.url, grant, { ...basic(), path });
    expect(response.status).toBe(200);
    expect(response.headers.get('cache-control')).toBe('no-store');
    const answer = (await response.json()) as TokenAnswer;
    expect(answer).toEqual({
      access_token: expect.any(String),
      token_type: 'Bearer',
      expires_in: 3600,
      scope: 'Study:Read Study:Write',
    });
  });

  test('to a client that sends its secret in the form', async () => {
    expect((await requestToken(node.url, secretInBody())).status).toBe(200);
  });

  test('to a client that sends JSON', async () => {
    const response = await fetch(`${node.url}/oauth/token`, {
      method: 'POST',
      headers: { 'content-type': 'application/json; charset=utf-8' },
      body: JSON.stringify(secretInBody()),
    });
    expect(response.status).toBe(200);
  });

  test('to a client that repeats its id beside HTTP Basic', async () => {
    expect((await requestToken(node.url, { ...grant, client_id: client.clientId }, basic())).status).toBe(200);
  });

  test('with the scopes asked for only', async () => {
    const answer = (await (
      await requestToken(node.url, { ...grant, scope: 'Study:Read' }, basic())
    ).json()) as TokenAnswer;
    expect(answer.scope).toBe('Study:Read');
    expect(decodeJwt(answer.access_token).scope).toBe('Study:Read');
  });

  test('with all scopes where the scope has no value', async () => {
    const response = await requestToken(node.url, { ...grant, scope: '' }, basic());
    expect(((await response.json()) as TokenAnswer).scope).toBe('Study:Read Study:Write');
  });

  test.each([
    ['as it is', 'se+cret/%=:'],
    ['encoded as a form (RFC 6749 §2.3.1)', encodeURIComponent('se+cret/%=:')],
  ])('for a secret with special characters, sent %s', async (_how, secret) => {
    const { clientId } = await createClient(database.pool, { name: 'special', scopes: [] });
    await database.pool.query('update clients set secret_hash = $2 where client_id = $1', [
      clientId,
      await hashSecret('se+cret/%=:'),
    ]);
    expect((await requestToken(node.url, grant, { basic: `${clientId}:${secret}` })).status).toBe(200);
  });

  test('50 times at once to one client', async () => {
    const fresh = await createClient(database.pool, { name: 'crowd', scopes: ['Study:Read'] });
    const crowd = { basic: `${fresh.clientId}:${fresh.clientSecret}` };
    const answers = await Promise.all(Array.from({ length: 50 }, () => requestToken(node.url, grant, crowd)));
    expect(answers.map((answer) => answer.status)).toEqual(Array(50).fill(200));
  });

  test('after five wrong secrets', async () => {
    for (let i = 0; i < 5; i++) {
      const response = await requestToken(node.url, { ...secretInBody(), client_secret: `wrong${i}` });
      expect(await errorOf(response)).toEqual({ status: 401, error: 'invalid_client' });
    }
    expect((await requestToken(node.url, grant, basic())).status).toBe(200);
  });
});

describe('an access token', () => {
  test('is a JWT by RFC 9068 that the published keys verify', async () => {
    const answer = (await (await requestToken(node.url, grant, basic())).json()) as TokenAnswer;
    const { keys } = (await (await fetch(`${node.url}/.well-known/jwks.json`)).json()) as {
      keys: Record<string, string>[];
    };
    const header = decodeProtectedHeader(answer.access_token);
    expect(header).toEqual({ alg: 'ES256', typ: 'at+jwt', kid: expect.any(String) });
    const jwk = keys.find((key) => key.kid === header.kid) ?? {};
    expect(Object.keys(jwk).sort()).toEqual(['alg', 'crv', 'kid', 'kty', 'use', 'x', 'y']);
    const { payload } = await jwtVerify(answer.access_token, createPublicKey({ key: jwk, format: 'jwk' }));
    expect(payload).toEqual({
      iss: 'urn:study-data-service:issuer',
      aud: 'urn:study-data-service:api',
      sub: client.clientId,
      client_id: client.clientId,
      scope: 'Study:Read Study:Write',
      jti: expect.stringMatching(/^[0-9A-Za-z]{24}$/),
      iat: expect.any(Number),
      exp: (payload.iat ?? 0) + 3600,
    });
  });
});

describe('a token request is refused', () => {
  const refusals: [string, () => Promise<Response>, number, string][] = [
    ['without a grant_type', () => requestToken(node.url, {}, basic()), 400, 'invalid_request'],
    [
      'for another grant',
      () => requestToken(node.url, { grant_type: 'password' }, basic()),
      400,
      'unsupported_grant_type',
    ],
    [
      'for an unknown scope',
      () => requestToken(node.url, { ...grant, scope: 'Study:Everything' }, basic()),
      400,
      'invalid_scope',
    ],
    [
      'for a scope that the client does not have',
      () => requestToken(node.url, { ...grant, scope: 'Audit:Read' }, basic()),
      400,
      'invalid_scope',
    ],
    ['without a client', () => requestToken(node.url, grant), 401, 'invalid_client'],
    [
      'with the secret in header and body',
      () => requestToken(node.url, secretInBody(), basic()),
      400,
      'invalid_request',
    ],
    [
      'with two client ids',
      () => requestToken(node.url, { ...grant, client_id: 'another' }, basic()),
      400,
      'invalid_request',
    ],
    ['with a repeated parameter', () => send('grant_type=client_credentials&scope=a&scope=a'), 400, 'invalid_request'],
    ['of another content type', () => send('grant_type=client_credentials', 'text/plain'), 400, 'invalid_request'],
    ['without a body', () => fetch(`${node.url}/oauth/token`, { method: 'POST' }), 400, 'invalid_request'],
    ['with broken JSON', () => send('{"grant_type":', 'application/json'), 400, 'invalid_request'],
    ['with JSON that is no object', () => send('["a"]', 'application/json'), 400, 'invalid_request'],
    [
      'with a JSON parameter that is no string',
      () => send('{"grant_type":["client_credentials"]}', 'application/json'),
      400,
      'invalid_request',
    ],
    ['with too large a body', () => send(`scope=${'a'.repeat(20_000)}`), 400, 'invalid_request'],
    [
      'with an id that no client can have',
      () => requestToken(node.url, { ...grant, client_id: '\0', client_secret: 'x' }),
      401,
      'invalid_client',
    ],
  ];
  const send = (body: string, type = 'application/x-www-form-urlencoded') =>
    fetch(`${node.url}/oauth/token`, { method: 'POST', headers: { 'content-type': type }, body });

  test.each(refusals)('%s', async (_what, request, status, error) => {
    expect(await errorOf(await request())).toEqual({ status, error });
  });

  test('with WWW-Authenticate only where HTTP Basic was used, as a browser would ask its user', async () => {
    const byBasic = await requestToken(node.url, grant, { basic: `${client.clientId}:wrong` });
    expect(byBasic.headers.get('www-authenticate')).toMatch(/^Basic realm=/);
    expect(await errorOf(byBasic)).toEqual({ status: 401, error: 'invalid_client' });
    const byBody = await requestToken(node.url, { ...secretInBody(), client_secret: 'wrong' });
    expect(byBody.headers.get('www-authenticate')).toBeNull();
  });

  test('for a disabled client', async () => {
    const other = await createClient(database.pool, { name: 'disabled', scopes: [] });
    await disableClient(database.pool, other.clientId);
    const response = await requestToken(node.url, grant, { basic: `${other.clientId}:${other.clientSecret}` });
    expect(await errorOf(response)).toEqual({ status: 401, error: 'invalid_client' });
  });

  test('for the old secret at once when it was rotated, even one that was right before', async () => {
    const old = await createClient(database.pool, { name: 'rotating', scopes: [] });
    const ask = (one: NewSecret) => requestToken(node.url, grant, { basic: `${one.clientId}:${one.clientSecret}` });
    expect((await ask(old)).status).toBe(200);
    const fresh = await rotateSecret(database.pool, old.clientId);
    expect((await ask(old)).status).toBe(401);
    expect((await ask(fresh as NewSecret)).status).toBe(200);
  });

  test.each([
    ['/oauth/token', ['GET', 'HEAD', 'PUT', 'PATCH', 'DELETE', 'OPTIONS'], 'POST'],
    ['/api/v1/oauth/token', ['GET', 'HEAD', 'PUT', 'PATCH', 'DELETE', 'OPTIONS'], 'POST'],
    ['/.well-known/jwks.json', ['POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS'], 'GET, HEAD'],
    ['/.well-known/oauth-authorization-server', ['POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS'], 'GET, HEAD'],
  ])('at %s by another method as 405, by a problem', async (path, methods, allow) => {
    for (const method of methods) {
      const response = await fetch(node.url + path, { method });
      expect([method, response.status, response.headers.get('allow')]).toEqual([method, 405, allow]);
      expect(response.headers.get('content-type')).toMatch(/^application\/problem\+json/);
    }
  });
});

describe('guessing', () => {
  const from = (address: string, secret: string, clientId: string) =>
    requestToken(
      node.url,
      { ...grant, client_id: clientId, client_secret: secret },
      {
        headers: { 'x-forwarded-for': address },
      },
    );

  test('is slowed down for its address, and the right secret of another address is not', async () => {
    const victim = await createClient(database.pool, { name: 'victim', scopes: [] });
    const statuses: number[] = [];
    for (let i = 0; i < 12; i++) statuses.push((await from('192.0.2.1', `guess${i}`, victim.clientId)).status);
    expect(statuses.slice(0, 11)).toEqual(Array(11).fill(401));
    const slow = await from('192.0.2.1', victim.clientSecret, victim.clientId);
    expect(Number(slow.headers.get('retry-after'))).toBeGreaterThan(0);
    expect(await errorOf(slow)).toEqual({ status: 429, error: 'slow_down' });
    expect((await from('192.0.2.2', victim.clientSecret, victim.clientId)).status).toBe(200);
  });

  test('in a flood is answered in part by 503, and clients known to be right get their tokens meanwhile', async () => {
    expect((await requestToken(node.url, grant, basic())).status).toBe(200);
    const flood = Array.from({ length: 40 }, (_, i) => from(`198.51.100.${i}`, `guess${i}`, `client${i}`));
    const right = await requestToken(node.url, grant, basic());
    const statuses = (await Promise.all(flood)).map((response) => response.status);
    expect(right.status).toBe(200);
    expect(new Set(statuses)).toEqual(new Set([401, 503]));
  });
});

describe('around the token endpoint', () => {
  test('the metadata name the address that was asked (RFC 8414)', async () => {
    const response = await fetch(`${node.url}/.well-known/oauth-authorization-server`);
    expect(await response.json()).toMatchObject({
      issuer: node.url,
      token_endpoint: `${node.url}/oauth/token`,
      jwks_uri: `${node.url}/.well-known/jwks.json`,
      grant_types_supported: ['client_credentials'],
      token_endpoint_auth_methods_supported: ['client_secret_basic', 'client_secret_post'],
      response_types_supported: [],
      scopes_supported: scopeNames,
    });
  });

  test('with SDS_PUBLIC_URL the metadata and the tokens name it as the issuer', async () => {
    const other = await startNode(database.pool, { publicUrl: 'https://sds.example.org' });
    try {
      const metadata = await (await fetch(`${other.url}/.well-known/oauth-authorization-server`)).json();
      expect(metadata).toMatchObject({
        issuer: 'https://sds.example.org',
        token_endpoint: 'https://sds.example.org/oauth/token',
      });
      const answer = (await (await requestToken(other.url, grant, basic())).json()) as TokenAnswer;
      expect(decodeJwt(answer.access_token).iss).toBe('https://sds.example.org');
    } finally {
      await other.close();
    }
  });

  test('other paths read their bodies as before', async () => {
    const post = (type: string, body: string) =>
      fetch(`${node.url}/api/v1/echo`, { method: 'POST', headers: { 'content-type': type }, body });
    expect(await (await post('application/json', '{"a":1}')).json()).toEqual({ a: 1 });
    expect((await post('application/x-www-form-urlencoded', 'a=1')).status).not.toBe(200);
  });

  test('every request is counted and logged, and no log line holds a secret', async () => {
    const before = node.outcomes.length;
    await requestToken(node.url, grant, basic());
    await requestToken(node.url, { ...grant, client_id: client.clientSecret, client_secret: client.clientId });
    await requestToken(node.url, { grant_type: 'password' });
    expect(node.outcomes.slice(before)).toEqual(['issued', 'invalid_client', 'unsupported_grant_type']);
    const all = node.log.join('');
    expect(all).toContain('token issued');
    expect(all).toContain('wrong client id or secret');
    expect(all).not.toContain(client.clientSecret);
    expect(all).not.toContain('eyJ');
  });
});
