import pg from 'pg';
import Schema from 'typebox/schema';
import { beforeAll, describe, expect, test } from 'vitest';
import { newId } from '../src/lib/id.ts';
import { type Answer, eventually, type Json, useService } from './service.ts';

const service = useService();

async function newStudy(name = 'A study under audit'): Promise<string> {
  return (await service.call('POST', '/studies', { name })).body.studyId;
}

/** The event of a call, as the API tells it. */
async function eventOf(answer: Answer): Promise<Json> {
  const requestId = answer.headers.get('x-request-id');
  const text = 'select event_id from audit_events where request_id = $1';
  const row = await eventually(async () => (await service.pool.query(text, [requestId])).rows[0]);
  return (await service.call('GET', `/audit/events/${row.event_id}`)).body;
}

const list = async (query: string): Promise<Json[]> => (await service.call('GET', `/audit/events?${query}`)).body.items;

describe('an event', () => {
  test('has all members that decisions §7 lists', async () => {
    const { clientId, token } = await service.client();
    const answer = await service.call('POST', '/studies', { name: 'A study under audit' }, { token });
    const { studyId } = answer.body;
    expect(await eventOf(answer)).toEqual({
      eventId: expect.stringMatching(/^[0-9A-Za-z]{24}$/),
      sequence: expect.any(Number),
      recordedDate: expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/),
      event: 'STUDY_CREATED',
      clientId,
      operation: 'POST /studies',
      method: 'POST',
      path: '/api/v1/studies',
      status: 201,
      resourceType: 'study',
      resourceId: studyId,
      resourceIds: null,
      studyId,
      requestId: answer.headers.get('x-request-id'),
      reason: null,
      changes: null,
    });
  });

  test('of an update has only the members that changed, of attributes only the keys', async () => {
    const study = await newStudy();
    const attributes = { same: 1, changed: 'a', gone: null };
    await service.call('PUT', `/studies/${study}`, { name: 'A study under audit', attributes });
    const answer = await service.call('PUT', `/studies/${study}`, {
      name: 'A study under audit',
      siteId: 'B1',
      attributes: { same: 1, changed: 'b', __proto__x: true },
    });
    expect((await eventOf(answer)).changes).toEqual({
      before: { siteId: null, attributes: { changed: 'a', gone: null } },
      after: { siteId: 'B1', attributes: { changed: 'b', __proto__x: true } },
    });
    const nothing = await service.call('PUT', `/studies/${study}`, answer.body);
    expect((await eventOf(nothing)).changes).toEqual({ before: {}, after: {} });
    const renamed = await service.call('PUT', `/studies/${study}`, { ...answer.body, name: 'A study renamed' });
    expect((await eventOf(renamed)).changes).toEqual({
      before: { name: 'A study under audit', studyName: 'A study under audit' },
      after: { name: 'A study renamed', studyName: 'A study renamed' },
    });
  });

  test('of a deletion has the record before it, and null after it', async () => {
    const study = await newStudy();
    const { body } = await service.call('POST', `/studies/${study}/subjects`, {
      name: '1001',
      attributes: { SEX: 'M' },
    });
    const answer = await service.call('DELETE', `/studies/${study}/subjects/${body.subjectId}`);
    expect(await eventOf(answer)).toMatchObject({
      event: 'STUDY_UPDATED',
      resourceType: 'subject',
      resourceId: body.subjectId,
      studyId: study,
      changes: { before: body, after: null },
    });
    expect(await eventOf(await service.call('DELETE', `/studies/${study}`))).toMatchObject({
      event: 'STUDY_DELETED',
      resourceId: study,
      changes: { before: { studyId: study }, after: null },
    });
  });

  test('of a bulk action is one, with the ids in their order, and for an update what changed of each', async () => {
    const study = await newStudy();
    const items = [{ fileName: 'a.svs' }, { fileName: 'b.svs' }, { fileName: 'c.svs' }];
    const created = await service.call('POST', `/studies/${study}/slides:bulkCreate`, { items });
    const ids = created.body.items.map((slide: Json) => slide.slideId);
    expect(await eventOf(created)).toMatchObject({ event: 'STUDY_UPDATED', resourceId: null, resourceIds: ids });
    const [a, , c] = ids;
    const updated = await service.call('POST', `/studies/${study}/slides:bulkUpdate`, {
      items: [{ slideId: c, attributes: { STAIN: 'HE' } }, { slideId: a }],
    });
    expect(await eventOf(updated)).toMatchObject({
      event: 'STUDY_UPDATED',
      resourceType: 'slide',
      resourceIds: [c, a],
      changes: [
        { id: c, before: { attributes: {} }, after: { attributes: { STAIN: 'HE' } } },
        { id: a, before: {}, after: {} },
      ],
    });
  });

  test('has the reason that the client gave, in whatever letters, up to 1,000 characters', async () => {
    const study = await newStudy();
    const put = (reason: string) =>
      service.call(
        'PUT',
        `/studies/${study}`,
        { name: 'A study under audit' },
        { headers: { 'x-change-reason': reason } },
      );
    const utf8 = (text: string) => Buffer.from(text).toString('latin1');
    expect((await eventOf(await put(utf8('Übertragungsfehler – 転記')))).reason).toBe('Übertragungsfehler – 転記');
    expect((await eventOf(await put(utf8('é'.repeat(1_000))))).reason).toBe('é'.repeat(1_000));
    const long = await put('x'.repeat(1_001));
    expect(long.body).toMatchObject({ status: 400, errors: [{ header: 'X-Change-Reason' }] });
    expect(await eventOf(long)).toMatchObject({ event: 'CLIENT_ACCESSED_STUDY_FAILURE', reason: null });
    const read = await service.call('GET', `/studies/${study}`, undefined, { headers: { 'x-change-reason': 'QA' } });
    expect(await eventOf(read)).toMatchObject({ event: 'CLIENT_ACCESSED_STUDY', reason: 'QA' });
  });

  test('of a write is there with it or not at all', async () => {
    const study = await newStudy();
    const answer = await service.call('POST', `/studies/${study}/subjects:bulkCreate`, {
      items: [{ name: 'a' }, { name: 'a' }],
    });
    expect(answer.status).toBe(409);
    expect(await eventOf(answer)).toMatchObject({ event: 'CLIENT_REQUEST_REJECTED', status: 409, resourceIds: null });
    expect(await list(`studyId=${study}&event=STUDY_UPDATED`)).toEqual([]);
  });

  test('of a write or a failure is on record before the answer', async () => {
    const study = await newStudy();
    const text = 'select 1 from audit_events where request_id = $1';
    for (const answer of [
      await service.call('POST', `/studies/${study}/subjects`, { name: '1001' }),
      await service.call('POST', `/studies/${study}/subjects`, { name: '1001' }),
      await service.call('GET', `/studies/${'0'.repeat(24)}`),
      await service.call('DELETE', '/studies'),
    ]) {
      const { rows } = await service.pool.query(text, [answer.headers.get('x-request-id')]);
      expect(rows, `${answer.status}`).toHaveLength(1);
    }
  });

  test('holds no token, secret, query or body', async () => {
    const { token, clientSecret } = await service.client();
    await service.call('GET', `/studies?name=${clientSecret}`, undefined, { token });
    await service.call('POST', '/studies', { name: 'short', siteId: clientSecret, nonsense: clientSecret }, { token });
    await service.call('POST', '/studies', undefined, { token, raw: `{"client_secret":"${clientSecret}"` });
    const answer = await service.call('GET', '/studies?pageSize=1', undefined, { token });
    await eventOf(answer);
    const { rows } = await service.pool.query(
      `select row_to_json(e)::text || coalesce(row_to_json(d)::text, '') as text
         from audit_events e left join audit_details d using (event_id)`,
    );
    const all = rows.map(({ text }) => text).join('\n');
    expect(all).toContain('/api/v1/studies');
    for (const secret of [token, clientSecret, token.split('.')[2] as string]) expect(all).not.toContain(secret);
  });
});

describe('audit records', () => {
  const statements = [
    `update audit_events set status = 200`,
    `delete from audit_events`,
    `truncate audit_events`,
    `update audit_details set reason = null`,
    `delete from audit_details`,
    `truncate audit_details`,
  ];
  beforeAll(async () => {
    const study = await newStudy();
    await service.call('DELETE', `/studies/${study}`, undefined, { headers: { 'x-change-reason': 'a test' } });
  });

  test.each(statements)('cannot be changed by the service: %s', async (text) => {
    await expect(service.pool.query(text)).rejects.toMatchObject({ code: '42501' });
  });

  test.each(statements)('cannot be changed by the owner of the database: %s', async (text) => {
    const owner = new pg.Client({ connectionString: service.databaseUrl });
    await owner.connect();
    await expect(owner.query(text)).rejects.toMatchObject({ message: expect.stringContaining('audit records') });
    await owner.end();
  });

  test.each(['POST', 'PUT', 'PATCH', 'DELETE'])('cannot be changed through the API: %s', async (method) => {
    const [{ eventId }] = await list('pageSize=1');
    for (const path of ['/audit/events', `/audit/events/${eventId}`]) {
      const answer = await service.call(method, path);
      expect(answer.status).toBe(405);
      expect(answer.headers.get('allow')).toBe('GET, HEAD');
    }
  });
});

describe('the list of events', () => {
  test('is filtered by client, name, study, record and time, and walked page by page', async () => {
    const { clientId, token } = await service.client();
    const study = (await service.call('POST', '/studies', { name: 'A study to be found' }, { token })).body.studyId;
    const items = [{ name: 'a' }, { name: 'b' }];
    const bulk = await service.call('POST', `/studies/${study}/subjects:bulkCreate`, { items }, { token });
    const [a, b] = bulk.body.items;
    await service.call('DELETE', `/studies/${study}/subjects/${a.subjectId}`, undefined, { token });
    const names = (events: Json[]) => events.map(({ event, method }) => `${event} ${method}`);
    const all = await list(`clientId=${clientId}&studyId=${study}`);
    expect(names(all)).toEqual(['STUDY_CREATED POST', 'STUDY_UPDATED POST', 'STUDY_UPDATED DELETE']);
    expect(await list(`clientId=${clientId}&event=STUDY_UPDATED&sortDirection=DESC`)).toEqual([all[2], all[1]]);
    expect(await list(`resourceId=${a.subjectId}`)).toEqual([all[1], all[2]]);
    expect(await list(`resourceId=${b.subjectId}`)).toEqual([all[1]]);
    expect(await list(`studyId=${study}&from=${all[1].recordedDate}&to=${all[1].recordedDate}`)).toContainEqual(all[1]);
    expect(await list(`studyId=${study}&to=2020-01-01`)).toEqual([]);
    const day = all[0].recordedDate.slice(0, 10);
    expect((await list(`studyId=${study}&from=${day}`))[0]).toEqual(all[0]);
    const lastDay = all[2].recordedDate.slice(0, 10);
    expect(await list(`studyId=${study}&to=${lastDay}`), 'a date is the whole day').toContainEqual(all[2]);
    expect(await list('clientId=nobody')).toEqual([]);
    const walked: Json[] = [];
    for (let url: string | null = `/audit/events?studyId=${study}&pageSize=1`; url; ) {
      const { body }: Json = await service.call('GET', url);
      walked.push(...body.items);
      const { next } = body.paging.links;
      url = next?.slice(next.indexOf('/audit'));
    }
    expect(walked).toEqual(all);
  });

  test.each([
    'from=2026-02-30',
    'from=2026-13-01',
    'from=0000-01-01',
    'to=yesterday',
    'to=2026-01-01T00:00:00',
    'from=2026-01-01T00:00:00%2B24:00',
    'studyId=short',
    'resourceId=short',
    'sort=createdDate',
    'event=NOPE',
    'event=study_updated',
    'event=',
  ])('answers 400 that names the parameter: %s', async (query) => {
    const answer = await service.call('GET', `/audit/events?${query}`);
    expect(answer.body).toMatchObject({ status: 400, errors: [{ parameter: query.split('=')[0] }] });
  });

  test('is filtered by every name that the API document lists, which are those of interface.md and decisions §7', async () => {
    const { body } = await service.call('GET', '/openapi.json');
    const { parameters } = body.paths['/audit/events'].get;
    const names: string[] = parameters.find(({ name }: Json) => name === 'event').schema.enum;
    expect(body.components.schemas.AuditEvent.properties.event.examples).toEqual(names);
    expect([...names].sort()).toEqual([
      'CLIENT_ACCESSED_STUDY',
      'CLIENT_ACCESSED_STUDY_FAILURE',
      'CLIENT_REQUEST_REJECTED',
      'CLIENT_STUDY_EXPORT',
      'CLIENT_STUDY_EXPORT_DELETED',
      'CLOUD_CREDENTIAL_CREATED',
      'CLOUD_CREDENTIAL_DELETED',
      'CLOUD_CREDENTIAL_UPDATED',
      'CLOUD_CREDENTIAL_VALIDATED',
      'IMAGE_JOB_CANCELLED',
      'IMAGE_JOB_COMPLETED',
      'IMAGE_JOB_CREATED',
      'IMAGE_JOB_RETRIED',
      'STUDY_CREATED',
      'STUDY_DELETED',
      'STUDY_UPDATED',
    ]);
    for (const name of names) {
      const answer = await service.call('GET', `/audit/events?event=${name}&pageSize=1`);
      expect(answer.status, name).toBe(200);
      for (const { event } of answer.body.items) expect(event).toBe(name);
    }
  });

  test('tells what another version of the service left, as the API document says', async () => {
    const eventId = newId();
    await service.pool.query(
      `insert into audit_events (event_id, event, client_id, operation, method, path, request_id)
       values ($1, 'NAME_OF_ANOTHER_VERSION', 'job', 'POST /x', 'POST', '/api/v1/x', 'r')`,
      [eventId],
    );
    const { body: record } = await service.call('GET', `/audit/events/${eventId}`);
    expect(await list('sortDirection=DESC')).toContainEqual(record);
    expect(record).toMatchObject({ event: 'NAME_OF_ANOTHER_VERSION' });
    const { components } = (await service.call('GET', '/openapi.json')).body;
    const schema = { $ref: '#/components/schemas/AuditEvent', components };
    expect(Schema.Errors(schema, record)).toEqual([true, []]);
    expect(Schema.Errors(schema, { ...record, event: 1 })[0]).toBe(false);
  });

  test.each(['from=2026-01-01T00:00:00%2B23:59', 'to=9999-12-31', 'from=0001-01-01', 'to=2026-01-01T24:00:00Z'])(
    'takes every moment of the calendar: %s',
    async (query) => {
      expect((await service.call('GET', `/audit/events?${query}`)).status).toBe(200);
    },
  );
});
