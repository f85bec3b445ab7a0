import { describe, expect, test } from 'vitest';
import { jobStatuses, transitions } from '../src/images/states.ts';
import { createStudy, filesOf } from './image-jobs.ts';
import { ingest, useWaitingJobs } from './waiting-jobs.ts';

const { service, given, asClient, body, eventsOf } = await useWaitingJobs();

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
    const { body: job } = await client.post(ingest, { ...given, studyId: gone, prefix: 'x' });
    await client.post(`/image/jobs/${job.jobId}:cancel`);
    await service.call('DELETE', `/studies/${gone}`);
    expect((await client.post(`/image/jobs/${job.jobId}:retry`)).status).toBe(409);
  });

  test('is asked to cancel when its study is deleted', async () => {
    const client = await asClient();
    const gone = await createStudy(service);
    const { body: job } = await client.post(ingest, { ...given, studyId: gone, prefix: 'x' });
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
