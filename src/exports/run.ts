import { createHash } from 'node:crypto';
import { Readable } from 'node:stream';
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

export interface ExportTools {
  pool: pg.Pool;
  /** For connections of their own. */
  databaseUrl: string;
  store: ObjectStore;
}

/** Writes the file of a job and completes it; rejects, leaving no file, when that cannot be done. */
export async function runExport(tools: ExportTools, job: ClaimedExport, given: AbortSignal): Promise<void> {
  const { pool, databaseUrl, store } = tools;
  const lost = new AbortController();
  const signal = AbortSignal.any([given, lost.signal]);
  let snapshot: Snapshot | undefined;
  let progress: NodeJS.Timeout | undefined;
  let isStored = false;
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
    // A fault of the database is the lease’s to judge.
    progress = setInterval(() => void tell().catch(() => {}), PROGRESS_MS);
    const hash = createHash('sha256');
    const content = job.format === 'JSON' ? jsonDocument : studyWorkbook;
    const body = Readable.from(hashed(content(snapshot, job.studyId, written), hash), { objectMode: false });
    const options = { contentType: mediaTypes[job.format], signal };
    const { sizeBytes } = await store.write(job.objectKey, body, options);
    isStored = true;
    clearInterval(progress);
    await checkCounts(snapshot, job.studyId, counters, written);
    signal.throwIfAborted();
    const file = { records: sum(written), sizeBytes, sha256: hash.digest('hex') };
    if (!(await completeExport(pool, job, file))) throw new Interruption('lost');
  } catch (error) {
    // Nobody else knows of this file any more; should the removal fail, the sweep finds it.
    if (isStored) await store.delete(job.objectKey).catch(() => {});
    if (signal.aborted) throw signal.reason;
    // The lease runs out and the job is started anew, which is counted, so that it cannot go on for ever.
    throw isUnavailable(error) ? new Interruption('lost') : error;
  } finally {
    clearInterval(progress);
    snapshot?.close();
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
