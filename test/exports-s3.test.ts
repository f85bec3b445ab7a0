import { createHash } from 'node:crypto';
import { afterAll, describe, expect, test } from 'vitest';
import { exportStudy, fetchFile, makeStudy } from './exports-study.ts';
import { startS3Server } from './peers/s3-server.ts';
import { eventually, useService } from './service.ts';

const keys = { accessKeyId: 'key-id', secretAccessKey: 'secret-access-key' };
const s3 = await startS3Server({ ...keys, buckets: ['bucket'] });
afterAll(() => s3.close());
// Where the AWS SDK looks for them; the worker thread gets a copy.
Object.assign(process.env, { AWS_ACCESS_KEY_ID: keys.accessKeyId, AWS_SECRET_ACCESS_KEY: keys.secretAccessKey });
const SDS_OBJECT_STORE = `s3://bucket/sds?endpoint=${s3.url}&forcePathStyle=true`;

const sha256 = async (response: Response) =>
  createHash('sha256')
    .update(Buffer.from(await response.arrayBuffer()))
    .digest('hex');

describe('with an S3 object store', () => {
  const service = useService({ SDS_OBJECT_STORE });

  test('an export goes there, is downloaded whole and in parts, and is removed when it is deleted', async () => {
    const { studyId } = await makeStudy(service);
    const job = await exportStudy(service, studyId, 'JSON');
    expect(job.exportStatus.status).toBe('COMPLETED');
    expect([...s3.objects('bucket').keys()]).toEqual([`sds/exports/${job.exportId}/1`]);
    const { downloadUrl } = job.download;
    expect(await sha256(await fetchFile(service, downloadUrl))).toBe(job.sha256);
    const part = await fetchFile(service, downloadUrl, { headers: { range: 'bytes=10-19' } });
    expect([part.status, (await part.arrayBuffer()).byteLength]).toEqual([206, 10]);
    await service.call('DELETE', `/studies/${studyId}/exports/${job.exportId}`);
    await eventually(async () => s3.objects('bucket').size === 0);
  });

  test('an export that S3 refuses is FAILED with a reason for the user, who starts another', async () => {
    const { studyId } = await makeStudy(service);
    const fault = s3.faults.add({ on: ['put', 'create'], does: 'denied', times: Infinity });
    const failed = await exportStudy(service, studyId, 'XLSX');
    fault.remove();
    expect(failed.exportStatus.status).toBe('FAILED');
    expect(failed.errorMessage).toMatch(/^The file could not be written to the object store: /);
    await service.call('DELETE', `/studies/${studyId}/exports/${failed.exportId}`);
    expect((await exportStudy(service, studyId, 'XLSX')).exportStatus.status).toBe('COMPLETED');
  });

  test('a download is 503 while the store does not answer properly, and 500 where it refuses', async () => {
    const { studyId } = await makeStudy(service);
    const job = await exportStudy(service, studyId, 'JSON');
    for (const [does, status] of [
      ['internal', 503],
      ['denied', 500],
    ] as const) {
      const fault = s3.faults.add({ on: 'head', does, times: Infinity });
      const answer = await fetchFile(service, job.download.downloadUrl);
      fault.remove();
      expect([answer.status, answer.headers.has('retry-after')]).toEqual([status, status === 503]);
    }
    expect((await fetchFile(service, job.download.downloadUrl)).status).toBe(200);
  });

  test('a download whose bytes are damaged on their way from the store is broken off, never ended as if it were right', async () => {
    const { studyId } = await makeStudy(service);
    const job = await exportStudy(service, studyId, 'JSON');
    s3.faults.add({ on: 'get', does: 'corrupt', afterBytes: 100 });
    await expect(fetchFile(service, job.download.downloadUrl).then(sha256)).rejects.toThrow();
    expect(await fetchFile(service, job.download.downloadUrl).then(sha256)).toBe(job.sha256);
  });

  test('a download that the store breaks off is broken off for the client too', async () => {
    const { studyId } = await makeStudy(service);
    const job = await exportStudy(service, studyId, 'JSON');
    const fault = s3.faults.add({ on: 'get', does: 'truncate', afterBytes: 5_000, times: Infinity });
    const answer = await fetchFile(service, job.download.downloadUrl);
    expect(answer.status).toBe(200);
    await expect(answer.arrayBuffer()).rejects.toThrow();
    fault.remove();
  });
});

describe('with SDS_DOWNLOAD_REDIRECT', () => {
  const service = useService({ SDS_OBJECT_STORE, SDS_DOWNLOAD_REDIRECT: 'true' });

  test('a download leads to S3 by a URL that needs no token, and keeps the name of the file', async () => {
    const { studyId } = await makeStudy(service);
    const job = await exportStudy(service, studyId, 'JSON');
    const redirect = await fetchFile(service, job.download.downloadUrl);
    expect([redirect.status, redirect.headers.get('cache-control')]).toEqual([307, 'no-store']);
    const location = redirect.headers.get('location') as string;
    expect(location.startsWith(s3.url)).toBe(true);
    const response = await fetch(location);
    expect(response.status).toBe(200);
    expect(response.headers.get('content-type')).toBe('application/json');
    expect(response.headers.get('content-disposition')).toContain('A study to be exported');
    expect(await sha256(response)).toBe(job.sha256);
    const { body } = await service.call('GET', `/audit/events?resourceId=${job.exportId}&event=CLIENT_STUDY_EXPORT`);
    expect(body.items.map(({ status }: { status: number }) => status)).toEqual([202, 307]);
    const head = await fetchFile(service, job.download.downloadUrl, { method: 'HEAD' });
    expect([head.status, head.headers.get('content-length')]).toEqual([200, String(job.fileSizeBytes)]);
  });
});
