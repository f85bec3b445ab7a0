import { randomUUID } from 'node:crypto';
import { hostname, setPriority } from 'node:os';
import { setFlagsFromString } from 'node:v8';
import { isMainThread, parentPort, workerData } from 'node:worker_threads';
import { recordEvent } from './audit/record.ts';
import { type CredentialDeps, openCredential } from './credentials/open.ts';
import { openPool } from './db/database.ts';
import { exportJobs } from './exports/jobs.ts';
import { sweepExports } from './exports/sweep.ts';
import { imageJobs } from './images/run-job.ts';
import { type Chore, Chores } from './jobs/chores.ts';
import { listen } from './jobs/listen.ts';
import { JobLoop } from './jobs/loop.ts';
import { purgeObjects } from './jobs/purge.ts';
import { errorFields, type Tell } from './jobs/report.ts';
import { Digests } from './lib/digests.ts';
import type { MasterKeySource } from './lib/master-key.ts';
import { MasterKeys } from './lib/master-keys.ts';
import { openStore } from './objects/open.ts';
import { purgeStudies } from './studies/purge.ts';

/** All that the worker thread is told; it is copied to the thread, so plain data. */
export interface WorkSettings {
  databaseUrl: string;
  /** As SDS_OBJECT_STORE. */
  objectStore: string;
  /** Jobs at once. */
  workers: number;
  /** Files of an image job that are copied at once. */
  filesInParallel: number;
  /** Opens the credentials of image jobs. */
  masterKey: MasterKeySource;
  clouds: Omit<CredentialDeps, 'masterKey'>;
}

/** 30 s and an hour: each is also done when something asks for it; these catch what a crash or a fault left. */
const PURGE_EVERY_MS = 30_000;
const SWEEP_EVERY_MS = 3_600_000;

/** Does the work that is no answer to a request: jobs, and what deletions left. */
export async function startWork(settings: WorkSettings, tell: Tell): Promise<{ stop(): Promise<void> }> {
  const { databaseUrl, workers, filesInParallel } = settings;
  const store = await openStore(settings.objectStore, settings.clouds);
  const credentials = { ...settings.clouds, masterKey: await openMasterKeys(settings.masterKey) };
  // 2 connections a job (progress and lease) and 2 for all else.
  const pool = openPool({
    url: databaseUrl,
    name: 'sds work',
    max: 2 * workers + 2,
    onError: (error) =>
      tell({ type: 'log', level: 'warn', message: 'an idle connection broke', fields: errorFields(error) }),
  });
  const digests = new Digests();
  const loop = new JobLoop({
    kinds: [
      exportJobs({ pool, databaseUrl, store }),
      imageJobs({
        pool,
        store,
        openCloud: (credentialId) => openCredential(pool, credentialId, credentials),
        record: recordEvent,
        digests,
        filesInParallel,
      }),
    ],
    concurrency: workers,
    workerId: `${hostname()}/${process.pid}/${randomUUID()}`,
    tell,
  });
  const chores = new Chores(
    [
      { name: 'purge of studies', everyMs: PURGE_EVERY_MS, run: (signal) => purgeStudies(pool, signal) },
      {
        name: 'purge of objects',
        everyMs: PURGE_EVERY_MS,
        run: (signal) =>
          purgeObjects(pool, store, signal, (key, error) =>
            tell({
              type: 'log',
              level: 'warn',
              message: 'an object could not be purged',
              fields: { key, ...errorFields(error) },
            }),
          ),
      },
      { name: 'sweep of exports', everyMs: SWEEP_EVERY_MS, run: (signal) => sweepExports(pool, store, signal) },
      {
        name: 'sweep of what writers that died left half-written',
        everyMs: SWEEP_EVERY_MS,
        run: (signal) => store.sweep({ prefixes: ['exports/', 'images/'], signal }),
      },
    ] satisfies Chore[],
    tell,
  );
  const listening = new AbortController();
  await listen(
    { url: databaseUrl, name: 'sds work notifications', tell, signal: listening.signal },
    {
      sds_jobs: (what) => {
        if (!chores.wake(what)) loop.wake();
      },
      sds_jobs_cancel: (id) => loop.cancelled(id),
    },
    () => loop.wake(),
  );
  loop.start();
  chores.start();
  return {
    async stop() {
      listening.abort();
      await Promise.all([loop.stop(), chores.stop()]);
      await pool.end();
      await Promise.all([store.close(), digests.close()]);
    },
  };
}

/** A key that came to this thread as a copy is a Buffer no more. */
function openMasterKeys(source: MasterKeySource): Promise<MasterKeys> {
  return MasterKeys.open(source.kind === 'inline' ? { ...source, key: Buffer.from(source.key) } : source);
}

/** Runs in the thread until it is told to stop; then hands its jobs back, closes everything and lets the thread end. */
async function runInThread(settings: WorkSettings): Promise<void> {
  // On Linux this concerns the calling thread alone: whoever waits for an answer goes first. 10 is a tenth
  // of the others' share of a busy processor.
  if (process.platform === 'linux') setPriority(0, 10);
  // V8 counts the buffers of sockets, some 32 MB of them between two collections of what is young, when it asks whether
  // it is time to look through the whole heap, but not when it sets that time: it would look again and again. 300 % is
  // the most that it lets a heap grow by itself. It holds for the whole process, as all of V8's flags do.
  setFlagsFromString('--heap-growing-percent=300');
  const tell: Tell = (report) => parentPort?.postMessage(report);
  const work = await startWork(settings, tell);
  parentPort?.once('message', () => {
    void work.stop().then(
      () => parentPort?.close(),
      (error: unknown) => {
        throw error;
      },
    );
  });
}

/** Set by whoever starts the thread: a test runner has threads of its own. */
if (!isMainThread && (workerData as { work?: WorkSettings } | null)?.work) {
  await runInThread((workerData as { work: WorkSettings }).work);
}
