import { mkdir, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { purgeObjects } from '../src/jobs/purge.ts';
import { exportStudy, fetchFile, finished } from './exports-study.ts';
import { eventually, type Json, useService } from './service.ts';

const objects = await mkdtemp(join(tmpdir(), 'sds-objects-'));
afterAll(() => rm(objects, { recursive: true, force: true }));
const service = useService({ SDS_OBJECT_STORE: `file:${objects}`, SDS_WORKERS: '2' });

/** As the owner of the schema, who may lock tables; and to look what others do meanwhile. */
let owner: pg.Client;
let watcher: pg.Client;
let studyId: string;
beforeAll(async () => {
  owner = new pg.Client({ connectionString: service.databaseUrl });
  watcher = new pg.Client({ connectionString: service.databaseUrl });
  await Promise.all([owner.connect(), watcher.connect()]);
  const { body } = await service.call('POST', '/studies', { name: 'A study to be exported' });
  studyId = body.studyId;
  const { body: subject } = await service.call('POST', `/studies/${studyId}/subjects`, { name: '1001' });
  await service.call('POST', `/studies/${studyId}/organs`, { subjectId: subject.subjectId, name: 'LIVER' });
});
afterAll(() => Promise.all([owner.end(), watcher.end()]));

/** Runs `work` while every export stands still half-way: it waits for the findings, which are locked. */
async function whileFindingsAreLocked<T>(work: () => Promise<T>): Promise<T> {
  await owner.query('begin; lock table findings in access exclusive mode');
  try {
    return await work();
  } finally {
    await owner.query('rollback');
  }
}

const start = async (): Promise<Json> =>
  (await service.call('POST', `/studies/${studyId}/exports`, { format: 'JSON' })).body;
const pathOf = ({ exportId }: Json) => `/studies/${studyId}/exports/${exportId}`;
const read = async (job: Json): Promise<Json> => (await service.call('GET', pathOf(job))).body;

/** The job once a worker writes its file. */
const underWay = (job: Json) =>
  eventually(async () => {
    const { rows } = await watcher.query(
      `select j.*, (select count(*) from pg_stat_activity a where a.datname = current_database()
          and a.wait_event_type = 'Lock' and a.query like 'copy%') as waiting
        from export_jobs j where export_id = $1 and status = 'IN_PROGRESS'`,
      [job.exportId],
    );
    return rows[0]?.waiting > 0 && rows[0];
  });

/** Files in the object store, finished or not. */
async function files(): Promise<string[]> {
  const entries = await readdir(objects, { recursive: true, withFileTypes: true });
  return entries.filter((entry) => entry.isFile()).map((entry) => join(entry.parentPath, entry.name));
}

/** Exports that have a connection to the database. */
const connections = async (): Promise<number> => {
  const { rows } = await watcher.query(
    `select count(*) as n from pg_stat_activity where datname = current_database() and application_name = 'sds export'`,
  );
  return rows[0].n;
};

async function clear(): Promise<void> {
  await service.pool.query('delete from export_jobs');
  await eventually(async () => (await files()).length === 0);
}

describe('an active job', () => {
  test('is the one that 50 simultaneous POSTs make, however small the study and quick the worker', async () => {
    const posts = await Promise.all(Array.from({ length: 50 }, start));
    expect(new Set(posts.map(({ exportId }) => exportId)).size).toBe(1);
    expect(await finished(service, studyId, posts[0]?.exportId)).toMatchObject({
      exportStatus: { status: 'COMPLETED' },
    });
    await clear();
  });

  test('shows when it was started and how many records there are, before it is done', async () => {
    await whileFindingsAreLocked(async () => {
      const job = await start();
      await underWay(job);
      const { startedDate, completedDate, exportStatus, download } = await read(job);
      expect(startedDate).not.toBeNull();
      expect([completedDate, download.downloadUrl]).toEqual([null, null]);
      expect(exportStatus).toMatchObject({ status: 'IN_PROGRESS', totalRecords: 3 });
      expect((await service.call('GET', `${pathOf(job)}:download`)).status).toBe(409);
      await clear();
    });
  });

  test('is stopped within a second when it is deleted, and leaves no file behind', async () => {
    await whileFindingsAreLocked(async () => {
      const job = await start();
      await underWay(job);
      expect((await service.call('DELETE', pathOf(job))).status).toBe(204);
      await eventually(async () => (await files()).length === 0, 1);
      expect((await service.call('GET', pathOf(job))).status).toBe(404);
      expect((await service.call('GET', `${pathOf(job)}:download`)).status).toBe(404);
      expect((await service.call('DELETE', pathOf(job))).status).toBe(404);
      // The server works on it no more either, though it waits for a lock.
      await eventually(async () => (await connections()) === 0);
    });
    await eventually(async () => {
      const { rowCount } = await service.pool.query('select from object_purges');
      return rowCount === 0;
    });
  });

  test('goes with its study', async () => {
    const { body: study } = await service.call('POST', '/studies', { name: 'A study that is deleted' });
    await service.call('POST', `/studies/${study.studyId}/subjects`, { name: '1' });
    await whileFindingsAreLocked(async () => {
      const { body: job } = await service.call('POST', `/studies/${study.studyId}/exports`, { format: 'XLSX' });
      await underWay(job);
      await service.call('DELETE', `/studies/${study.studyId}`);
      await eventually(async () => (await files()).length === 0, 1);
    });
    await eventually(async () => {
      const { rowCount } = await service.pool.query('select from studies where study_id = $1', [study.studyId]);
      return rowCount === 0;
    }, 60);
  });

  test('does not see what is written after it started, and writers do not wait for it', async () => {
    const job = await whileFindingsAreLocked(async () => {
      const job = await start();
      await underWay(job);
      const { status } = await service.call('POST', `/studies/${studyId}/slides`, { fileName: 'late.svs' });
      expect(status).toBe(201);
      return job;
    });
    const { download, exportStatus } = await finished(service, studyId, job.exportId);
    expect(exportStatus).toEqual({ status: 'COMPLETED', recordsWritten: 3, totalRecords: 3 });
    const document = (await (await fetchFile(service, download.downloadUrl)).json()) as Json;
    expect(document.slides).toEqual([]);
    await service.pool.query('delete from slides where study_id = $1', [studyId]);
    await service.pool.query(`delete from record_counts where study_id = $1 and kind = 'slide'`, [studyId]);
    await clear();
  });
});

describe('a worker', () => {
  test('that lost its job to another writes nothing more of it', async () => {
    await whileFindingsAreLocked(async () => {
      const job = await start();
      const first = await underWay(job);
      // As if it had not renewed its lease: its neighbour takes the job over.
      await service.pool.query(`update export_jobs set lease_until = now() - interval '1 s'`);
      await eventually(async () => {
        const { rows } = await service.pool.query('select attempt, takeovers from export_jobs');
        return rows[0].attempt === first.attempt + 1 && rows[0].takeovers === 1;
      });
      await eventually(async () => (await connections()) === 1);
      const second = await underWay(job);
      expect(second.started_date > first.started_date).toBe(true);
    });
    const done = await eventually(async () => {
      const { rows } = await service.pool.query(`select * from export_jobs where status = 'COMPLETED'`);
      return rows[0];
    });
    await eventually(async () => (await files()).length === 1);
    expect(await files()).toEqual([join(objects, done.object_key)]);
    await clear();
  });

  test('that stops hands its job back at once, as new', async () => {
    await whileFindingsAreLocked(async () => {
      const job = await start();
      await underWay(job);
      await service.restart({ SDS_WORKERS: '0' });
      expect(await read(job)).toEqual(job);
      expect(await files()).toEqual([]);
    });
    await service.restart();
    const [{ exportId }] = (await service.call('GET', `/studies/${studyId}/exports`)).body.items;
    expect((await finished(service, studyId, exportId)).exportStatus.status).toBe('COMPLETED');
    const { rows } = await service.pool.query('select takeovers from export_jobs');
    expect(rows).toEqual([{ takeovers: 0 }]);
    await clear();
  });

  test('whose database connection breaks loses the job, which is started anew', async () => {
    const job = await whileFindingsAreLocked(async () => {
      const job = await start();
      await underWay(job);
      await watcher.query(`select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'sds export'
        and datname = current_database()`);
      await eventually(async () => (await files()).length === 0);
      return job;
    });
    const done = await finished(service, studyId, job.exportId, 30);
    expect(done).toMatchObject({ exportStatus: { status: 'COMPLETED' }, errorMessage: null });
    const { rows } = await service.pool.query('select takeovers from export_jobs');
    expect(rows).toEqual([{ takeovers: 1 }]);
    await clear();
  }, 60_000);

  test('removes what a crash left between a file and its record', async () => {
    await mkdir(join(objects, 'exports/0VbZWFCI000mbLqdKW1tcZnb'), { recursive: true });
    const orphan = join(objects, 'exports/0VbZWFCI000mbLqdKW1tcZnb/1');
    await writeFile(orphan, 'left behind');
    const { exportId } = await exportStudy(service, studyId, 'JSON');
    await service.restart();
    await eventually(async () => !(await files()).includes(orphan));
    expect((await fetchFile(service, (await read({ exportId })).download.downloadUrl)).status).toBe(200);
    await clear();
  });
});

describe('a job that cannot finish', () => {
  test('is FAILED, with a reason for the user', async () => {
    await mkdir(join(objects, '.incoming'), { recursive: true });
    await rm(join(objects, '.incoming'), { recursive: true });
    await writeFile(join(objects, '.incoming'), 'a file where a folder should be');
    const job = await exportStudy(service, studyId, 'JSON');
    expect(job).toMatchObject({ exportStatus: { status: 'FAILED' }, download: { downloadUrl: null }, sha256: null });
    expect(job.errorMessage).toMatch(/^The file could not be written to the object store: /);
    expect(job.completedDate).not.toBeNull();
    await rm(join(objects, '.incoming'));
    await clear();
  });

  test('is none whose records are all there, even where a counter is wrong', async () => {
    await service.pool.query(`insert into record_counts (study_id, kind, n) values ($1, 'finding', 5)`, [studyId]);
    const right = await exportStudy(service, studyId, 'JSON');
    expect(right.exportStatus).toEqual({ status: 'COMPLETED', recordsWritten: 3, totalRecords: 3 });
    await service.pool.query(`delete from record_counts where study_id = $1 and kind = 'finding'`, [studyId]);
    await clear();
  });
});

test('DELETE of a finished job removes its file', async () => {
  const job = await exportStudy(service, studyId, 'JSON');
  expect(await files()).toHaveLength(1);
  expect((await service.call('DELETE', pathOf(job))).status).toBe(204);
  await eventually(async () => (await files()).length === 0);
});

test('a file that the store does not let go of is purged later', async () => {
  const key = 'exports/0VbZWFCI000mbLqdKW1tcZnb/1';
  const waiting = async () => (await service.pool.query('select from object_purges')).rowCount;
  // What was deleted before is not to be met here.
  await eventually(async () => (await waiting()) === 0);
  // Without a notification, so that the service’s own purge does not take it first.
  await owner.query('begin; set local session_replication_role = replica');
  await owner.query('insert into object_purges (object_key) values ($1)', [key]);
  await owner.query('commit');
  const { signal } = new AbortController();
  const faults: string[] = [];
  const refuses = { delete: () => Promise.reject(new Error('not now')) };
  expect(await purgeObjects(service.pool, refuses, signal, (fault) => faults.push(fault))).toBe(0);
  expect(faults).toEqual([key]);
  const deleted: string[] = [];
  const agrees = { delete: async (name: string) => void deleted.push(name) };
  expect(await purgeObjects(service.pool, agrees, signal, () => {})).toBe(1);
  expect(deleted).toEqual([key]);
  expect(await waiting()).toBe(0);
});
