import { createHash } from 'node:crypto';
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, relative } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { createCredential, createStudy, ended, filesOf, makeRoot, png } from './image-jobs.ts';
import { useNodes } from './node.ts';
import { eventually, type Json, useService } from './service.ts';

// A takeover takes up to 30 s (decisions §5), and there are several one after the other.
vi.setConfig({ testTimeout: 240_000, hookTimeout: 120_000 });

const objects = await mkdtemp(join(tmpdir(), 'sds-objects-'));
afterAll(() => rm(objects, { recursive: true, force: true }));
const root = await makeRoot();
afterAll(() => root.remove());
const roots = `scanner=${root.dir}`;
/** Answers requests and runs no jobs. */
const service = useService({ SDS_OBJECT_STORE: `file:${objects}`, SDS_WORKERS: '0', SDS_FILE_ROOTS: roots });
const startNode = useNodes(service, {
  SDS_OBJECT_STORE: `file:${objects}`,
  SDS_FILE_ROOTS: roots,
  SDS_FILES_IN_PARALLEL: '2',
});

const MiB = 1024 * 1024;
const FILES = 16;
const contents = Array.from({ length: FILES }, (_, n) => png(n, (1 + (n % 4) * 8) * MiB));
const sha256 = (bytes: Buffer) => createHash('sha256').update(bytes).digest('hex');

let credentialId = '';
beforeAll(async () => {
  credentialId = await createCredential(service, 'scanner');
  for (const [n, content] of contents.entries()) await root.put(`in/${String(n).padStart(2, '0')}.png`, content);
});

const start = async (studyId: string): Promise<string> => {
  const { body } = await service.call('POST', '/image/jobs:ingest', { studyId, credentialId, prefix: 'in/' });
  return body.jobId;
};
const done = async (jobId: string): Promise<Json[]> =>
  (await filesOf(service, jobId)).filter(({ status }) => status === 'COMPLETED');
const moreDone = (jobId: string, n: number) => eventually(async () => (await done(jobId)).length >= n, 40);

/** Objects of the store that can be seen; what a dead writer had begun is none. */
async function visible(): Promise<string[]> {
  const files = await readdir(objects, { recursive: true, withFileTypes: true });
  const keys = files.filter((one) => one.isFile()).map((one) => relative(objects, join(one.parentPath, one.name)));
  return keys.filter((key) => !key.startsWith('.incoming')).sort();
}

/** Everything of a job that ended well fits together: records, counters, slides and objects. */
async function checkWhole(studyId: string, jobId: string): Promise<void> {
  const job = await ended(service, jobId, 60);
  const bytes = contents.reduce((sum, content) => sum + content.length, 0);
  expect(job).toMatchObject({
    status: 'COMPLETED',
    files: { total: FILES, completed: FILES, skipped: 0, failed: 0, cancelled: 0 },
    bytes: { total: bytes, transferred: bytes },
  });
  const { body } = await service.call('GET', `/studies/${studyId}/slides?sort=fileName&pageSize=100`);
  expect(body.items.map(({ image }: Json) => image.sha256)).toEqual(contents.map(sha256));
  // What is told is one thing, what is stored another.
  const keys =
    'select object_key from images join slides using (study_id, slide_id) where study_id = $1 order by file_name';
  const ofStudy = await service.pool.query(keys, [studyId]);
  const stored: string[] = [];
  for (const { object_key } of ofStudy.rows) stored.push(sha256(await readFile(join(objects, object_key))));
  expect(stored).toEqual(contents.map(sha256));
  await eventually(async () => (await service.pool.query('select from object_purges')).rowCount === 0, 40);
  const { rows } = await service.pool.query('select object_key from images');
  expect(await visible()).toEqual(rows.map(({ object_key }) => object_key).sort());
  const events = await service.call('GET', `/audit/events?resourceId=${jobId}&event=IMAGE_JOB_COMPLETED`);
  expect(events.body.paging.totalItems).toBe(1);
}

test('an ingest whose workers are killed again and again copies every file, none of those that were done twice', async () => {
  const studyId = await createStudy(service);
  const jobId = await start(studyId);
  let before: Json[] = [];
  for (let kills = 0; kills < 3; kills++) {
    const node = await startNode();
    await moreDone(jobId, before.length + 1);
    await sleep(Math.random() * 300);
    node.process.kill('SIGKILL');
    const after = await done(jobId);
    for (const file of before) expect(after).toContainEqual(file);
    before = after;
  }
  const node = await startNode();
  await checkWhole(studyId, jobId);
  const files = await filesOf(service, jobId);
  for (const file of before) expect(files).toContainEqual(file);
  node.process.kill('SIGKILL');
});

test('a worker that is stopped hands its job over without a wait', async () => {
  const studyId = await createStudy(service);
  const node = await startNode();
  const jobId = await start(studyId);
  await moreDone(jobId, 1);
  node.process.kill('SIGTERM');
  expect(await node.exit).toBe(0);
  const { rows } = await service.pool.query('select status, worker_id from image_jobs where job_id = $1', [jobId]);
  expect(rows).toEqual([{ status: 'RUNNING', worker_id: null }]);
  const next = await startNode();
  await checkWhole(studyId, jobId);
  next.process.kill('SIGKILL');
});

test('a node that hangs loses its job, and cannot harm it when it comes back', async () => {
  const studyId = await createStudy(service);
  const hanging = await startNode();
  const jobId = await start(studyId);
  await moreDone(jobId, 1);
  hanging.process.kill('SIGSTOP');
  const other = await startNode();
  const job = await ended(service, jobId, 60);
  hanging.process.kill('SIGCONT');
  // It ends in order, so it has come to its senses.
  hanging.process.kill('SIGTERM');
  expect(await hanging.exit).toBe(0);
  expect((await service.call('GET', `/image/jobs/${jobId}`)).body).toEqual(job);
  await checkWhole(studyId, jobId);
  other.process.kill('SIGKILL');
});

test('a job whose worker is dead is cancelled without one', async () => {
  const studyId = await createStudy(service);
  const node = await startNode();
  const jobId = await start(studyId);
  await moreDone(jobId, 1);
  node.process.kill('SIGKILL');
  await eventually(async () => {
    const { rows } = await service.pool.query('select from image_jobs where job_id = $1 and lease_until < now()', [
      jobId,
    ]);
    return rows.length === 1;
  }, 30);
  const { body: job } = await service.call('POST', `/image/jobs/${jobId}:cancel`);
  expect(job).toMatchObject({ status: 'PARTIAL', errorMessage: 'The job was cancelled.' });
});
