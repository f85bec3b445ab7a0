import { createHash } from 'node:crypto';
import { Readable } from 'node:stream';
import { PutObjectCommand, S3Client } from '@aws-sdk/client-s3';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { openS3Store } from '../src/objects/s3.ts';
import { createS3Credential, createStudy, ended, filesOf, png, runJob, s3Keys } from './image-jobs.ts';
import { startS3Server } from './peers/s3-server.ts';
import { eventually, type Json, useService } from './service.ts';

const s3 = await startS3Server({ ...s3Keys, buckets: ['scans', 'archive'] });
const sourceOptions = { bucket: 'scans', endpoint: s3.url, forcePathStyle: true, credentials: s3Keys };
const source = openS3Store(sourceOptions);
afterAll(async () => {
  await source.close();
  await s3.close();
});
afterEach(() => s3.faults.clear());
const service = useService({ SDS_CLOUD_ENDPOINTS: s3.url, SDS_WORKERS: '2', SDS_CLOUD_IDLE_TIMEOUT_S: '2' });
let credentialId = '';
let archiveId = '';
beforeAll(async () => {
  credentialId = await createS3Credential(service, s3.url, 'scans');
  archiveId = await createS3Credential(service, s3.url, 'archive');
});

const MiB = 1024 * 1024;
const put = (key: string, content: Buffer) =>
  source.write(key, Readable.from([content]), { sizeBytes: content.length });
const sha256 = (bytes: Buffer) => createHash('sha256').update(bytes).digest('hex');
const only = async (jobId: string) => (await filesOf(service, jobId))[0] as Json;

describe('an ingest from S3', () => {
  test('takes a large object up again where its connection broke', async () => {
    const content = png(1, 40 * MiB);
    await put('large.png', content);
    const studyId = await createStudy(service);
    // The first two requests read the header and the end alone.
    s3.faults.add({ on: 'get', does: 'reset', afterBytes: 3 * MiB, times: 3 });
    const job = await runJob(service, 'ingest', { studyId, credentialId, files: [{ key: 'large.png' }] });
    expect(job.status).toBe('COMPLETED');
    expect(await only(job.jobId)).toMatchObject({ attempts: 2, sha256: sha256(content), bytesTransferred: 40 * MiB });
    expect(job.bytes).toEqual({ total: 40 * MiB, transferred: 40 * MiB });
  });

  test.each(['reset', 'internal', 'slow-down', 'truncate', 'hang', 'corrupt'] as const)(
    'survives that the source does this: %s',
    async (does) => {
      const content = png(2, 100_000);
      const key = `${does}.png`;
      await put(key, content);
      const studyId = await createStudy(service);
      s3.faults.add({
        on: 'get',
        does,
        key: (one) => one === key,
        times: 3,
        afterBytes: does === 'internal' ? 0 : 50_000,
      });
      const job = await runJob(service, 'ingest', { studyId, credentialId, files: [{ key }] });
      expect([job.status, job.errorMessage]).toEqual(['COMPLETED', null]);
      expect(await only(job.jobId)).toMatchObject({ sha256: sha256(content) });
    },
  );

  test('notices a bit that flipped on the way in an object that came in parts', async () => {
    const content = png(3, 20 * MiB);
    // In one piece: only then is the etag an MD5.
    const { bucket: Bucket, endpoint, ...rest } = sourceOptions;
    const client = new S3Client({ ...rest, endpoint, region: 'us-east-1' });
    await client.send(new PutObjectCommand({ Bucket, Key: 'flipped.png', Body: content }));
    client.destroy();
    const studyId = await createStudy(service);
    s3.faults.add({ on: 'get', does: 'corrupt', afterBytes: 2 * MiB, times: 3 });
    const job = await runJob(service, 'ingest', { studyId, credentialId, files: [{ key: 'flipped.png' }] });
    expect(job.status).toBe('COMPLETED');
    expect(await only(job.jobId)).toMatchObject({ sha256: sha256(content), attempts: 2 });
  });

  test('gives up after 5 tries, with the reason, and leaves nothing behind', async () => {
    await put('hopeless.png', png(4, 100_000));
    await put('fine.png', png(5));
    const studyId = await createStudy(service);
    s3.faults.add({ on: 'get', does: 'reset', key: (key) => key === 'hopeless.png', times: Number.POSITIVE_INFINITY });
    const files = [{ key: 'hopeless.png' }, { key: 'fine.png' }];
    const job = await runJob(service, 'ingest', { studyId, credentialId, files });
    expect(job).toMatchObject({ status: 'PARTIAL', files: { total: 2, completed: 1, failed: 1 } });
    expect(job.errorMessage).toContain('hopeless.png');
    const [, hopeless] = await filesOf(service, job.jobId);
    expect(hopeless).toMatchObject({ status: 'FAILED', attempts: 5, slideId: null });
    expect(hopeless.errorMessage).toContain('5 tries');
    expect((await service.call('GET', `/studies/${studyId}/slides`)).body.paging.totalItems).toBe(1);

    s3.faults.clear();
    await service.call('POST', `/image/jobs/${job.jobId}:retry`);
    const retried = await ended(service, job.jobId);
    expect(retried).toMatchObject({ status: 'COMPLETED', attempt: 2, files: { total: 2, completed: 2, failed: 0 } });
    const files2 = await filesOf(service, job.jobId);
    expect(files2.map(({ attempts }) => attempts)).toEqual([1, 1]);
    expect(retried.bytes.transferred).toBe(retried.bytes.total);
  });

  test('fails at once where another try would not help', async () => {
    await put('secret.png', png(6));
    const studyId = await createStudy(service);
    s3.faults.add({ on: ['get', 'head'], does: 'denied', key: (key) => key === 'secret.png', times: 9 });
    const files = [{ key: 'secret.png' }, { key: 'missing.png' }];
    const job = await runJob(service, 'ingest', { studyId, credentialId, files });
    expect(job).toMatchObject({ status: 'FAILED', files: { failed: 2 } });
    expect((await filesOf(service, job.jobId)).map(({ attempts }) => attempts)).toEqual([1, 1]);
    expect(job.errorMessage).toMatch(/^2 of 2 files failed/);
  });

  test('that cannot list its source is FAILED and lists again when it is retried', async () => {
    await put('listing/1.png', png(7));
    const studyId = await createStudy(service);
    s3.faults.add({ on: 'list', does: 'denied', times: Number.POSITIVE_INFINITY });
    const job = await runJob(service, 'ingest', { studyId, credentialId, prefix: 'listing/' });
    expect(job).toMatchObject({ status: 'FAILED', files: { total: 0 } });
    expect(job.errorMessage).toContain('cannot be listed');
    s3.faults.clear();
    await service.call('POST', `/image/jobs/${job.jobId}:retry`);
    expect(await ended(service, job.jobId)).toMatchObject({
      status: 'COMPLETED',
      files: { total: 1 },
      errorMessage: null,
    });
  });

  test('that finds nothing is FAILED, and finds what is there when it is retried', async () => {
    const studyId = await createStudy(service);
    const job = await runJob(service, 'ingest', { studyId, credentialId, prefix: 'later/' });
    expect(job).toMatchObject({ status: 'FAILED', errorMessage: 'No object of the source matches.' });
    await put('later/1.png', png(8));
    await put('later/', Buffer.alloc(0));
    await service.call('POST', `/image/jobs/${job.jobId}:retry`);
    expect(await ended(service, job.jobId)).toMatchObject({ status: 'COMPLETED', files: { total: 1 } });
  });

  test('stops within a second or so when it is cancelled, and keeps what was done', async () => {
    for (let n = 0; n < 3; n++) await put(`cancel/${n}.png`, png(10 + n, 20 * MiB));
    const studyId = await createStudy(service);
    s3.faults.add({ on: 'get', does: 'hang', key: (key) => key !== 'cancel/0.png', afterBytes: MiB, times: 99 });
    const { body } = await service.call('POST', '/image/jobs:ingest', { studyId, credentialId, prefix: 'cancel/' });
    await eventually(async () => (await service.call('GET', `/image/jobs/${body.jobId}`)).body.files.completed === 1);
    const cancelled = await service.call('POST', `/image/jobs/${body.jobId}:cancel`);
    expect(cancelled.status).toBe(202);
    const job = await ended(service, body.jobId, 3);
    expect(job).toMatchObject({ status: 'PARTIAL', files: { total: 3, completed: 1, cancelled: 2, failed: 0 } });
    expect(job.errorMessage).toBe('The job was cancelled.');
    expect((await filesOf(service, body.jobId)).map(({ status }) => status)).toEqual([
      'COMPLETED',
      'CANCELLED',
      'CANCELLED',
    ]);
    const events = await service.call('GET', `/audit/events?resourceId=${body.jobId}&event=IMAGE_JOB_COMPLETED`);
    expect(events.body.items).toMatchObject([
      { status: null, operation: 'image job', clientId: job.clientId, studyId },
    ]);
    await eventually(async () => (await service.pool.query('select from object_purges')).rowCount === 0);
    s3.faults.clear();
    await service.call('POST', `/image/jobs/${body.jobId}:retry`);
    expect(await ended(service, body.jobId)).toMatchObject({ status: 'COMPLETED', files: { completed: 3 } });
  });

  test('links no slide that somebody moved while its image was being compared', async () => {
    await put('moved/1.png', png(40));
    const studyId = await createStudy(service);
    const create = async (path: string, body: Json) =>
      (await service.call('POST', `/studies/${studyId}/${path}`, body)).body;
    const [one, two] = [await create('subjects', { name: '1001' }), await create('subjects', { name: '1002' })];
    await runJob(service, 'ingest', { studyId, credentialId, prefix: 'moved/' });
    const [slide] = (await service.call('GET', `/studies/${studyId}/slides`)).body.items;
    const held = s3.faults.add({ on: 'get', does: 'hang', key: (key) => key === 'moved/1.png' });
    const files = [{ key: 'moved/1.png', subjectId: one.subjectId }];
    const { body } = await service.call('POST', '/image/jobs:ingest', { studyId, credentialId, files });
    await eventually(async () => held.hits === 1);
    const path = `/studies/${studyId}/slides/${slide.slideId}`;
    expect((await service.call('PUT', path, { subjectId: two.subjectId, organId: null })).status).toBe(200);
    held.remove();
    expect(await ended(service, body.jobId)).toMatchObject({ status: 'FAILED', files: { skipped: 0, failed: 1 } });
    expect((await service.call('GET', path)).body).toMatchObject({ subjectId: two.subjectId, image: slide.image });
  });

  test('tells of bytes as they arrive, long before the object or a part of it is whole', async () => {
    await put('slow/1.png', png(30, 4 * MiB));
    const studyId = await createStudy(service);
    const slow = s3.faults.add({
      on: 'get',
      does: 'hang',
      key: (key) => key === 'slow/1.png',
      afterBytes: MiB,
      times: 99,
    });
    const { body } = await service.call('POST', '/image/jobs:ingest', { studyId, credentialId, prefix: 'slow/' });
    await eventually(async () => ((await only(body.jobId))?.bytesTransferred ?? 0) > 0);
    expect((await only(body.jobId)).bytesTransferred).toBeLessThan(4 * MiB);
    slow.remove();
    expect(await ended(service, body.jobId)).toMatchObject({ status: 'COMPLETED', bytes: { transferred: 4 * MiB } });
  });

  test('ends when its study is deleted', async () => {
    await put('gone/1.png', png(20));
    const studyId = await createStudy(service);
    s3.faults.add({ on: 'get', does: 'hang', key: (key) => key === 'gone/1.png', times: 99 });
    const { body } = await service.call('POST', '/image/jobs:ingest', { studyId, credentialId, prefix: 'gone/' });
    await eventually(async () => (await filesOf(service, body.jobId))[0]?.status === 'RUNNING');
    await service.call('DELETE', `/studies/${studyId}`);
    const job = await ended(service, body.jobId, 5);
    expect(job).toMatchObject({ status: 'FAILED', files: { cancelled: 1 } });
    expect(job.errorMessage).toContain('study was deleted');
  });

  test('lists more objects than a page, and none twice', async () => {
    const bucket = s3.objects('scans');
    const small = png(30);
    await put('many/0000.png', small);
    const [, first] = [...bucket].find(([key]) => key === 'many/0000.png') as [string, Json];
    for (let n = 1; n < 1_005; n++) {
      const key = `many/${String(n).padStart(4, '0')}.png`;
      bucket.set(key, { ...first, key });
    }
    const studyId = await createStudy(service);
    const job = await runJob(service, 'ingest', { studyId, credentialId, prefix: 'many/' }, 100);
    expect(job).toMatchObject({ status: 'COMPLETED', files: { total: 1_005, completed: 1_005 } });
    expect((await service.call('GET', `/studies/${studyId}/slides`)).body.paging.totalItems).toBe(1_005);
  }, 120_000);
});

describe('a transfer to S3', () => {
  test('copies every image under the prefix, whole, whatever happens on the way', async () => {
    await put('out/1.png', png(40, 20 * MiB));
    await put('out/2.png', png(41));
    const studyId = await createStudy(service);
    await runJob(service, 'ingest', { studyId, credentialId, prefix: 'out/' });
    await service.call('POST', `/studies/${studyId}/slides`, { fileName: 'no image.svs' });
    s3.faults.add({ on: ['part', 'put', 'create', 'complete'], does: 'reset', times: 3 });
    const job = await runJob(service, 'transfer', { studyId, credentialId: archiveId, prefix: 'study/' });
    expect(job).toMatchObject({ type: 'TRANSFER', status: 'COMPLETED', files: { total: 2, completed: 2 } });
    expect(sha256(await s3.body('archive', 'study/1.png'))).toBe(sha256(png(40, 20 * MiB)));
    expect(await s3.body('archive', 'study/2.png')).toEqual(png(41));
    expect(s3.stats.openUploads).toBe(0);
    const [file] = await filesOf(service, job.jobId);
    expect(file).toMatchObject({ name: '1.png', key: 'study/1.png', status: 'COMPLETED', slideId: expect.any(String) });
  });

  test('copies the named slides alone', async () => {
    await put('named/a.png', png(50));
    await put('named/b.png', png(51));
    const studyId = await createStudy(service);
    await runJob(service, 'ingest', { studyId, credentialId, prefix: 'named/' });
    const { body } = await service.call('GET', `/studies/${studyId}/slides?fileName=b.png`);
    const slideIds = [body.items[0].slideId];
    const job = await runJob(service, 'transfer', { studyId, credentialId: archiveId, prefix: 'x-', slideIds });
    expect(job).toMatchObject({ status: 'COMPLETED', files: { total: 1 } });
    expect([...s3.objects('archive').keys()].filter((key) => key.startsWith('x-'))).toEqual(['x-b.png']);
  });

  test('fails where it may not write', async () => {
    await put('denied/a.png', png(60));
    const studyId = await createStudy(service);
    await runJob(service, 'ingest', { studyId, credentialId, prefix: 'denied/' });
    s3.faults.add({ on: 'put', does: 'denied', times: 9 });
    const job = await runJob(service, 'transfer', { studyId, credentialId: archiveId });
    expect(job).toMatchObject({ status: 'FAILED', files: { failed: 1 } });
    expect((await only(job.jobId)).attempts).toBe(1);
  });
});
