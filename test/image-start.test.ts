import { beforeAll, describe, expect, test } from 'vitest';
import { newId } from '../src/lib/id.ts';
import { createStudy, s3Keys } from './image-jobs.ts';
import type { Json } from './service.ts';
import { ingest, useWaitingJobs } from './waiting-jobs.ts';

const { service, given, asClient, body, eventsOf } = await useWaitingJobs();

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
      ...given,
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
    expect(read.text).toBe(JSON.stringify(read.body));
    expect(await eventsOf(started.body.jobId)).toMatchObject([
      {
        event: 'IMAGE_JOB_CREATED',
        clientId: client.clientId,
        status: 202,
        resourceType: 'imageJob',
        studyId: given.studyId,
      },
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

  test('tells faults between members along with all others', async () => {
    const pointers = async (path: string, body: object) =>
      (await service.call('POST', path, body)).body.errors.map(({ pointer }: Json) => pointer).sort();
    const credentialId = '0'.repeat(24);
    expect(await pointers('/image/jobs:ingest', { studyId: 'bad', credentialId, bogus: 1 })).toEqual([
      '/bogus',
      '/prefix',
      '/studyId',
    ]);
    const slideIds = ['0'.repeat(24), '0'.repeat(24)];
    expect(await pointers('/image/jobs:transfer', { studyId: 'bad', credentialId, slideIds })).toEqual([
      '/slideIds/1',
      '/studyId',
    ]);
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
    const unknown = await (await asClient()).post(ingest, { ...given, studyId: newId(), prefix: '' });
    expect([unknown.status, unknown.body.errors]).toEqual([422, [{ pointer: '/studyId', detail: 'is no study' }]]);
  });

  test('links to the subject of the organ that a file names', async () => {
    const { body: subject } = await service.call('POST', `/studies/${given.studyId}/subjects`, { name: '1001' });
    const { subjectId } = subject;
    const { body: organ } = await service.call('POST', `/studies/${given.studyId}/organs`, {
      subjectId,
      name: 'LIVER',
    });
    const { body: second } = await service.call('POST', `/studies/${given.studyId}/subjects`, { name: '1002' });
    const client = await asClient();
    const { organId } = organ;
    const right = await client.post(ingest, body({ files: [{ key: 'a.svs', organId }] }));
    expect(right.status).toBe(202);
    const wrong = await client.post(ingest, body({ files: [{ key: 'a.svs', organId, subjectId: second.subjectId }] }));
    expect([wrong.status, wrong.body.errors[0].pointer]).toEqual([422, '/files/0/organId']);
  });

  test('of a transfer needs images', async () => {
    const client = await asClient();
    const none = await client.post('/image/jobs:transfer', given);
    expect([none.status, none.body.errors[0].pointer]).toEqual([422, '/studyId']);
    const { body: slide } = await service.call('POST', `/studies/${given.studyId}/slides`, { fileName: 'empty.svs' });
    const without = await client.post('/image/jobs:transfer', { ...given, slideIds: [slide.slideId, newId()] });
    expect(without.status).toBe(422);
    expect(without.body.errors).toEqual([
      { pointer: '/slideIds/0', detail: 'has no image' },
      { pointer: '/slideIds/1', detail: 'is no slide of this study' },
    ]);
    const twice = await client.post('/image/jobs:transfer', { ...given, slideIds: [slide.slideId, slide.slideId] });
    expect(twice.status).toBe(400);
  });

  describe('tells at once where no key can be made of it', () => {
    const long = 'x'.repeat(255);
    let cloud = '';
    beforeAll(async () => {
      const settings = { region: 'us-east-1', bucket: 'slides', accessKeyId: s3Keys.accessKeyId };
      const { secretAccessKey } = s3Keys;
      const credential = { name: 's3', provider: 'S3', settings, secret: { secretAccessKey } };
      cloud = (await service.call('POST', '/cloud/credentials', credential)).body.credentialId;
    });
    const faultsOf = async (action: string, members: Json): Promise<string[]> => {
      const { status, body: answer } = await (await asClient()).post(`/image/jobs:${action}`, body(members));
      expect(status).toBe(action === 'ingest' && !answer.errors ? 202 : 422);
      // Nothing has an image here, of which every transfer tells.
      const pointers = (answer.errors ?? []).map(({ pointer }: Json) => pointer);
      return pointers.filter((pointer: string) => pointer !== '/studyId');
    };

    test.each(['../', 'a/../b', '/a', 'a//', './', '.incoming/', `${long}x`, `a/${long}x/`])(
      'a prefix %j of a directory tree',
      async (prefix) => {
        for (const action of ['ingest', 'transfer']) {
          expect(await faultsOf(action, { prefix }), action).toEqual(['/prefix']);
          expect(await faultsOf(action, { prefix, credentialId: cloud }), action).toEqual([]);
        }
      },
    );

    test.each(['', 'a', 'a/', '..', '.incoming', long, `${long}/${long}/`])(
      'but not a prefix %j, which a key may begin with',
      async (prefix) => {
        for (const action of ['ingest', 'transfer']) expect(await faultsOf(action, { prefix }), action).toEqual([]);
      },
    );

    test('a prefix that leaves no room for a FILE NAME, of any provider', async () => {
      for (const credentialId of [given.credentialId, cloud]) {
        const prefix = `${'x'.repeat(127)}/`.repeat(8);
        expect(await faultsOf('transfer', { prefix, credentialId })).toEqual(['/prefix']);
        expect(await faultsOf('transfer', { prefix: prefix.slice(1), credentialId })).toEqual([]);
        // The whole key of an object is a prefix as well.
        expect(await faultsOf('ingest', { prefix: `${prefix.slice(1)}x`, credentialId })).toEqual([]);
      }
    });

    test('the key of a file', async () => {
      const files = ['../a.svs', 'b.svs', '/c.svs'].map((key) => ({ key }));
      expect(await faultsOf('ingest', { prefix: undefined, files })).toEqual(['/files/0/key', '/files/2/key']);
      expect(await faultsOf('ingest', { prefix: undefined, files, credentialId: cloud })).toEqual([]);
    });
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
    const request = { ...given, studyId: gone, prefix: 'x' };
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
    const elsewhere = await client.post('/image/jobs:transfer', given, { 'idempotency-key': 'k' });
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
    const more = await (await asClient()).post(ingest, body({ prefix: 1 }), { 'idempotency-key': key });
    expect(more.body.errors).toMatchObject([{ pointer: '/prefix' }, { header: 'Idempotency-Key' }]);
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
