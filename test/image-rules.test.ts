import { once } from 'node:events';
import { get, type IncomingMessage } from 'node:http';
import { text } from 'node:stream/consumers';
import { setTimeout } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { jobStatuses, transitions } from '../src/images/states.ts';
import { newId } from '../src/lib/id.ts';
import { createCredential, createStudy, filesOf, makeRoot } from './image-jobs.ts';
import { eventually, type Json, useService } from './service.ts';

const root = await makeRoot();
afterAll(() => root.remove());
/** Nobody works on jobs here: they stay as they are created. */
const service = useService({ SDS_FILE_ROOTS: `scanner=${root.dir}`, SDS_WORKERS: '0', SDS_IMAGE_JOBS_PER_CLIENT: '5' });
let credentialId = '';
let studyId = '';
beforeAll(async () => {
  credentialId = await createCredential(service, 'scanner');
  studyId = await createStudy(service);
});

/** Posts as a client of its own, so that no other test counts against its limit. */
async function asClient() {
  const { token, clientId } = await service.client();
  return {
    clientId,
    post: (path: string, body?: Json, headers: Record<string, string> = {}) =>
      service.call('POST', path, body, { token, headers }),
  };
}
const ingest = '/image/jobs:ingest';
const body = (more: Json = { prefix: 'a/' }) => ({ studyId, credentialId, ...more });
const eventsOf = async (jobId: string): Promise<Json[]> =>
  (await service.call('GET', `/audit/events?resourceId=${jobId}`)).body.items;

describe('starting a job', () => {
  test('is 202 with the job, where it can be read and when to ask again', async () => {
    const client = await asClient();
    const started = await client.post(ingest, body());
    expect(started.status).toBe(202);
    expect(started.headers.get('location')).toBe(`/api/v1/image/jobs/${started.body.jobId}`);
    expect(Number(started.headers.get('retry-after'))).toBeGreaterThan(0);
    expect(started.body).toEqual({
      jobId: expect.stringMatching(/^[0-9A-Za-z]{24}$/),
      type: 'INGEST',
      status: 'CREATED',
      studyId,
      credentialId,
      clientId: client.clientId,
      attempt: 1,
      files: { total: 0, completed: 0, skipped: 0, failed: 0, cancelled: 0 },
      bytes: { total: 0, transferred: 0 },
      errorMessage: null,
      cancelRequestedDate: null,
      createdDate: expect.any(String),
      startedDate: null,
      completedDate: null,
    });
    const read = await service.call('GET', `/image/jobs/${started.body.jobId}`);
    expect(read.body).toEqual(started.body);
    expect(await eventsOf(started.body.jobId)).toMatchObject([
      { event: 'IMAGE_JOB_CREATED', clientId: client.clientId, status: 202, resourceType: 'imageJob', studyId },
    ]);
  });

  test('needs exactly one of prefix and files', async () => {
    const client = await asClient();
    for (const members of [{}, { prefix: 'a', files: [{ key: 'a' }] }]) {
      const answer = await client.post(ingest, body(members));
      expect(answer.status).toBe(400);
      expect(answer.body.errors[0].pointer).toBe('/prefix');
    }
  });

  test.each([
    [{ files: [] }, '/files'],
    [{ prefix: 1 }, '/prefix'],
    [{ prefix: 'a', overwrite: 'yes' }, '/overwrite'],
    [{ files: [{ fileName: 'a' }] }, '/files/0/key'],
    [{ files: [{ key: 'a', subjectId: 'short' }] }, '/files/0/subjectId'],
    [{ prefix: 'a', fils: 1 }, '/fils'],
  ])('is 400 for %j', async (members, pointer) => {
    const answer = await (await asClient()).post(ingest, body(members));
    expect(answer.status).toBe(400);
    expect(answer.body.errors.map((fault: Json) => fault.pointer)).toContain(pointer);
  });

  test('is 422 with a pointer for whatever does not exist or cannot be, all at once', async () => {
    const other = await createStudy(service);
    const { body: subject } = await service.call('POST', `/studies/${other}/subjects`, { name: '1001' });
    const answer = await (await asClient()).post(
      ingest,
      body({
        credentialId: newId(),
        files: [
          { key: 'a/1.svs', subjectId: subject.subjectId },
          { key: 'b/1.svs', organId: newId() },
          { key: 'folder/' },
          { key: '\u{1f9ec}'.repeat(300) },
        ],
      }),
    );
    expect(answer.status).toBe(422);
    expect(answer.body.errors.map((fault: Json) => fault.pointer).sort()).toEqual([
      '/credentialId',
      '/files/0/subjectId',
      '/files/1/key',
      '/files/1/organId',
      '/files/2/key',
      '/files/3/key',
    ]);
    const unknown = await (await asClient()).post(ingest, { studyId: newId(), credentialId, prefix: '' });
    expect([unknown.status, unknown.body.errors]).toEqual([422, [{ pointer: '/studyId', detail: 'is no study' }]]);
  });

  test('links to the subject of the organ that a file names', async () => {
    const { body: subject } = await service.call('POST', `/studies/${studyId}/subjects`, { name: '1001' });
    const { subjectId } = subject;
    const { body: organ } = await service.call('POST', `/studies/${studyId}/organs`, { subjectId, name: 'LIVER' });
    const { body: second } = await service.call('POST', `/studies/${studyId}/subjects`, { name: '1002' });
    const client = await asClient();
    const { organId } = organ;
    const right = await client.post(ingest, body({ files: [{ key: 'a.svs', organId }] }));
    expect(right.status).toBe(202);
    const wrong = await client.post(ingest, body({ files: [{ key: 'a.svs', organId, subjectId: second.subjectId }] }));
    expect([wrong.status, wrong.body.errors[0].pointer]).toEqual([422, '/files/0/organId']);
  });

  test('of a transfer needs images', async () => {
    const client = await asClient();
    const none = await client.post('/image/jobs:transfer', { studyId, credentialId });
    expect([none.status, none.body.errors[0].pointer]).toEqual([422, '/studyId']);
    const { body: slide } = await service.call('POST', `/studies/${studyId}/slides`, { fileName: 'empty.svs' });
    const without = await client.post('/image/jobs:transfer', {
      studyId,
      credentialId,
      slideIds: [slide.slideId, newId()],
    });
    expect(without.status).toBe(422);
    expect(without.body.errors).toEqual([
      { pointer: '/slideIds/0', detail: 'has no image' },
      { pointer: '/slideIds/1', detail: 'is no slide of this study' },
    ]);
    const twice = await client.post('/image/jobs:transfer', {
      studyId,
      credentialId,
      slideIds: [slide.slideId, slide.slideId],
    });
    expect(twice.status).toBe(400);
  });

  test('needs Image:Write, and reading jobs Image:Read', async () => {
    const { token } = await service.client('Study:Write');
    const refused = await service.call('POST', ingest, body(), { token });
    expect([refused.status, refused.body.detail]).toEqual([403, 'Missing scope IMAGE_WRITE.']);
    expect((await service.call('GET', '/image/jobs', undefined, { token })).body.detail).toBe(
      'Missing scope IMAGE_READ.',
    );
  });
});

describe('the Idempotency-Key', () => {
  test('makes one job of 50 simultaneous posts', async () => {
    const client = await asClient();
    const answers = await Promise.all(
      Array.from({ length: 50 }, () => client.post(ingest, body(), { 'idempotency-key': 'once' })),
    );
    expect(new Set(answers.map(({ status }) => status))).toEqual(new Set([202]));
    expect(new Set(answers.map((answer) => answer.body.jobId)).size).toBe(1);
    expect(answers.filter(({ headers }) => headers.get('idempotency-replayed') === 'true').length).toBe(49);
    const events = await service.call('GET', `/audit/events?resourceId=${answers[0]?.body.jobId}`);
    expect(events.body.paging.totalItems).toBe(50);
  });

  test('means the same bare and quoted, and whatever the order of members', async () => {
    const client = await asClient();
    const first = await client.post(ingest, body(), { 'idempotency-key': 'a "key"' });
    const { prefix, ...rest } = body();
    const again = await client.post(ingest, { prefix, ...rest }, { 'idempotency-key': '"a \\"key\\""' });
    expect(again.body.jobId).toBe(first.body.jobId);
  });

  test('gives the job as it is now, also when the study is gone', async () => {
    const client = await asClient();
    const gone = await createStudy(service);
    const request = { studyId: gone, credentialId, prefix: 'x' };
    const { body: job } = await client.post(ingest, request, { 'idempotency-key': 'k' });
    await client.post(`/image/jobs/${job.jobId}:cancel`);
    await service.call('DELETE', `/studies/${gone}`);
    const again = await client.post(ingest, request, { 'idempotency-key': 'k' });
    expect(again.status).toBe(202);
    expect(again.body).toMatchObject({ jobId: job.jobId, status: 'FAILED' });
  });

  test('with another body is 422', async () => {
    const client = await asClient();
    await client.post(ingest, body(), { 'idempotency-key': 'k' });
    const other = await client.post(ingest, body({ prefix: 'b/' }), { 'idempotency-key': 'k' });
    expect(other.status).toBe(422);
    expect(other.body.errors).toEqual([{ header: 'Idempotency-Key', detail: 'was used before with another body' }]);
  });

  test('is one of its client and its endpoint', async () => {
    const client = await asClient();
    const mine = await client.post(ingest, body(), { 'idempotency-key': 'k' });
    const theirs = await (await asClient()).post(ingest, body(), { 'idempotency-key': 'k' });
    expect(theirs.body.jobId).not.toBe(mine.body.jobId);
    const elsewhere = await client.post('/image/jobs:transfer', { studyId, credentialId }, { 'idempotency-key': 'k' });
    expect(elsewhere.body.errors[0].pointer).toBe('/studyId');
  });

  test('is left behind by no refusal', async () => {
    const client = await asClient();
    const refused = await client.post(ingest, body({ credentialId: newId(), prefix: 'a' }), { 'idempotency-key': 'k' });
    expect(refused.status).toBe(422);
    expect((await client.post(ingest, body(), { 'idempotency-key': 'k' })).status).toBe(202);
  });

  test.each([['""'], ['x'.repeat(256)], ['"open']])('%j is 400', async (key) => {
    const answer = await (await asClient()).post(ingest, body(), { 'idempotency-key': key });
    expect(answer.status).toBe(400);
    expect(answer.body.errors[0].header).toBe('Idempotency-Key');
  });
});

describe('the limit of jobs of a client', () => {
  test('holds under simultaneous posts, and a resubmitted key does not count', async () => {
    const client = await asClient();
    const answers = await Promise.all(
      Array.from({ length: 20 }, (_, n) => client.post(ingest, body(), { 'idempotency-key': `key ${n}` })),
    );
    expect(answers.filter(({ status }) => status === 202).length).toBe(5);
    const refused = answers.filter(({ status }) => status === 429);
    expect(refused.length).toBe(15);
    expect(refused[0]?.body.type).toBe('/errors/too-many-requests');
    expect(Number(refused[0]?.headers.get('retry-after'))).toBeGreaterThan(0);
    const started = answers.findIndex(({ status }) => status === 202);
    const again = await client.post(ingest, body(), { 'idempotency-key': `key ${started}` });
    expect([again.status, again.body.jobId]).toEqual([202, answers[started]?.body.jobId]);
  });

  test('counts a retry', async () => {
    const client = await asClient();
    const { body: job } = await client.post(ingest, body());
    await client.post(`/image/jobs/${job.jobId}:cancel`);
    for (let n = 0; n < 5; n++) await client.post(ingest, body());
    expect((await client.post(`/image/jobs/${job.jobId}:retry`)).status).toBe(429);
  });
});

describe('a job that waits', () => {
  test('ends at once when it is cancelled: its files are CANCELLED, and it is FAILED', async () => {
    const client = await asClient();
    const { body: job } = await client.post(ingest, body({ files: [{ key: 'a/1.svs' }, { key: '2', fileName: 'b' }] }));
    expect(job.files.total).toBe(2);
    const cancelled = await client.post(`/image/jobs/${job.jobId}:cancel`, {});
    expect(cancelled.status).toBe(202);
    expect(cancelled.body).toMatchObject({
      status: 'FAILED',
      files: { total: 2, completed: 0, skipped: 0, failed: 0, cancelled: 2 },
      errorMessage: 'The job was cancelled.',
      cancelRequestedDate: expect.any(String),
      completedDate: expect.any(String),
    });
    expect((await filesOf(service, job.jobId)).map(({ name, status }) => [name, status])).toEqual([
      ['1.svs', 'CANCELLED'],
      ['b', 'CANCELLED'],
    ]);
    expect((await eventsOf(job.jobId)).map(({ event, status }) => [event, status])).toEqual([
      ['IMAGE_JOB_CREATED', 202],
      ['IMAGE_JOB_COMPLETED', null],
      ['IMAGE_JOB_CANCELLED', 202],
    ]);
    expect((await client.post(`/image/jobs/${job.jobId}:cancel`)).status).toBe(409);
  });

  test('that was cancelled can be retried, and one that waits cannot', async () => {
    const client = await asClient();
    const { body: job } = await client.post(ingest, body({ files: [{ key: 'a/1.svs' }] }));
    expect((await client.post(`/image/jobs/${job.jobId}:retry`)).status).toBe(409);
    await client.post(`/image/jobs/${job.jobId}:cancel`);
    const retried = await client.post(`/image/jobs/${job.jobId}:retry`);
    expect(retried.status).toBe(202);
    expect(retried.body).toMatchObject({
      status: 'CREATED',
      attempt: 2,
      files: { total: 1, cancelled: 0 },
      errorMessage: null,
      cancelRequestedDate: null,
      completedDate: null,
    });
    expect((await filesOf(service, job.jobId))[0]).toMatchObject({ status: 'PENDING', errorMessage: null });
    expect((await eventsOf(job.jobId)).at(-1)?.event).toBe('IMAGE_JOB_RETRIED');
  });

  test('cannot be retried once its study or credential is gone', async () => {
    const client = await asClient();
    const gone = await createStudy(service);
    const { body: job } = await client.post(ingest, { studyId: gone, credentialId, prefix: 'x' });
    await client.post(`/image/jobs/${job.jobId}:cancel`);
    await service.call('DELETE', `/studies/${gone}`);
    expect((await client.post(`/image/jobs/${job.jobId}:retry`)).status).toBe(409);
  });

  test('is asked to cancel when its study is deleted', async () => {
    const client = await asClient();
    const gone = await createStudy(service);
    const { body: job } = await client.post(ingest, { studyId: gone, credentialId, prefix: 'x' });
    await service.call('DELETE', `/studies/${gone}`);
    const after = await service.call('GET', `/image/jobs/${job.jobId}`);
    expect(after.body.cancelRequestedDate).toEqual(expect.any(String));
  });
});

describe.each(jobStatuses)('a job that is %s', (status) => {
  test.each(['retry', 'cancel'] as const)(
    'allows :%s where the table of transitions has it, and is 409 otherwise',
    async (step) => {
      const client = await asClient();
      const { body: job } = await client.post(ingest, body({ files: [{ key: 'a/1.svs' }] }));
      await service.pool.query(
        `update image_jobs set status = $2, completed_date = case when $2 in ('CREATED', 'RUNNING') then null else now() end
        where job_id = $1`,
        [job.jobId, status],
      );
      const answer = await client.post(`/image/jobs/${job.jobId}:${step}`);
      const allowed = (transitions[step].from as readonly string[]).includes(status);
      expect(answer.status).toBe(allowed ? 202 : 409);
      if (allowed) expect(transitions[step].to).toContain(answer.body.status);
      else expect((await service.call('GET', `/image/jobs/${job.jobId}`)).body.status).toBe(status);
    },
  );
});

test('a client that reads slowly misses nothing', async () => {
  const client = await asClient();
  const { token } = await service.client('Image:Read');
  const files = Array.from({ length: 5_000 }, (_, n) => ({ key: `folder/${n}.svs` }));
  const { body: job } = await client.post(ingest, body({ files }));
  const request = get(`${service.url}/api/v1/image/jobs/${job.jobId}:streamProgress`, {
    headers: { authorization: `Bearer ${token}` },
  });
  const [response] = (await once(request, 'response')) as [IncomingMessage];
  // Nothing is read while 2 MB of events come to be.
  await client.post(`/image/jobs/${job.jobId}:cancel`);
  await client.post(`/image/jobs/${job.jobId}:retry`);
  await client.post(`/image/jobs/${job.jobId}:cancel`);
  await setTimeout(1_000);
  const stream = await text(response);
  const data = stream.split('\n\n').filter((block) => block.includes('event: file'));
  const last = new Map(
    data.map((block) => {
      const record = JSON.parse(block.split('data: ')[1] as string) as Json;
      return [record.fileId, record.status] as const;
    }),
  );
  expect(last.size).toBe(5_000);
  expect(new Set(last.values())).toEqual(new Set(['CANCELLED']));
  expect(stream).toMatch(/event: end\ndata: [^\n]+\n\n$/);
});

describe('lists', () => {
  test('of jobs filter by study, state and type, oldest first, and their pages can be walked', async () => {
    const one = await createStudy(service);
    const client = await asClient();
    const made: string[] = [];
    for (let n = 0; n < 3; n++) {
      made.push((await client.post(ingest, { studyId: one, credentialId, prefix: 'x' })).body.jobId);
    }
    await client.post(`/image/jobs/${made[1]}:cancel`);
    const list = async (query: string) => (await service.call('GET', `/image/jobs?studyId=${one}&${query}`)).body;
    const ids = (page: Json) => page.items.map(({ jobId }: Json) => jobId);
    expect(ids(await list('type=INGEST'))).toEqual(made);
    expect(ids(await list('type=TRANSFER'))).toEqual([]);
    expect(ids(await list('status=CREATED&sortDirection=DESC'))).toEqual([made[2], made[0]]);
    const page = await list('pageSize=2');
    expect(page.paging).toMatchObject({ totalItems: 3, pageSize: 2 });
    const next = await service.call('GET', page.paging.links.next.split('/api/v1')[1]);
    expect(ids(next.body)).toEqual([made[2]]);
    expect((await service.call('GET', '/image/jobs?status=QUEUED')).status).toBe(400);
    expect((await service.call('GET', '/image/jobs?studyId=x')).status).toBe(400);
  });

  test('of files sort by name, filter by state, and are 404 for no job', async () => {
    const client = await asClient();
    const files = ['c', 'a', 'b', 'e', 'd'].map((key) => ({ key }));
    const { body: job } = await client.post(ingest, body({ files }));
    const list = async (query: string) =>
      (await service.call('GET', `/image/jobs/${job.jobId}:listFiles?${query}`)).body;
    const names = (page: Json) => page.items.map(({ name }: Json) => name).join('');
    expect(names(await list(''))).toBe('abcde');
    expect(names(await list('sortDirection=DESC&sort=name&status=PENDING'))).toBe('edcba');
    expect((await list('status=FAILED')).paging.totalItems).toBe(0);
    const page = await list('pageSize=2&pageNumber=2');
    expect([names(page), page.paging.totalItems]).toEqual(['cd', 5]);
    expect((await service.call('GET', `/image/jobs/${newId()}:listFiles`)).status).toBe(404);
    expect((await service.call('GET', `/image/jobs/${newId()}`)).status).toBe(404);
    expect((await service.call('GET', '/image/jobs/short')).status).toBe(400);
  });

  test('are on record as reads of the job and its study', async () => {
    const client = await asClient();
    const { body: job } = await client.post(ingest, body());
    for (const path of ['', ':listFiles']) await service.call('GET', `/image/jobs/${job.jobId}${path}`);
    const reads = await eventually(async () => {
      const events = (await eventsOf(job.jobId)).filter(({ event }) => event === 'CLIENT_ACCESSED_STUDY');
      return events.length === 2 && events;
    });
    expect(reads.map((event) => event.studyId)).toEqual([studyId, studyId]);
  });
});
