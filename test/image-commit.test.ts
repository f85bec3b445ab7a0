import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { type Copied, commitMany } from '../src/images/commit-many.ts';
import { type ClaimedJob, claimJob, findOpenFiles, recordKey, recordKeys } from '../src/images/file-queries.ts';
import { newId } from '../src/lib/id.ts';
import { createCredential, createStudy, ended, filesOf, makeRoot, png } from './image-jobs.ts';
import { eventually, type Json, useService } from './service.ts';

const root = await makeRoot();
afterAll(() => root.remove());
/** Nobody works on jobs here but the tests themselves. */
const service = useService({
  SDS_FILE_ROOTS: `scanner=${root.dir}`,
  SDS_WORKERS: '0',
  SDS_IMAGE_JOBS_PER_CLIENT: '100',
});
let credentialId = '';
beforeAll(async () => {
  credentialId = await createCredential(service, 'scanner');
});

/** Only the job of the test itself is there to be claimed. */
afterEach(async () => {
  await service.pool.query(`update image_jobs set status = 'FAILED', completed_date = now(), worker_id = null,
    lease_until = null where completed_date is null`);
});

/** A job of these files, as the worker has it that has just copied them all. */
async function copied(files: { key: string; subjectId?: string }[], studyId?: string) {
  studyId ??= await createStudy(service);
  await service.call('POST', '/image/jobs:ingest', { studyId, credentialId, files });
  const job = (await claimJob(service.pool, newId(), 60_000)) as ClaimedJob;
  const many = (await findOpenFiles(service.pool, job.id, '', 100)).map((file): Copied => {
    const imageId = newId();
    const objectKey = `images/${studyId}/${imageId}`;
    return {
      file,
      image: { imageId, objectKey, sizeBytes: 7, sha256: 'a'.repeat(64), format: 'PNG', width: 1, height: 1 },
    };
  });
  expect(many.map(({ file }) => file.name)).toEqual(files.map(({ key }) => key));
  return { studyId, job, many, commit: (these = many) => commitMany({ job, pool: service.pool }, these) };
}

const slidesOf = async (studyId: string): Promise<[fileName: string, imageId: string | null][]> => {
  const { body } = await service.call('GET', `/studies/${studyId}/slides?sort=fileName`);
  return body.items.map(({ fileName, image }: Json) => [fileName, image?.imageId ?? null]);
};
const statusesOf = async ({ id }: ClaimedJob) => (await filesOf(service, id)).map(({ status }) => status);

/** What `work` answers when it meets a change that is not committed yet, and is, once it waits for it, as it must. */
async function meanwhile<T>(change: [text: string, values: string[]], work: () => Promise<T>): Promise<T> {
  const tx = await service.pool.connect();
  try {
    await tx.query('begin');
    await tx.query(...change);
    let isOver = false;
    let hasWaited = false;
    const working = work().finally(() => (isOver = true));
    // It may fail before anybody asks how it went.
    working.catch(() => {});
    const waiting = `select from pg_locks join pg_stat_activity using (pid)
      where datname = current_database() and not granted`;
    // Another connection, as a transaction sees the activity of one moment.
    await eventually(async () => {
      hasWaited = (await service.pool.query(waiting)).rows.length > 0;
      return hasWaited || isOver;
    });
    await tx.query('commit');
    const answer = await working;
    expect(hasWaited).toBe(true);
    return answer;
  } finally {
    await tx.query('rollback');
    tx.release();
  }
}

test('files whose slides are new end together, each with its own', async () => {
  const { studyId, job, many, commit } = await copied([{ key: 'a' }, { key: 'b' }]);
  expect(await commit()).toEqual([true, true]);
  expect(await slidesOf(studyId)).toEqual(many.map(({ file, image }) => [file.name, image.imageId]));
  expect((await service.call('GET', `/image/jobs/${job.id}`)).body.files).toMatchObject({ total: 2, completed: 2 });
  const slides = (await filesOf(service, job.id)).map(({ slideId }) => slideId);
  expect(new Set(slides).size).toBe(2);
});

test('a file whose slide is there is left to be ended by itself, and the others are not', async () => {
  const { studyId, job, many, commit } = await copied([{ key: 'a' }, { key: 'b' }, { key: 'c' }]);
  const { body: slide } = await service.call('POST', `/studies/${studyId}/slides`, { fileName: 'b' });
  expect(await commit()).toEqual([true, false, true]);
  expect(await statusesOf(job)).toEqual(['COMPLETED', 'PENDING', 'COMPLETED']);
  expect(await slidesOf(studyId)).toEqual([
    ['a', many[0]?.image.imageId],
    ['b', null],
    ['c', many[2]?.image.imageId],
  ]);
  const { body: after } = await service.call('GET', `/studies/${studyId}/slides/${slide.slideId}`);
  expect(after).toEqual(slide);
});

test('of two files of one FILE NAME in a round, one ends', async () => {
  const { studyId, job, many, commit } = await copied([{ key: 'a' }, { key: 'b' }]);
  const [a, b] = many as [Copied, Copied];
  expect(await commit([a, { ...b, file: { ...b.file, name: 'a' } }])).toEqual([true, false]);
  expect(await statusesOf(job)).toEqual(['COMPLETED', 'PENDING']);
  expect(await slidesOf(studyId)).toEqual([['a', a.image.imageId]]);
});

test('a round in which somebody else takes a name leaves all its files to be ended by themselves', async () => {
  const { studyId, job, commit } = await copied([{ key: 'a' }, { key: 'b' }]);
  const taken = `insert into slides (study_id, slide_id, file_name, attributes) values ($1, $2, 'b', '{}')`;
  expect(await meanwhile([taken, [studyId, newId()]], commit)).toEqual([false, false]);
  expect(await statusesOf(job)).toEqual(['PENDING', 'PENDING']);
  expect(await slidesOf(studyId)).toEqual([['b', null]]);
  // The round was undone as a whole: what is new still ends.
  expect(await commit()).toEqual([true, false]);
});

test('nothing becomes an image of a study that is deleted meanwhile', async () => {
  const { studyId, job, commit } = await copied([{ key: 'a' }, { key: 'b' }]);
  const deleted = 'update studies set deleted_date = now() where study_id = $1';
  expect(await meanwhile([deleted, [studyId]], commit)).toEqual([false, false]);
  expect(await statusesOf(job)).toEqual(['PENDING', 'PENDING']);
  const { rowCount } = await service.pool.query('select from slides where study_id = $1', [studyId]);
  expect(rowCount).toBe(0);
});

test('a round in which a subject is deleted leaves all its files to be ended by themselves', async () => {
  const studyId = await createStudy(service);
  const { subjectId } = (await service.call('POST', `/studies/${studyId}/subjects`, { name: '1001' })).body;
  const { job, commit } = await copied([{ key: 'a' }, { key: 'b', subjectId }], studyId);
  const deleted = 'delete from subjects where study_id = $1 and subject_id = $2';
  expect(await meanwhile([deleted, [studyId, subjectId]], commit)).toEqual([false, false]);
  expect(await statusesOf(job)).toEqual(['PENDING', 'PENDING']);
  expect(await slidesOf(studyId)).toEqual([]);
});

test('a worker that has lost the job ends nothing', async () => {
  const { studyId, job, commit } = await copied([{ key: 'a' }]);
  await service.pool.query('update image_jobs set claims = claims + 1 where job_id = $1', [job.id]);
  await expect(commit()).rejects.toMatchObject({ name: 'Interruption', why: 'lost' });
  expect(await statusesOf(job)).toEqual(['PENDING']);
  expect(await slidesOf(studyId)).toEqual([]);
});

test('a job ends every file that a round could not', async () => {
  const studyId = await createStudy(service);
  const { subjectId } = (await service.call('POST', `/studies/${studyId}/subjects`, { name: '1001' })).body;
  await service.call('POST', `/studies/${studyId}/slides`, { fileName: 'c.png' });
  for (const [seed, name] of ['a', 'b', 'c', 'd'].entries()) await root.put(`${name}.png`, png(seed));
  const files = [{ key: 'a.png', subjectId }, { key: 'b.png' }, { key: 'c.png' }, { key: 'd.png' }];
  const { body: started } = await service.call('POST', '/image/jobs:ingest', { studyId, credentialId, files });
  await service.call('DELETE', `/studies/${studyId}/subjects/${subjectId}`);
  await service.restart({ SDS_WORKERS: '1' });
  expect(await ended(service, started.jobId)).toMatchObject({ status: 'PARTIAL', files: { completed: 3, failed: 1 } });
  expect((await filesOf(service, started.jobId))[0]).toMatchObject({
    status: 'FAILED',
    errorMessage: 'The subject or organ of the slide was deleted.',
  });
  expect((await slidesOf(studyId)).map(([name, image]) => [name, image !== null])).toEqual([
    ['b.png', true],
    ['c.png', true],
    ['d.png', true],
  ]);
});

test('a worker that has lost its job puts no key on record, and purges no object of the worker that has it', async () => {
  const { job: lost, many } = await copied([{ key: 'taken-1.png' }, { key: 'taken-2.png' }]);
  await service.pool.query(`update image_jobs set lease_until = now() - interval '1 s' where job_id = $1`, [lost.id]);
  const job = (await claimJob(service.pool, newId(), 60_000)) as ClaimedJob;
  const keysOf = (whose: string) =>
    many.map(({ file: { fileId } }) => ({ fileId, objectKey: `images/${whose}/${fileId}` }));
  const [first] = keysOf('lost') as [{ fileId: string; objectKey: string }];
  expect(await recordKeys(service.pool, job, keysOf('held'))).toBe(true);
  await service.pool.query(`update image_files set status = 'RUNNING' where file_id = $1`, [first.fileId]);
  expect(await recordKeys(service.pool, lost, keysOf('lost'))).toBe(false);
  expect(await recordKey(service.pool, lost, first.fileId, first.objectKey)).toBe(false);
  const keys = keysOf('held').map(({ objectKey }) => objectKey);
  const { rows } = await service.pool.query(
    `select array(select object_key from image_files where job_id = $1 order by file_id) as kept,
      array(select object_key from object_purges where object_key = any ($2)) as purged`,
    [job.id, keys],
  );
  expect(rows).toEqual([{ kept: keys, purged: [] }]);
  // Whoever has it may set another key, and what stood under the first is purged.
  expect(await recordKey(service.pool, job, first.fileId, 'images/held/again')).toBe(true);
  const purged = await service.pool.query('select object_key from object_purges where object_key = any ($1)', [keys]);
  expect(purged.rows).toEqual([{ object_key: keys[0] }]);
});
