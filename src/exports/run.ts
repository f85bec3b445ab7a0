import { createHash } from 'node:crypto';
import { Readable } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import type pg from 'pg';
import { isUnavailable } from '../db/database.ts';
import { Interruption } from '../jobs/kind.ts';
import type { ObjectStore } from '../objects/store.ts';
import { mediaTypes } from './files.ts';
import { type ClaimedExport, completeExport, recordProgress } from './job-queries.ts';
import { jsonDocument } from './json.ts';
import { studyWorkbook } from './sheets.ts';
import { type Counts, countRecords, openSnapshot, type Snapshot, sumCounters } from './snapshot-queries.ts';

/** Twice a second: a client sees it move, and a deleted job is noticed within a second (decisions §4). */
const PROGRESS_MS = 500;
/**
 * A job stays active so long from its POST: however small the study, POSTs sent at the same time make one job (decisions
 * §4), and the last of 50 may be read half a second after the first. Clients poll at intervals of seconds (interface.md §4).
 */
const LEAST_ACTIVE_MS = 1_000;

export interface ExportTools {
  pool: pg.Pool;
  /** For connections of their own. */
  databaseUrl: string;
  store: ObjectStore;
}

/** Writes the file of a job and completes it; rejects, leaving no file, when that cannot be done. */
export async function runExport(tools: ExportTools, job: ClaimedExport, given: AbortSignal): Promise<void> {
  const { pool, databaseUrl, store } = tools;
  const activeUntil = performance.now() + LEAST_ACTIVE_MS - Math.max(0, job.ageMs);
  const lost = new AbortController();
  const ended = new AbortController();
  const signal = AbortSignal.any([given, lost.signal]);
  let snapshot: Snapshot | undefined;
  let isOrphan = false;
  try {
    snapshot = await openSnapshot(databaseUrl, signal);
    const counters = await sumCounters(snapshot, job.studyId);
    const total = sum(counters);
    const written: Counts = { study: 0, subject: 0, organ: 0, slide: 0, finding: 0, score: 0, codes: 0 };
    const tell = async () => {
      const held = await recordProgress(pool, job, Math.min(sum(written), total), total);
      if (!held) lost.abort(new Interruption('lost'));
    };
    await tell();
    void repeat(tell, PROGRESS_MS, ended.signal);
    const hash = createHash('sha256');
    const content = job.format === 'JSON' ? jsonDocument : studyWorkbook;
    const body = Readable.from(hashed(content(snapshot, job.studyId, written), hash), { objectMode: false });
    const options = { contentType: mediaTypes[job.format], signal };
    const { sizeBytes } = await store.write(job.objectKey, body, options);
    isOrphan = true;
    await checkCounts(snapshot, job.studyId, counters, written);
    // An old snapshot keeps the database from tidying up.
    snapshot.close();
    await sleep(Math.max(0, activeUntil - performance.now()), undefined, { signal });
    // From here on the file may be the job’s, even where the answer to the next statement does not reach us.
    isOrphan = false;
    const file = { records: sum(written), sizeBytes, sha256: hash.digest('hex') };
    if (!(await completeExport(pool, job, file))) {
      isOrphan = true;
      throw new Interruption('lost');
    }
  } catch (error) {
    // Should the removal fail, the sweep finds it.
    if (isOrphan) await store.delete(job.objectKey).catch(() => {});
    if (signal.aborted) throw signal.reason;
    // The lease runs out and the job is started anew, which is counted, so that it cannot go on for ever.
    throw isUnavailable(error) ? new Interruption('lost') : error;
  } finally {
    ended.abort();
    snapshot?.close();
  }
}

/** Does the work over and over; a fault of the database in it is for the lease to judge. */
async function repeat(work: () => Promise<void>, everyMs: number, signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    await sleep(everyMs, undefined, { signal }).catch(() => {});
    if (!signal.aborted) await work().catch(() => {});
  }
}

function sum(counts: Counts): number {
  return Object.values(counts).reduce((total, count) => total + count, 0);
}

async function* hashed(chunks: AsyncIterable<Buffer>, hash: { update(chunk: Buffer): unknown }) {
  for await (const chunk of chunks) {
    hash.update(chunk);
    yield chunk;
  }
}

/** What is missing from, or too much in, the file of an export. */
export class IncompleteExport extends Error {
  override name = 'IncompleteExport';
}

/**
 * A job is COMPLETED only after its counts were checked against the snapshot (decisions §4). The counters are asked
 * first; where they differ, the records themselves are counted.
 */
async function checkCounts(snapshot: Snapshot, studyId: string, counters: Counts, written: Counts): Promise<void> {
  const differs = (counts: Counts) =>
    Object.keys(counts).some((kind) => counts[kind as keyof Counts] !== written[kind as keyof Counts]);
  if (!differs(counters)) return;
  const counts = await countRecords(snapshot, studyId);
  if (!differs(counts)) return;
  throw new IncompleteExport(`Written: ${JSON.stringify(written)}; in the snapshot: ${JSON.stringify(counts)}.`);
}
