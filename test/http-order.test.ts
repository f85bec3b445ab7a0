import { connect } from 'node:net';
import { describe, expect, test } from 'vitest';
import { type Json, useService } from './service.ts';

const service = useService();
const NOWHERE = '0'.repeat(24);

/** What comes back for the bytes sent, until the server closes the connection. */
function exchange(text: string): Promise<{ status: number; headers: string; body: Json }> {
  const { hostname, port } = new URL(service.url);
  return new Promise((resolve, reject) => {
    let received = '';
    const socket = connect(Number(port), hostname, () => socket.write(text, 'latin1'));
    socket.setEncoding('utf8').on('data', (chunk) => {
      received += chunk;
    });
    socket.on('error', reject).on('close', () => {
      const [headers = '', body = ''] = received.split('\r\n\r\n', 2);
      resolve({ status: Number(headers.split(' ')[1]), headers, body: /json/.test(headers) ? JSON.parse(body) : body });
    });
  });
}

async function head(method: string, path: string, ...more: string[]): Promise<string> {
  const { token } = await service.client();
  return [
    `${method} ${path} HTTP/1.1`,
    'Host: x',
    `Authorization: Bearer ${token}`,
    'Connection: close',
    ...more,
    '',
    '',
  ]
    .join('\r\n')
    .toString();
}

describe('the order of checks', () => {
  test('is 410 before 401: a retired version needs no token, whatever the method and body', async () => {
    for (const path of ['/api/v0', '/api/v0/studies?x=1', '/api/v0/a/b']) {
      for (const method of ['GET', 'POST', 'PATCH', 'DELETE']) {
        const response = await fetch(`${service.url}${path}`, { method });
        expect(response.status).toBe(410);
        expect(((await response.json()) as Json).type).toBe('/errors/gone');
      }
    }
    const { rows } = await service.pool.query(`select from audit_events where path like '/api/v0%'`);
    expect(rows).toEqual([]);
  });

  test('is 401 before all else below /api/v1, also for unknown paths, methods, bodies and broken URLs', async () => {
    const raw = 'x'.repeat(9 * 2 ** 20);
    for (const [method, path, options] of [
      ['GET', '', {}],
      ['GET', '/', {}],
      ['POST', '/nothing', { raw: '{' }],
      ['POST', '/nothing', { raw, headers: { 'content-type': 'text/plain' } }],
      ['POST', '/studies', { raw: '{' }],
      ['PATCH', '/studies', {}],
      ['GET', '/studies/%ZZ', {}],
      ['GET', '/studies/short?nonsense=1', {}],
    ] as const) {
      const answer = await service.call(method, path, undefined, { ...options, token: null });
      expect(answer.body, `${method} ${path}`).toMatchObject({ status: 401, type: '/errors/unauthorized' });
    }
    const refused = await service.call('GET', '/studies', undefined, { token: 'abc.def.ghi' });
    expect(refused.headers.get('www-authenticate')).toContain('error="invalid_token"');
  });

  test('is 404 and 405 of path and method before 403 and before the body', async () => {
    const { token } = await service.client('Audit:Read');
    const text = { 'content-type': 'text/plain' };
    expect((await service.call('POST', '/nothing', undefined, { token, raw: '{', headers: text })).status).toBe(404);
    const refused = await service.call('PATCH', '/studies', undefined, { token, raw: '{', headers: text });
    expect(refused.status).toBe(405);
    expect(refused.headers.get('allow')).toBe('GET, HEAD, POST');
    expect((await service.call('POST', '/studies', undefined, { token, raw: '{', headers: text })).status).toBe(403);
  });

  test('is 415, then 400, then 404 of a record, then 412, then 422, then 409', async () => {
    const study = (await service.call('POST', '/studies', { name: 'A study in order' })).body.studyId;
    const subjects = `/studies/${study}/subjects`;
    const { subjectId } = (await service.call('POST', subjects, { name: 'one' })).body;
    await service.call('POST', subjects, { name: 'two' });
    const put = async (id: string, body: object, headers: Record<string, string> = {}) =>
      (await service.call('PUT', `${subjects}/${id}`, body, { headers: { 'if-match': '"7"', ...headers } })).status;
    expect(await put(NOWHERE, { nonsense: 1 }, { 'content-type': 'text/plain' })).toBe(415);
    expect(await put(NOWHERE, { nonsense: 1 })).toBe(400);
    expect(await put(NOWHERE, { name: '' })).toBe(404);
    expect(await put(subjectId, { name: '' })).toBe(412);
    expect(await put(subjectId, { name: '' }, { 'if-match': '*' })).toBe(422);
    expect(await put(subjectId, { name: 'two' }, { 'if-match': 'W/"9", "1"' })).toBe(409);
    expect(await put(subjectId, { name: 'two' }, { 'if-match': '1' })).toBe(400);
  });
});

describe('a method that a path does not have', () => {
  test.each(['TRACE', 'PROPFIND', 'QUERY', 'LINK', 'OPTIONS', 'PATCH'])('is 405 with Allow: %s', async (method) => {
    const answer = await exchange(await head(method, '/api/v1/studies'));
    expect(answer.body).toMatchObject({ status: 405, type: '/errors/method-not-allowed' });
    expect(answer.headers).toMatch(/allow: GET, HEAD, POST\r?$/im);
  });

  test.each([
    '/healthz',
    '/readyz',
    '/metrics',
    '/docs',
    '/errors/gone',
    '/api/v1/openapi.json',
    '/.well-known/jwks.json',
  ])('is 405 with Allow beside the API: POST %s', async (path) => {
    const response = await fetch(`${service.url}${path}`, { method: 'POST', body: '{' });
    expect(response.status).toBe(405);
    expect(response.headers.get('allow')).toBe('GET, HEAD');
  });

  test('is not HEAD where there is GET', async () => {
    const answer = await service.call('HEAD', '/studies');
    expect(answer.status).toBe(200);
    expect(answer.text).toBe('');
  });
});

describe('what is no proper request', () => {
  test.each([
    ['an unknown method', 'FOO /api/v1/studies HTTP/1.1\r\nHost: x\r\n\r\n'],
    ['no HTTP at all', 'hello\r\n\r\n'],
    ['a head without end', `GET /${'a'.repeat(70_000)} HTTP/1.1\r\nHost: x\r\n\r\n`],
  ])('is answered by a problem: %s', async (_, text) => {
    const { status, headers, body } = await exchange(text);
    expect(status).toBe(400);
    expect(headers).toMatch(/content-type: application\/problem\+json/i);
    expect(body).toMatchObject({ type: '/errors/bad-request', status: 400, requestId: expect.any(String) });
  });

  test('may have a URL in absolute form, whose links lead to this service', async () => {
    for (const name of ['The first of two', 'The second of two']) await service.call('POST', '/studies', { name });
    const { status, body } = await exchange(await head('GET', 'http://elsewhere.example/api/v1/studies?pageSize=1'));
    expect(status).toBe(200);
    expect(body.paging.links.next).toMatch(/^http:\/\/x\/api\/v1\/studies\?/);
  });

  test('is 400 for an id of any length, and for one with other characters', async () => {
    for (const id of ['a'.repeat(20_000), 'a'.repeat(23), 'a'.repeat(25), '%20'.repeat(8), `${'a'.repeat(23)}é`]) {
      const answer = await service.call('GET', `/studies/${id}`);
      expect(answer.body).toMatchObject({ status: 400, errors: [{ parameter: 'studyId' }] });
    }
  });
});
