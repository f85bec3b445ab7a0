import { setMaxListeners } from 'node:events';
import type pg from 'pg';
import { type Tx, transaction } from '../db/database.ts';
import { Interruption, type JobKind } from '../jobs/kind.ts';
import type { Digests } from '../lib/digests.ts';
import { gather } from '../lib/gather.ts';
import { newId } from '../lib/id.ts';
import { Slots } from '../lib/slots.ts';
import type { ObjectStore } from '../objects/store.ts';
import { studyExists } from '../studies/queries.ts';
import { type Copied, commitMany } from './commit-many.ts';
import { cancelledReason, end, endEarly, type RecordEvent } from './end.ts';
import {
  type ClaimedJob,
  claimJob,
  findOpenFiles,
  handBackJob,
  lockHeld,
  type OpenFile,
  recordKeys,
  recordProgress,
  renewJob,
} from './file-queries.ts';
import { ingestFile, isSmall, keyOf, StudyGone } from './ingest.ts';
import { listSource } from './list-source.ts';
import { Meter } from './meter.ts';
import { type PartMemory, partMemory } from './read-object.ts';
import { type JobContext, runFile } from './run-file.ts';
import { transferFile } from './transfer.ts';
import { FileFault, Tries } from './tries.ts';

export interface ImageJobDeps {
  pool: pg.Pool;
  /** The service's own store. */
  store: ObjectStore;
  /** The store of a credential; rejects with an ObjectError whose message is fit for a user. */
  openCloud(credentialId: string): Promise<ObjectStore>;
  record: RecordEvent;
  digests: Digests;
  /** Files of one job that are copied at once (SDS_FILES_IN_PARALLEL). */
  filesInParallel: number;
}

/** What all jobs of the process share besides. */
type RunDeps = ImageJobDeps & { memory: PartMemory };

/** Files that are read ahead of the database, so that none waits for it. */
const BATCH = 200;
/** Small files that the disk may be behind with: 32 MiB of them at most. */
const STORING = 32;
/** Files that are stored, and whose ends wait to be recorded: a round of them takes one commit. */
const ENDING = 128;

/** Image jobs, as the run loop sees them (decisions §5). */
export function imageJobs(deps: ImageJobDeps): JobKind<ClaimedJob> {
  const { pool, record } = deps;
  const memory = partMemory();
  return {
    name: 'image',
    claim: (workerId, leaseMs) => claimJob(pool, workerId, leaseMs),
    async renew(claim, leaseMs) {
      const held = await renewJob(pool, claim, leaseMs);
      return !held ? 'lost' : held.cancel ? 'cancelled' : 'held';
    },
    handBack: (claim) => handBackJob(pool, claim),
    fail: (claim) =>
      endEarly(
        holder(pool, claim),
        claim.id,
        'FAILED',
        'The service met an error of its own; its log has the cause.',
        record,
      ),
    run: (claim, signal) => runJob({ ...deps, memory }, claim, signal),
  };
}

/** Runs work in transactions in which the job is locked; rejects once it is no longer this worker's. */
function holder(pool: pg.Pool, claim: ClaimedJob) {
  return <T>(work: (tx: Tx) => Promise<T>): Promise<T> =>
    transaction(pool, async (tx) => {
      if (!(await lockHeld(tx, claim))) throw new Interruption('lost');
      return work(tx);
    });
}

/** Does all files of a job that are not done, and records its end. */
async function runJob(deps: RunDeps, job: ClaimedJob, signal: AbortSignal): Promise<void> {
  const { pool, record } = deps;
  const held = holder(pool, job);
  try {
    if (job.cancelRequested) throw new Interruption('cancelled');
    await doFiles(deps, job, signal, held);
    await held((tx) => end(tx, job.id, null, record));
  } catch (error) {
    const cause: unknown = signal.aborted ? signal.reason : error;
    if (cause instanceof Interruption && cause.why === 'cancelled') {
      const reason = (await studyExists(pool, job.studyId))
        ? cancelledReason
        : `${cancelledReason} Its study was deleted.`;
      await endEarly(held, job.id, 'CANCELLED', reason, record);
    } else if (cause instanceof StudyGone || cause instanceof FileFault) {
      await endEarly(held, job.id, 'FAILED', cause.message, record);
    } else {
      throw error;
    }
  }
}

async function doFiles(deps: RunDeps, job: ClaimedJob, signal: AbortSignal, held: JobContext['held']): Promise<void> {
  const { pool, store, memory, digests } = deps;
  // Nothing of one file is to be counted here: what cannot be opened or listed concerns the job as a whole.
  const tries = new Tries(1, signal, async () => {});
  const cloud = await tries.run(() => deps.openCloud(job.credentialId));
  const meter = new Meter((files, bytesPerSecond) => held((tx) => recordProgress(tx, job.id, files, bytesPerSecond)));
  try {
    const slots = new Slots(deps.filesInParallel);
    const commitNew = gather<Copied, boolean>(ENDING, (many) => commitMany({ job, pool }, many));
    const context: JobContext = {
      job,
      pool,
      store,
      cloud,
      meter,
      held,
      memory,
      digests,
      slots,
      storing: new Slots(STORING),
      commitNew,
      etags: { isMd5: true },
    };
    if (!job.isListed) await listSource(context, tries, signal);
    const copy = job.type === 'INGEST' ? ingestFile : transferFile;
    await sideBySide(openFiles(context), deps.filesInParallel + STORING + ENDING, signal, (file, stop) =>
      runFile(context, file, stop, copy),
    );
  } finally {
    await meter.stop();
    await cloud.close();
  }
}

/** The files of a job that are not done, in batches, as there may be millions: the next is fetched while one is done. */
async function* openFiles(context: JobContext): AsyncGenerator<OpenFile> {
  let next = openBatch(context, '');
  try {
    for (;;) {
      const batch = await next;
      const last = batch.at(-1);
      const isLast = !last || batch.length < BATCH;
      if (!isLast) {
        next = openBatch(context, last.fileId);
        next.catch(() => {}); // Awaited later, here or below.
      }
      yield* batch;
      if (isLast) return;
    }
  } finally {
    // It writes keys on record: not any more once the job is handed back.
    await next.catch(() => {});
  }
}

async function openBatch({ pool, job }: JobContext, after: string): Promise<OpenFile[]> {
  const batch = await findOpenFiles(pool, job.id, after, BATCH);
  const small = job.type === 'INGEST' ? batch.filter(isSmall) : [];
  for (const file of small) file.imageId = newId();
  const keys = small.map(({ fileId, imageId = '' }) => ({ fileId, objectKey: keyOf(job, imageId) }));
  if (keys.length > 0 && !(await recordKeys(pool, job, keys))) throw new Interruption('lost');
  return batch;
}

/** Does `work` for all items, so many at once; the first that rejects stops the others. */
async function sideBySide<T>(
  items: AsyncGenerator<T>,
  atOnce: number,
  signal: AbortSignal,
  work: (item: T, signal: AbortSignal) => Promise<void>,
): Promise<void> {
  const stop = new AbortController();
  setMaxListeners(0, stop.signal);
  const forward = () => stop.abort(signal.reason);
  if (signal.aborted) forward();
  signal.addEventListener('abort', forward, { once: true });
  const lane = async () => {
    try {
      for (let next = await items.next(); !next.done; next = await items.next()) {
        stop.signal.throwIfAborted();
        await work(next.value, stop.signal);
      }
    } catch (error) {
      stop.abort(error);
    }
  };
  await Promise.all(Array.from({ length: atOnce }, lane));
  await items.return(undefined);
  signal.removeEventListener('abort', forward);
  stop.signal.throwIfAborted();
}
