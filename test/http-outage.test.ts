import pg from 'pg';
import { expect, test } from 'vitest';
import { isUnavailable, openPool, transaction } from '../src/db/database.ts';
import { eventually, type Json, useService } from './service.ts';

const service = useService();
const counts = (answers: { status: number }[]) => {
  const found: Record<number, number> = {};
  for (const { status } of answers) found[status] = (found[status] ?? 0) + 1;
  return found;
};

/** Runs a statement as the owner, on a connection to another database. */
async function asOwner(text: string): Promise<void> {
  const name = service.databaseUrl.replace(/^(postgres(?:ql)?:\/\/[^/]*\/)[^?]*/, '$1postgres');
  const owner = new pg.Client({ connectionString: name });
  await owner.connect();
  await owner.query(text);
  await owner.end();
}

test('while the database is out of reach every call answers 503 with Retry-After, and afterwards all is well', async () => {
  const { token } = await service.client();
  const [, database] = /^postgres(?:ql)?:\/\/[^/]*\/([^?]*)/.exec(service.databaseUrl) as unknown as [string, string];
  expect((await service.call('GET', '/studies', undefined, { token })).status).toBe(200);
  await asOwner(`alter database ${database} allow_connections false`);
  await asOwner(`select pg_terminate_backend(pid) from pg_stat_activity where datname = '${database}'`);
  try {
    for (const [method, path, body] of [
      ['GET', '/studies', undefined],
      ['POST', '/studies', { name: 'A study in an outage' }],
      ['PUT', `/studies/${'0'.repeat(24)}`, { name: 'A study in an outage' }],
    ] as const) {
      const answer = await service.call(method, path, body, { token });
      expect(answer.body, `${method} ${path}`).toMatchObject({ status: 503, type: '/errors/unavailable' });
      expect(Number(answer.headers.get('retry-after'))).toBeGreaterThan(0);
    }
    // Its event cannot be recorded, and without one there is no other answer.
    expect((await service.call('POST', '/studies', { nonsense: 1 }, { token })).status).toBe(503);
    const ready = await fetch(`${service.url}/readyz`);
    expect(ready.status).toBe(503);
    expect(((await ready.json()) as Json).checks).toMatchObject({ database: 'does not answer', objectStore: 'ok' });
    expect((await fetch(`${service.url}/healthz`)).status).toBe(200);
  } finally {
    await asOwner(`alter database ${database} allow_connections true`);
  }
  await eventually(
    async () => (await service.call('POST', '/studies', { name: 'After it' }, { token })).status === 422,
  );
  expect((await service.call('POST', '/studies', { name: 'A study afterwards' }, { token })).status).toBe(201);
});

test('a database that froze is out of reach, and the connection that waits for it is given up', async () => {
  const pool = openPool({ url: service.databaseUrl, name: 'frozen', max: 1, queryTimeoutMs: 200 });
  const error = await transaction(pool, (tx) => tx.query({ text: 'select pg_sleep(60)' })).catch((one) => one);
  expect(isUnavailable(error)).toBe(true);
  expect((await pool.query('select 1 as one')).rows).toEqual([{ one: 1 }]);
  await pool.end();
});

test('clients that lock the same records in other orders all get an answer', async () => {
  const study = (await service.call('POST', '/studies', { name: 'A study of conflicts' })).body.studyId;
  const path = `/studies/${study}`;
  const items = Array.from({ length: 100 }, (_, i) => ({ name: `n${i}` }));
  const creations = await Promise.all(
    Array.from({ length: 12 }, (_, i) =>
      service.call('POST', `${path}/subjects:bulkCreate`, { items: i % 2 ? items : items.toReversed() }),
    ),
  );
  expect(counts(creations)).toEqual({ 201: 1, 409: 11 });
  const { items: subjects } = (await service.call('GET', `${path}/subjects?pageSize=1`)).body;
  const [{ subjectId }] = subjects;
  const files = Array.from({ length: 100 }, (_, i) => ({ fileName: `${i}.svs`, subjectId }));
  const slides: Json[] = (await service.call('POST', `${path}/slides:bulkCreate`, { items: files })).body.items;
  const updates = slides.map(({ slideId }) => ({ slideId, subjectId }));
  const answers = await Promise.all([
    service.call('DELETE', `${path}/subjects/${subjectId}`),
    ...Array.from({ length: 12 }, (_, i) =>
      service.call('POST', `${path}/slides:bulkUpdate`, { items: i % 2 ? updates : updates.toReversed() }),
    ),
  ]);
  expect(answers[0]?.status).toBe(204);
  for (const { status, text } of answers.slice(1)) expect([200, 422], text).toContain(status);
});

test('of a subject’s deletion and a new organ of it, one succeeds and the other is refused', async () => {
  const study = (await service.call('POST', '/studies', { name: 'A study of conflicts' })).body.studyId;
  for (let round = 0; round < 10; round++) {
    const { subjectId } = (await service.call('POST', `/studies/${study}/subjects`, { name: `s${round}` })).body;
    const [deletion, creation] = await Promise.all([
      service.call('DELETE', `/studies/${study}/subjects/${subjectId}`),
      service.call('POST', `/studies/${study}/organs`, { subjectId, name: 'LIVER' }),
    ]);
    expect([deletion.status, creation.status].join()).toMatch(/^(204,422|422,201)$/);
  }
});

test('of 50 writers that all saw the same version, one succeeds', async () => {
  const { body: study } = await service.call('POST', '/studies', { name: 'A study of conflicts' });
  const put = (headers: Record<string, string>) => service.call('PUT', `/studies/${study.studyId}`, study, { headers });
  expect(counts(await Promise.all(Array.from({ length: 50 }, () => put({ 'if-match': '"1"' }))))).toEqual({
    200: 1,
    412: 49,
  });
  expect(counts(await Promise.all(Array.from({ length: 50 }, () => put({}))))).toEqual({ 200: 50 });
  expect((await service.call('GET', `/studies/${study.studyId}`)).body.version).toBe(52);
});
