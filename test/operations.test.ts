import { beforeAll, describe, expect, test } from 'vitest';
import type { Scope } from '../src/auth/scopes.ts';
import { scopeNames } from '../src/auth/scopes.ts';
import { failureEvent, type Step, walkApi } from './api-walk.ts';
import { type Answer, eventually, type Json, useService } from './service.ts';

const service = useService({ SDS_BODY_LIMIT: '64KiB' });

/** Every operation of the API that needs a token, as its document lists them. */
let operations: { method: string; path: string; scope: Scope; event: string; body: Json }[];

beforeAll(async () => {
  const document: Json = await (await fetch(`${service.url}/api/v1/openapi.json`)).json();
  operations = Object.entries<Json>(document.paths).flatMap(([path, item]) =>
    ['get', 'put', 'post', 'delete']
      .filter((method) => item[method]?.security?.[0]?.oauth2)
      .map((method) => {
        const { security, description, requestBody } = item[method];
        const [, event = ''] = /audit event `([A-Z_]+)`/.exec(description) ?? [];
        const body = requestBody?.content['application/json'].example;
        return { method: method.toUpperCase(), path, scope: security[0].oauth2[0], event, body };
      }),
  );
  expect(operations.length).toBeGreaterThan(40);
});

/** The events of calls by their request ids, once all that are awaited are there. */
async function eventsOf(answers: Answer[]): Promise<Map<string, Json[]>> {
  const ids = answers.map(({ headers }) => headers.get('x-request-id'));
  const text = `select * from audit_events where request_id = any($1) order by sequence`;
  const rows = await eventually(async () => {
    const { rows } = await service.pool.query(text, [ids]);
    return rows.length >= ids.length && rows;
  });
  const byId = new Map<string, Json[]>();
  for (const row of rows) byId.set(row.request_id, [...(byId.get(row.request_id) ?? []), row]);
  return byId;
}

const nowhere = (path: string) => path.replace(/\{\w+\}/g, '0'.repeat(24));

describe('every authenticated call leaves exactly one event', () => {
  test('of the name, record and study that it concerns', async () => {
    const steps: Step[] = [];
    await walkApi(service, (step) => steps.push(step));
    const events = await eventsOf(steps.map(({ answer }) => answer));
    for (const { method, path, answer, event, resourceId, studyId } of steps) {
      const found = events.get(answer.headers.get('x-request-id') ?? '') ?? [];
      const what = `${method} ${path} ${answer.status}`;
      expect(found.length, what).toBe(1);
      expect(found[0], what).toMatchObject({
        event,
        method,
        operation: `${method} ${path}`,
        status: answer.status,
        resource_id: resourceId,
        study_id: studyId,
      });
      expect(found[0].path).not.toContain('?');
    }
  });

  test.each([
    ['403', (op: { scope: string }) => ({ token: op.scope }), () => true],
    ['400', () => ({ query: '?nonsense=1' }), () => true],
    [
      '404',
      () => ({}),
      (op: { path: string; event: string }) => op.path.includes('{') && !op.event.startsWith('CLOUD'),
    ],
    ['405', () => ({ method: 'PATCH' }), () => true],
    ['415', () => ({ headers: { 'content-type': 'text/plain' } }), (op: { body: Json }) => op.body !== undefined],
    ['413', () => ({ raw: ' '.repeat(70_000) }), (op: { body: Json }) => op.body !== undefined],
  ] as const)('when it is rejected with %s', async (status, how, applies) => {
    const tokens = new Map<string, string>();
    for (const scope of status === '403' ? scopeNames : []) {
      tokens.set(scope, (await service.client(...scopeNames.filter((one) => one !== scope))).token);
    }
    const calls: { answer: Answer<Json>; op: (typeof operations)[number]; method: string }[] = [];
    for (const op of operations.filter((one) => applies(one as never))) {
      const { token, query = '', method = op.method, ...options } = how(op as never) as Record<string, never>;
      const given = token === undefined ? {} : { token: tokens.get(token) as string };
      const raw = 'raw' in options ? undefined : op.body;
      const answer = await service.call(method, nowhere(op.path) + query, raw, { ...options, ...given });
      expect(answer.status, `${method} ${op.path}: ${answer.text}`).toBe(Number(status));
      expect(answer.headers.get('content-type')).toMatch(/^application\/problem\+json/);
      expect(answer.body).toMatchObject({ status: Number(status), requestId: answer.headers.get('x-request-id') });
      if (status === '403') {
        expect(answer.body.detail).toBe(`Missing scope ${op.scope.replace(':', '_').toUpperCase()}.`);
      }
      calls.push({ answer, op, method });
    }
    const events = await eventsOf(calls.map(({ answer }) => answer));
    for (const { answer, op, method } of calls) {
      const found = events.get(answer.headers.get('x-request-id') ?? '') ?? [];
      expect(found, `${method} ${op.path}`).toMatchObject([
        { event: failureEvent(Number(status)), status: Number(status), operation: `${method} ${op.path}` },
      ]);
    }
  });

  test('and one without a token leaves none', async () => {
    for (const { method, path } of operations) {
      const answer = await service.call(method, nowhere(path), undefined, { token: null });
      expect(answer.status, `${method} ${path}`).toBe(401);
      expect(answer.headers.get('www-authenticate')).toBe('Bearer');
    }
    const { rows } = await service.pool.query(`select 1 from audit_events where status = 401`);
    expect(rows).toEqual([]);
  });

  test('also for a path that is not there and a URL that cannot be decoded', async () => {
    const answers = [await service.call('POST', '/nothing', {}), await service.call('GET', '/studies/%ZZ')];
    expect(answers.map(({ status }) => status)).toEqual([404, 400]);
    const events = await eventsOf(answers);
    for (const answer of answers) {
      expect(events.get(answer.headers.get('x-request-id') ?? '')).toMatchObject([
        { event: 'CLIENT_ACCESSED_STUDY_FAILURE', operation: expect.stringContaining('(unknown path)') },
      ]);
    }
  });
});
