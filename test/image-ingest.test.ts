import { createHash } from 'node:crypto';
import { readdir, readFile } from 'node:fs/promises';
import { join, relative } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createCredential, createStudy, filesOf, makeRoot, png, runJob, slideFile, wsi } from './image-jobs.ts';
import { eventually, type Json, useService } from './service.ts';

const root = await makeRoot();
afterAll(() => root.remove());
const store = await makeRoot();
afterAll(() => store.remove());
const service = useService({ SDS_FILE_ROOTS: `scanner=${root.dir}`, SDS_OBJECT_STORE: `file:${store.dir}` });
let credentialId = '';
beforeAll(async () => {
  credentialId = await createCredential(service, 'scanner');
});

/** Keys in the service's own store. */
async function objects(): Promise<string[]> {
  const files = await readdir(store.dir, { recursive: true, withFileTypes: true });
  return files.filter((one) => one.isFile()).map((one) => relative(store.dir, join(one.parentPath, one.name)));
}
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

const slidesOf = async (studyId: string): Promise<Json[]> =>
  (await service.call('GET', `/studies/${studyId}/slides?sort=fileName`)).body.items;
const ingest = (studyId: string, more: Json) => runJob(service, 'ingest', { studyId, credentialId, ...more });
const purged = () => eventually(async () => (await service.pool.query('select from object_purges')).rowCount === 0);

test('an ingest by files takes the last segment of the key, or the given FILE NAME, and links to subject and organ', async () => {
  const studyId = await createStudy(service);
  const { body: subject } = await service.call('POST', `/studies/${studyId}/subjects`, { name: '1001' });
  const { subjectId } = subject;
  const { body: organ } = await service.call('POST', `/studies/${studyId}/organs`, { subjectId, name: 'LIVER' });
  await root.put('files/a.png', png(10));
  await root.put('files/b.png', png(11));
  const files = [
    { key: 'files/a.png', organId: organ.organId },
    { key: 'files/b.png', fileName: 'named.png', subjectId },
  ];
  expect((await ingest(studyId, { files })).status).toBe('COMPLETED');
  expect(await slidesOf(studyId)).toMatchObject([
    {
      fileName: 'a.png',
      subjectId,
      organId: organ.organId,
      version: 1,
      attributes: { SUBJID: '1001', MISPEC: 'LIVER' },
    },
    { fileName: 'named.png', subjectId, organId: null },
  ]);
});

test('an image is linked to the slide of its FILE NAME where there is one, which counts as a write of it', async () => {
  const studyId = await createStudy(service);
  await root.put('link/a.png', png(12));
  const { body: slide } = await service.call('POST', `/studies/${studyId}/slides`, {
    fileName: 'a.png',
    attributes: { STAIN: 'HE' },
  });
  await ingest(studyId, { prefix: 'link/' });
  expect(await slidesOf(studyId)).toMatchObject([
    {
      slideId: slide.slideId,
      version: 2,
      attributes: { STAIN: 'HE' },
      image: { format: 'PNG', width: 16, height: 16 },
    },
  ]);
});

test('the same content is SKIPPED, other content FAILED unless it may overwrite', async () => {
  const studyId = await createStudy(service);
  await root.put('again/a.png', png(13));
  await root.put('again/b.png', png(14));
  await root.put('again/c.png', png(15));
  await ingest(studyId, { prefix: 'again/' });
  const [before] = await slidesOf(studyId);
  await root.put('again/a.png', png(16));
  await root.put('again/b.png', png(14, 300));
  const refused = await ingest(studyId, { prefix: 'again/' });
  expect(refused).toMatchObject({ status: 'PARTIAL', files: { total: 3, skipped: 1, failed: 2 } });
  expect(refused.errorMessage).toContain('other content');
  expect((await filesOf(service, refused.jobId)).map(({ status }) => status)).toEqual(['FAILED', 'FAILED', 'SKIPPED']);
  const { rows } = await service.pool.query('select object_key from images where image_id = $1', [
    before.image.imageId,
  ]);

  const done = await ingest(studyId, { prefix: 'again/', overwrite: true });
  expect(done).toMatchObject({ status: 'COMPLETED', files: { completed: 2, skipped: 1 } });
  const [after] = await slidesOf(studyId);
  expect(after.image).toMatchObject({ sha256: sha256(png(16)) });
  expect(after.image.imageId).not.toBe(before.image.imageId);
  await purged();
  const keys = await objects();
  expect(keys).not.toContain(rows[0].object_key);
  expect(keys.filter((key) => key.startsWith(`images/${studyId}/`)).length).toBe(3);
});

test('an empty object and bytes of no image are FAILED with a reason that says so', async () => {
  const studyId = await createStudy(service);
  await root.put('bad/empty.svs', '');
  await root.put('bad/text.svs', 'This is no image.');
  await root.put('bad/good.png', png(17));
  const job = await ingest(studyId, { prefix: 'bad/' });
  expect(job).toMatchObject({ status: 'PARTIAL', files: { total: 3, completed: 1, failed: 2 } });
  const [empty, , text] = await filesOf(service, job.jobId);
  expect(empty.errorMessage).toContain('empty');
  expect(text.errorMessage).toContain('no known image format');
  expect((await slidesOf(studyId)).map(({ fileName }) => fileName)).toEqual(['good.png']);
});

test('a file that was cut short is FAILED with a reason that says so, whatever its size', async () => {
  const studyId = await createStudy(service);
  const slide = await readFile(`${wsi}/cmu_small_region.svs`);
  await root.put('cut/large.svs', slide.subarray(0, -1));
  await root.put('cut/small.svs', slide.subarray(0, 900_000));
  await root.put('cut/small.png', png(18).subarray(0, 33));
  await root.put('cut/whole.png', Buffer.concat([png(18, 3_000_000), Buffer.from('behind its end')]));
  const job = await ingest(studyId, { prefix: 'cut/' });
  expect(job).toMatchObject({ status: 'PARTIAL', files: { total: 4, completed: 1, failed: 3 } });
  const files = await filesOf(service, job.jobId);
  for (const { errorMessage } of files.slice(0, 3)) expect(errorMessage).toMatch(/^The file is cut short: /);
  expect((await slidesOf(studyId)).map(({ fileName }) => fileName)).toEqual(['whole.png']);
});

test('a transfer to a directory tree copies byte for byte', async () => {
  const studyId = await createStudy(service);
  await root.put('there/a.ome.tif', { copyOf: slideFile });
  await ingest(studyId, { prefix: 'there/' });
  const job = await runJob(service, 'transfer', { studyId, credentialId, prefix: 'and/back/' });
  expect(job).toMatchObject({ status: 'COMPLETED', files: { total: 1, completed: 1 } });
  expect(sha256(await root.read('and/back/a.ome.tif'))).toBe(sha256(await readFile(slideFile)));
});

test('an image of a deleted study is purged, and its job keeps its record', async () => {
  const studyId = await createStudy(service);
  await root.put('purge/a.png', png(18));
  const job = await ingest(studyId, { prefix: 'purge/' });
  await service.call('DELETE', `/studies/${studyId}`);
  await eventually(async () => !(await objects()).some((key) => key.startsWith(`images/${studyId}/`)), 40);
  expect((await service.call('GET', `/image/jobs/${job.jobId}`)).body.status).toBe('COMPLETED');
}, 60_000);

test('the preview of an image is a JPEG, made once; of one that cannot be shown 422, without an image 404', async () => {
  const studyId = await createStudy(service);
  await root.put('preview/a.svs', { copyOf: `${wsi}/cmu_small_region.svs` });
  await root.put('preview/b.png', png(19));
  await ingest(studyId, { prefix: 'preview/' });
  const { body: bare } = await service.call('POST', `/studies/${studyId}/slides`, { fileName: 'z' });
  const [shown, damaged] = await slidesOf(studyId);
  const path = (slide: Json) => `/studies/${studyId}/slides/${slide.slideId}/thumbnail`;
  const answers = await Promise.all([1, 2, 3].map(() => service.call('GET', path(shown))));
  expect(new Set(answers.map(({ status, headers }) => [status, headers.get('content-type')].join()))).toEqual(
    new Set(['200,image/jpeg']),
  );
  expect((await objects()).filter((key) => key.endsWith('-thumbnail')).length).toBe(1);
  expect((await service.call('GET', path(shown))).status).toBe(200);
  for (const _ of [1, 2]) expect((await service.call('GET', path(damaged))).status).toBe(422);
  expect((await service.call('GET', path(bare))).body.detail).toBe('The slide has no image.');
  const image = await service.call('GET', path(bare).replace('thumbnail', 'image'));
  expect([image.status, image.body.detail]).toEqual([404, 'The slide has no image.']);
});

test.each(['image', 'thumbnail'])(
  'the %s that a client has already is 304 without a body, also on record',
  async (what) => {
    const studyId = await createStudy(service);
    await root.put(`${what}/a.svs`, { copyOf: `${wsi}/cmu_small_region.svs` });
    await root.put(`${what}/b.png`, png(20));
    await ingest(studyId, { prefix: `${what}/` });
    const [slide, damaged] = await slidesOf(studyId);
    const get = (ifNoneMatch: string, { slideId } = slide, method = 'GET') =>
      service.call(method, `/studies/${studyId}/slides/${slideId}/${what}`, undefined, {
        headers: { 'if-none-match': ifNoneMatch },
      });
    const first = await get('"another"');
    expect(first.status).toBe(200);
    const etag = first.headers.get('etag') as string;
    for (const tags of [etag, `W/${etag}`, `"another", ${etag}`, '*']) {
      const { status, headers, text } = await get(tags);
      expect([status, headers.get('etag'), text], tags).toEqual([304, etag, '']);
    }
    // A HEAD that tells a length tells that of GET (RFC 9110 §8.6).
    const length = first.headers.get('content-length');
    for (const [tag, status] of [
      [etag, 304],
      ['"another"', 200],
    ] as const) {
      const head = await get(tag, slide, 'HEAD');
      expect([head.status, head.headers.get('etag'), head.text]).toEqual([status, etag, '']);
      expect(status === 200 ? [length] : [length, null]).toContain(head.headers.get('content-length'));
    }
    const { body } = await service.call('GET', `/audit/events?resourceId=${slide.slideId}`);
    expect(body.items.map(({ status }: Json) => status)).toEqual([200, 304, 304, 304, 304, 304, 200]);
    // Of a picture that is damaged there is a file, and no preview that a client could have.
    for (const _ of [1, 2]) expect((await get('*', damaged)).status).toBe(what === 'image' ? 304 : 422);
  },
);

test('files link a slide that is there to the subject and organ that they name; one of another is left alone', async () => {
  const studyId = await createStudy(service);
  const create = async (path: string, body: Json) =>
    (await service.call('POST', `/studies/${studyId}/${path}`, body)).body;
  const [one, two] = [await create('subjects', { name: '1001' }), await create('subjects', { name: '1002' })];
  const { organId } = await create('organs', { subjectId: one.subjectId, name: 'LIVER' });
  await create('slides', { fileName: 'free.png' });
  await create('slides', { fileName: 'taken.png', subjectId: two.subjectId });
  await root.put('linked/free.png', png(71));
  await root.put('linked/taken.png', png(72));
  const files = ['free.png', 'taken.png'].map((fileName) => ({ key: `linked/${fileName}`, fileName, organId }));
  const job = await runJob(service, 'ingest', { studyId, credentialId, files });
  expect(job).toMatchObject({ status: 'PARTIAL', files: { completed: 1, failed: 1 } });
  expect(job.errorMessage).toContain('another subject or organ');
  const slides = async () => (await service.call('GET', `/studies/${studyId}/slides?sort=fileName`)).body.items;
  expect(await slides()).toMatchObject([
    { fileName: 'free.png', subjectId: one.subjectId, organId, version: 2, attributes: { MISPEC: 'LIVER' } },
    { fileName: 'taken.png', subjectId: two.subjectId, organId: null, version: 1, image: null },
  ]);

  // An image that is there already is no reason not to link its slide.
  const { body: slide } = await service.call('PUT', `/studies/${studyId}/slides/${(await slides())[0].slideId}`, {
    subjectId: null,
    organId: null,
  });
  expect(slide).toMatchObject({ subjectId: null, image: { format: 'PNG' } });
  const again = await runJob(service, 'ingest', { studyId, credentialId, files: files.slice(0, 1) });
  expect(again).toMatchObject({ status: 'COMPLETED', files: { skipped: 1 } });
  expect((await slides())[0]).toMatchObject({ subjectId: one.subjectId, organId });

  await service.call('PUT', `/studies/${studyId}/slides/${slide.slideId}`, { subjectId: two.subjectId, organId: null });
  const late = await runJob(service, 'ingest', { studyId, credentialId, files: files.slice(0, 1) });
  expect(late).toMatchObject({ status: 'FAILED', files: { skipped: 0, failed: 1 } });
  expect((await slides())[0]).toMatchObject({ subjectId: two.subjectId, organId: null, image: { format: 'PNG' } });
});
