import { type ChildProcess, spawn } from 'node:child_process';
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import pg from 'pg';
import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { fetchFile, finished } from './exports-study.ts';
import { eventually, type Json, useService } from './service.ts';

// A takeover takes up to 30 s (decisions §4), and there are several one after the other.
vi.setConfig({ testTimeout: 240_000, hookTimeout: 120_000 });

const main = fileURLToPath(new URL('../src/main.ts', import.meta.url));
const home = await mkdtemp(join(tmpdir(), 'sds-cluster-'));
const objects = join(home, 'objects');
/** Answers requests and runs no jobs. */
const service = useService({ SDS_OBJECT_STORE: `file:${objects}`, SDS_WORKERS: '0' });

let owner: pg.Client;
let studyId: string;
const workers: ChildProcess[] = [];
beforeAll(async () => {
  owner = new pg.Client({ connectionString: service.databaseUrl });
  await owner.connect();
  const { body } = await service.call('POST', '/studies', { name: 'A study to be exported' });
  studyId = body.studyId;
  await service.call('POST', `/studies/${studyId}/subjects`, { name: '1001' });
});
afterAll(async () => {
  for (const worker of workers) worker.kill('SIGKILL');
  await owner.end();
  await rm(home, { recursive: true, force: true });
});

/** A node of the cluster as a process of its own. */
async function startNode(): Promise<ChildProcess> {
  const own = Object.entries(process.env).filter(([name]) => !name.startsWith('SDS_'));
  const node = spawn(process.execPath, ['--import', 'tsx', main, 'serve'], {
    env: {
      ...Object.fromEntries(own),
      SDS_PORT: '0',
      SDS_DATA_DIR: await mkdtemp(join(home, 'node-')),
      SDS_DATABASE_URL: service.databaseUrl,
      SDS_OBJECT_STORE: `file:${objects}`,
      SDS_MASTER_KEY: Buffer.alloc(32, 7).toString('base64'),
      SDS_WORKERS: '1',
      SDS_LOG_LEVEL: 'error',
    },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  workers.push(node);
  await new Promise<void>((resolve, reject) => {
    node.stdout?.once('data', () => resolve());
    node.once('exit', (code) => reject(new Error(`the node ended with ${code}`)));
  });
  return node;
}

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
  first.kill('SIGKILL');
  const killed = Date.now();
  await startNode();
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
  const stopping = workers.at(-1) as ChildProcess;
  const exit = new Promise((resolve) => stopping.once('exit', resolve));
  stopping.kill('SIGTERM');
  expect(await exit).toBe(0);
  const { body } = await service.call('GET', `/studies/${studyId}/exports/${exportId}`);
  expect(body).toMatchObject({ exportStatus: { status: 'QUEUED', recordsWritten: 0 }, startedDate: null });
  await owner.query('rollback');
  await startNode();
  expect((await finished(service, studyId, exportId)).exportStatus.status).toBe('COMPLETED');
  await service.call('DELETE', `/studies/${studyId}/exports/${exportId}`);
});

test('a node that hangs loses its job, and cannot harm it when it comes back', async () => {
  const hanging = workers.at(-1) as ChildProcess;
  await owner.query('begin; lock table findings in access exclusive mode');
  const { exportId } = await start();
  await underWay(exportId, 1);
  hanging.kill('SIGSTOP');
  const other = await startNode();
  const second = await underWay(exportId, 2);
  await owner.query('rollback');
  const job = await finished(service, studyId, exportId);
  hanging.kill('SIGCONT');
  // It ends in order, so it has come to its senses.
  const exit = new Promise((resolve) => hanging.once('exit', resolve));
  hanging.kill('SIGTERM');
  expect(await exit).toBe(0);
  expect((await service.call('GET', `/studies/${studyId}/exports/${exportId}`)).body).toEqual(job);
  const file = await fetchFile(service, job.download.downloadUrl);
  expect((await file.arrayBuffer()).byteLength).toBe(job.fileSizeBytes);
  const objectsLeft = (await readdir(join(objects, 'exports', exportId))).map((name) => `exports/${exportId}/${name}`);
  expect(objectsLeft).toEqual([second.object_key]);
  other.kill('SIGKILL');
});
