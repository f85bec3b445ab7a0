import { Agent, request } from 'node:http';
import { connect } from 'node:net';
import { describe, expect, test } from 'vitest';
import { eventually, type Json, useService } from './service.ts';

const service = useService();
const post = (raw: string | Uint8Array, headers: Record<string, string> = {}) =>
  service.call('POST', '/studies', undefined, { raw, headers });

describe('a body', () => {
  test.each(['null', '[]', '"text"', '5', '', '[{}]'])('that is no object is 400: %s', async (raw) => {
    const answer = await post(raw);
    expect(answer.body).toMatchObject({ status: 400, errors: [{ pointer: '' }] });
  });

  test.each(['{', '{"name":"a study of ten"} x', '{"name":1e}', "{'name':1}", '\u0000'])(
    'that is not JSON is 400: %j',
    async (raw) => {
      expect((await post(raw)).body).toMatchObject({ status: 400, errors: [{ pointer: '' }] });
    },
  );

  test('that is not UTF-8 is 400', async () => {
    expect((await post(Buffer.from('{"name":"é"}', 'latin1'))).body.detail).toContain('not UTF-8');
  });

  test('that is not JSON is told along with the other faults of its request', async () => {
    const headers = { 'x-change-reason': 'x'.repeat(1_001) };
    const { body } = await service.call('POST', '/studies/bad/subjects?x=1', undefined, { raw: '{', headers });
    expect(body.status).toBe(400);
    expect(body.errors.map((one: Json) => one.pointer ?? one.parameter ?? one.header)).toEqual(
      expect.arrayContaining(['', 'studyId', 'x', 'X-Change-Reason']),
    );
  });

  test('that breaks off is a failure of its client on record, and no outage of the database', async () => {
    const { token, clientId } = await service.client();
    // So that its token is known, and the call is its client's from the first byte on.
    await service.call('GET', '/studies', undefined, { token });
    const { hostname, port } = new URL(service.url);
    const socket = connect(Number(port), hostname);
    const length = 'Content-Length: 100\r\nExpect: 100-continue';
    const headers = `Host: x\r\nAuthorization: Bearer ${token}\r\nContent-Type: application/json\r\n${length}`;
    // Once it is asked for its body, its call has begun.
    socket.once('data', () => socket.write('{"name"', () => socket.destroy()));
    socket.write(`POST /api/v1/studies HTTP/1.1\r\n${headers}\r\n\r\n`);
    const event = await eventually(async () => {
      const { body } = await service.call('GET', `/audit/events?clientId=${clientId}`);
      return body.items.find(({ method }: Json) => method === 'POST');
    });
    expect(event).toMatchObject({ event: 'CLIENT_ACCESSED_STUDY_FAILURE', status: 400, method: 'POST' });
  });

  test('is JSON by its Content-Type, in whatever case and with parameters, or 415', async () => {
    const raw = '{"name":"a study of ten"}';
    for (const type of ['application/json', 'Application/JSON', 'application/json; charset=utf-8']) {
      expect((await post(raw, { 'content-type': type })).status, type).toBe(201);
    }
    for (const type of ['application/jsonx', 'application/json-patch+json', 'text/json', 'application/xml']) {
      expect((await post(raw, { 'content-type': type })).body.type, type).toBe('/errors/unsupported-media-type');
    }
  });

  test('keeps numbers that a double can hold, and no others', async () => {
    const raw = '{"name":"a study of ten","attributes":{"a":-0,"b":1e-400,"c":1e21,"d":0.1}}';
    expect((await post(raw)).body.attributes).toEqual({ a: 0, b: 0, c: 1e21, d: 0.1 });
    const huge = await post('{"name":"a study of ten","attributes":{"a":1e400}}');
    expect(huge.body).toMatchObject({ status: 400, errors: [{ pointer: '/attributes/a' }] });
  });

  test('tells all its faults at once, those of its name too', async () => {
    const answer = await service.call('POST', '/studies', { siteId: 'x'.repeat(256), nonsense: 1 });
    const pointers = answer.body.errors.map(({ pointer }: Json) => pointer);
    expect(pointers.sort()).toEqual(['/name', '/nonsense', '/siteId']);
  });

  test('may have 1,000 keys of its own beside those that the service manages', async () => {
    const { studyId } = (await post('{"name":"a study of ten"}')).body;
    const attributes = Object.fromEntries(Array.from({ length: 1_000 }, (_, i) => [`k${i}`, i]));
    const path = `/studies/${studyId}/subjects`;
    const { body } = await service.call('POST', path, { name: '1001', attributes });
    expect(Object.keys(body.attributes)).toHaveLength(1_001);
    const put = await service.call('PUT', `${path}/${body.subjectId}`, body);
    expect(put.status, put.text).toBe(200);
    const more = { ...body, attributes: { ...body.attributes, another: 1 } };
    expect((await service.call('PUT', `${path}/${body.subjectId}`, more)).status).toBe(422);
  });

  test('loses managed keys from every map, also from that of a code', async () => {
    const { studyId } = (await post('{"name":"a study of ten"}')).body;
    const attributes = { SUBJID: 'x', MISPEC: 'x', 'FILE NAME': 'x', kept: 1 };
    const codeLists = { L: [{ code: 'A', label: 'a', attributes }] };
    const { body } = await service.call('POST', `/studies/${studyId}/codes`, { codeLists, attributes });
    expect(body.attributes).toEqual({ kept: 1 });
    expect(body.codeLists.L[0].attributes).toEqual({ kept: 1 });
  });
});

describe('a hostile body', () => {
  test.each([
    ['deep nesting', '['.repeat(4_000_000)],
    ['empty objects', `[${'{},'.repeat(2_000_000)}{}]`],
  ])('of %s is refused before it takes a multiple of its memory', async (_, raw) => {
    expect((await post(raw)).body.detail).toContain('too many objects and arrays');
  });

  test('gets an answer that is not many times its size', async () => {
    const { studyId } = (await post('{"name":"a study of ten"}')).body;
    const codeLists = { ['k'.repeat(1_000_000)]: Array.from({ length: 2_000 }, () => ({ code: 5 })) };
    const answer = await service.call('POST', `/studies/${studyId}/codes`, { codeLists });
    expect(answer.status).toBe(422);
    expect(answer.text.length).toBeLessThan(3_000_000);
  });

  test('that is too large is answered 413 and read to its end, so that the connection lives on', async () => {
    const agent = new Agent({ keepAlive: true, maxSockets: 1 });
    const { token } = await service.client();
    const ports = new Set<number | undefined>();
    const send = (method: string, path: string, body?: string): Promise<number | undefined> =>
      new Promise((resolve, reject) => {
        const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/json' };
        const sent = request(`${service.url}${path}`, { method, agent, headers }, (response) => {
          ports.add(response.socket.localPort);
          response.resume().on('end', () => resolve(response.statusCode));
        });
        sent.on('error', reject);
        sent.end(body);
      });
    const huge = ' '.repeat(20 * 2 ** 20);
    expect(await send('POST', '/api/v1/studies', huge)).toBe(413);
    expect(await send('POST', '/api/v1/nothing', huge)).toBe(404);
    expect(await send('GET', '/api/v1/studies')).toBe(200);
    expect(ports.size).toBe(1);
    agent.destroy();
  });
});

describe('a cursor that was tampered with', () => {
  const cursor = (...parts: unknown[]) => Buffer.from(JSON.stringify(parts)).toString('base64url');
  const id = '0'.repeat(24);
  test.each([
    ['next', 2, 25, 'createdDate', 'ASC', '1', id],
    ['next', 2, 25, 'createdDate', 'ASC', '2026-02-30T00:00:00.000Z', id],
    ['next', 2, 25, 'createdDate', 'ASC', '+275760-09-13T00:00:00.000Z', id],
    ['next', 2, 25, 'createdDate', 'ASC', '0000-01-01T00:00:00.000Z', id],
    ['next', 2, 25, 'createdDate', 'ASC', '2026-01-01T00:00:00.000Z', '\u0000'],
    ['next', 2, 25, 'studyName', 'ASC', '\u0000', id],
  ])('is 400 that names it: %j', async (...parts) => {
    const answer = await service.call('GET', `/studies?pageNumber=2&sort=${parts[3]}&cursor=${cursor(...parts)}`);
    expect(answer.body).toMatchObject({ status: 400, errors: [{ parameter: 'cursor' }] });
  });
});
