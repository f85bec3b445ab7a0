import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createCredential, createStudy, filesOf, makeRoot, png, runJob, slideFile, wsi } from './image-jobs.ts';
import { type Json, useService } from './service.ts';

const root = await makeRoot();
afterAll(() => root.remove());
const service = useService({ SDS_FILE_ROOTS: `scanner=${root.dir}` });
let credentialId = '';
beforeAll(async () => {
  credentialId = await createCredential(service, 'scanner');
});

const sha256 = (bytes: Buffer) => createHash('sha256').update(bytes).digest('hex');

test('an ingest by prefix makes a slide of every object, by the key after the last slash of the prefix', async () => {
  const studyId = await createStudy(service);
  await root.put('march/a.ome.tif', { copyOf: slideFile });
  await root.put('march/more/b.svs', { copyOf: `${wsi}/cmu_small_region.svs` });
  await root.put('marching.png', png(1));
  await root.put('april/c.png', png(2));
  const job = await runJob(service, 'ingest', { studyId, credentialId, prefix: 'march' });
  expect(job).toMatchObject({
    type: 'INGEST',
    status: 'COMPLETED',
    studyId,
    credentialId,
    attempt: 1,
    files: { total: 3, completed: 3, skipped: 0, failed: 0, cancelled: 0 },
    errorMessage: null,
    cancelRequestedDate: null,
  });
  expect(job.bytes.transferred).toBe(job.bytes.total);
  const slides = await service.call('GET', `/studies/${studyId}/slides?sort=fileName`);
  expect(slides.body.items.map((slide: Json) => [slide.fileName, slide.image.format])).toEqual([
    ['march/a.ome.tif', 'OME-TIFF'],
    ['march/more/b.svs', 'SVS'],
    ['marching.png', 'PNG'],
  ]);
  const content = await readFile(slideFile);
  expect(slides.body.items[0].image).toMatchObject({ sizeBytes: content.length, sha256: sha256(content) });
  const files = await filesOf(service, job.jobId);
  expect(files.map(({ status, attempts }) => [status, attempts])).toEqual([
    ['COMPLETED', 1],
    ['COMPLETED', 1],
    ['COMPLETED', 1],
  ]);
  expect(files[0]).toMatchObject({
    name: 'march/a.ome.tif',
    key: 'march/a.ome.tif',
    slideId: slides.body.items[0].slideId,
    sizeBytes: content.length,
    bytesTransferred: content.length,
    sha256: sha256(content),
    errorMessage: null,
  });
  const image = await fetch(`${service.url}/api/v1/studies/${studyId}/slides/${files[0].slideId}/image`, {
    headers: { authorization: `Bearer ${(await service.client('Study:Read')).token}`, range: 'bytes=10-19' },
  });
  expect(image.status).toBe(206);
  expect(Buffer.from(await image.arrayBuffer())).toEqual(content.subarray(10, 20));
});
