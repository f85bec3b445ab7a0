import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { fetchFile, finished } from './exports-study.ts';
import { type Node, useNodes } from './node.ts';
import { eventually, type Json, useService } from './service.ts';

// A takeover takes up to 30 s (decisions §4), and there are several one after the other.
vi.setConfig({ testTimeout: 240_000, hookTimeout: 120_000 });

const objects = await mkdtemp(join(tmpdir(), 'sds-objects-'));
afterAll(() => rm(objects, { recursive: true, force: true }));
/** Answers requests and runs no jobs. */
const service = useService({ SDS_OBJECT_STORE: `file:${objects}`, SDS_WORKERS: '0' });
const startNode = useNodes(service, { SDS_OBJECT_STORE: `file:${objects}` });

let owner: pg.Client;
let studyId: string;
/** The node that was started last, and works. */
let worker: Node;
beforeAll(async () => {
  owner = new pg.Client({ connectionString: service.databaseUrl });
  await owner.connect();
  const { body } = await service.call('POST', '/studies', { name: 'A study to be exported' });
  studyId = body.studyId;
  await service.call('POST', `/studies/${studyId}/subjects`, { name: '1001' });
});
afterAll(async () => {
  await owner.end();
});

/** The job once some node writes its file for the given time. */
const underWay = (exportId: string, attempt: number): Promise<Json> =>
  eventually(async () => {
    const { rows } = await service.pool.query(
      `select *, extract(epoch from now())::float as now from export_jobs where export_id = $1 and attempt = $2`,
      [exportId, attempt],
    );
    return rows[0];
  }, 40);

const start = async (): Promise<Json> =>
  (await service.call('POST', `/studies/${studyId}/exports`, { format: 'JSON' })).body;

test('an export whose server was killed is started anew by another within 30 s, and its remains are removed', async () => {
  const first = await startNode();
  await owner.query('begin; lock table findings in access exclusive mode');
  const { exportId } = await start();
  const before = await underWay(exportId, 1);
  first.process.kill('SIGKILL');
  const killed = Date.now();
  worker = await startNode();
  const after = await underWay(exportId, 2);
  expect(Date.now() - killed).toBeLessThan(30_000);
  expect(after.worker_id).not.toBe(before.worker_id);
  expect(after.started_date > before.started_date).toBe(true);
  await owner.query('rollback');
  const job = await finished(service, studyId, exportId);
  expect(job.exportStatus).toEqual({ status: 'COMPLETED', recordsWritten: 2, totalRecords: 2 });
  const document = (await (await fetchFile(service, job.download.downloadUrl)).json()) as Json;
  expect(document.subjects).toHaveLength(1);
  const { rows } = await service.pool.query('select object_key from object_purges');
  expect(rows).toEqual([]);
  const left = (await readdir(objects, { recursive: true, withFileTypes: true })).filter((entry) => entry.isFile());
  // What the dead one had begun is no object, and is swept when it is an hour old.
  expect(left.filter(({ parentPath }) => !parentPath.endsWith('.incoming'))).toHaveLength(1);
  await service.call('DELETE', `/studies/${studyId}/exports/${exportId}`);
});

test('a worker that was stopped hands its job over without a wait', async () => {
  await owner.query('begin; lock table findings in access exclusive mode');
  const { exportId } = await start();
  await underWay(exportId, 1);
  worker.process.kill('SIGTERM');
  expect(await worker.exit).toBe(0);
  const { body } = await service.call('GET', `/studies/${studyId}/exports/${exportId}`);
  expect(body).toMatchObject({ exportStatus: { status: 'QUEUED', recordsWritten: 0 }, startedDate: null });
  await owner.query('rollback');
  worker = await startNode();
  expect((await finished(service, studyId, exportId)).exportStatus.status).toBe('COMPLETED');
  await service.call('DELETE', `/studies/${studyId}/exports/${exportId}`);
});

test('a node that hangs loses its job, and cannot harm it when it comes back', async () => {
  const hanging = worker;
  await owner.query('begin; lock table findings in access exclusive mode');
  const { exportId } = await start();
  await underWay(exportId, 1);
  hanging.process.kill('SIGSTOP');
  await startNode();
  const second = await underWay(exportId, 2);
  await owner.query('rollback');
  const job = await finished(service, studyId, exportId);
  hanging.process.kill('SIGCONT');
  // It ends in order, so it has come to its senses.
  hanging.process.kill('SIGTERM');
  expect(await hanging.exit).toBe(0);
  expect((await service.call('GET', `/studies/${studyId}/exports/${exportId}`)).body).toEqual(job);
  const file = await fetchFile(service, job.download.downloadUrl);
  expect((await file.arrayBuffer()).byteLength).toBe(job.fileSizeBytes);
  const objectsLeft = (await readdir(join(objects, 'exports', exportId))).map((name) => `exports/${exportId}/${name}`);
  expect(objectsLeft).toEqual([second.object_key]);
});
