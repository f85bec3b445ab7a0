import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Json, startService, type TestService } from './service.ts';

const path = '/cloud/credentials';
const body = { name: 'Share', provider: 'FILE', settings: { root: 'share' } };

let dir: string;
let service: TestService;
let studyId: string;
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'sds-in-use-'));
  // No workers: a job stays CREATED until it is cancelled.
  service = await startService({
    SDS_WORKERS: '0',
    SDS_FILE_ROOTS: `share=${dir}`,
    SDS_IMAGE_JOBS_PER_CLIENT: '1000',
  });
  studyId = (await service.call('POST', '/studies', { name: 'A study with images' })).body.studyId;
});
afterAll(async () => {
  await service.close();
  await rm(dir, { recursive: true, force: true });
});

const create = async (): Promise<string> => (await service.call('POST', path, body)).body.credentialId;
const ingest = (credentialId: string) =>
  service.call('POST', '/image/jobs:ingest', { studyId, credentialId, files: [{ key: 'a.svs' }] });

/** Ends a job as a worker that does nothing would. */
const end = (jobId: string, status: string) =>
  service.pool.query(`update image_jobs set status = $2, completed_date = now() where job_id = $1`, [jobId, status]);

test.each(['CREATED', 'RUNNING'])(
  'a credential that a job in the state %s uses can be neither changed nor deleted',
  async (status) => {
    const credentialId = await create();
    const one = `${path}/${credentialId}`;
    const job = await ingest(credentialId);
    expect(job.status, job.text).toBe(202);
    await service.pool.query('update image_jobs set status = $2 where job_id = $1', [job.body.jobId, status]);
    const refused = [await service.call('PUT', one, { ...body, name: 'New' }), await service.call('DELETE', one)];
    expect(refused.map((answer) => [answer.status, answer.body.type])).toEqual([
      [409, '/errors/conflict'],
      [409, '/errors/conflict'],
    ]);
    expect((await service.call('GET', one)).body).toMatchObject({ name: 'Share', version: 1 });
    expect((await service.call('POST', `${one}:validate`)).body.valid).toBe(true);
    await end(job.body.jobId, 'FAILED');
    expect((await service.call('PUT', one, { ...body, name: 'New' })).status).toBe(200);
    expect((await service.call('DELETE', one)).status).toBe(204);
  },
);

test('a stale version is told before the job, and a fault before it too', async () => {
  const credentialId = await create();
  const one = `${path}/${credentialId}`;
  await ingest(credentialId);
  const stale = { headers: { 'if-match': '"9"' } };
  expect((await service.call('PUT', one, body, stale)).status).toBe(412);
  expect((await service.call('DELETE', one, undefined, stale)).status).toBe(412);
  expect((await service.call('PUT', one, { ...body, name: '' })).status).toBe(422);
});

test('of a job that starts and a credential that is deleted at once, one comes first', async () => {
  const rounds = await Promise.all(
    Array.from({ length: 25 }, async () => {
      const credentialId = await create();
      const [jobs, removals] = await Promise.all([
        Promise.all([ingest(credentialId), ingest(credentialId)]),
        Promise.all([
          service.call('DELETE', `${path}/${credentialId}`),
          service.call('DELETE', `${path}/${credentialId}`),
        ]),
      ]);
      return { jobs: jobs.map((one: Json) => one.status), removals: removals.map((one) => one.status) };
    }),
  );
  for (const { jobs, removals } of rounds) {
    // Either it is gone, and nothing started; or a job started, and it is not gone.
    expect(jobs.every((status) => (removals.includes(204) ? status === 422 : status === 202))).toBe(true);
    expect(removals.filter((status) => status === 204).length).toBeLessThanOrEqual(1);
  }
});

test('a credential that is being deleted makes the job wait, and then it is 422', async () => {
  const credentialId = await create();
  const client = await service.pool.connect();
  try {
    await client.query('begin');
    await client.query('delete from credentials where credential_id = $1', [credentialId]);
    const job = ingest(credentialId);
    await expect
      .poll(async () => (await service.pool.query(`select from pg_locks where not granted`)).rowCount)
      .toBeGreaterThan(0);
    await client.query('commit');
    expect((await job).status).toBe(422);
  } finally {
    client.release();
  }
});

test('a job that is being started makes the deletion wait, and then it is 409', async () => {
  const credentialId = await create();
  const job = await ingest(credentialId);
  await end(job.body.jobId, 'FAILED');
  const client = await service.pool.connect();
  try {
    await client.query('begin');
    await client.query('select from credentials where credential_id = $1 for share', [credentialId]);
    const removal = service.call('DELETE', `${path}/${credentialId}`);
    await expect
      .poll(async () => (await service.pool.query(`select from pg_locks where not granted`)).rowCount)
      .toBeGreaterThan(0);
    await client.query(`update image_jobs set status = 'CREATED', completed_date = null where job_id = $1`, [
      job.body.jobId,
    ]);
    await client.query('commit');
    expect((await removal).status).toBe(409);
  } finally {
    client.release();
  }
});
