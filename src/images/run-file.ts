import { setMaxListeners } from 'node:events';
import type pg from 'pg';
import type { Tx } from '../db/database.ts';
import type { Digests } from '../lib/digests.ts';
import type { Slots } from '../lib/slots.ts';
import type { ObjectStore } from '../objects/store.ts';
import type { Copied } from './commit-many.ts';
import type { EtagTrust } from './copy.ts';
import { beginFile, type ClaimedJob, countTry, endFile, type FileEnd, type OpenFile } from './file-queries.ts';
import { UnreadableImage } from './format/byte-source.ts';
import type { Meter } from './meter.ts';
import type { PartMemory } from './read-object.ts';
import { FileFault, Tries } from './tries.ts';

/** What the files of one running job share. */
export interface JobContext {
  job: ClaimedJob;
  pool: pg.Pool;
  /** The service's own store. */
  store: ObjectStore;
  /** The one of the job's credential. */
  cloud: ObjectStore;
  meter: Meter;
  memory: PartMemory;
  digests: Digests;
  /** Bounds the files that are copied at the same time; their ends may be recorded while others are copied. */
  slots: Slots;
  /** Bounds the small files that are in memory until the disk has them, besides those being copied. */
  storing: Slots;
  /** Ends a file together with others whose slides are new; false where it has to be ended by itself. */
  commitNew(copied: Copied): Promise<boolean>;
  etags: EtagTrust;
  /** Runs `work` in a transaction in which the job is locked and still this worker's; rejects where it is not. */
  held<T>(work: (tx: Tx) => Promise<T>): Promise<T>;
}

/** One file under way. */
export interface FileContext extends JobContext {
  file: OpenFile;
  /** Tells that it is RUNNING, and how large the object is. */
  begin(sizeBytes: number): Promise<void>;
  tries: Tries;
  signal: AbortSignal;
  /** The copy is whole: the next file may be copied. */
  copied(): void;
}

/** Made once: to note where an error came from takes time, and nobody reads it of this one. */
const fileIsDone = new Error('The file is done.');

/** Does one file; `copy` records its success itself, or returns how else it ended. A {@link FileFault} fails the file alone. */
export async function runFile(
  context: JobContext,
  file: OpenFile,
  signal: AbortSignal,
  copy: (context: FileContext) => Promise<FileEnd | null>,
): Promise<void> {
  const { job, held, meter } = context;
  const { fileId } = file;
  // One of its own: a file adds many listeners, and a job has many files.
  const stop = new AbortController();
  setMaxListeners(0, stop.signal);
  const forward = () => stop.abort(signal.reason);
  if (signal.aborted) forward();
  signal.addEventListener('abort', forward, { once: true });
  const copied = await context.slots.take();
  try {
    stop.signal.throwIfAborted();
    const tries = new Tries(Math.max(1, file.attempts), stop.signal, (count) =>
      held((tx) => countTry(tx, fileId, count)),
    );
    const begin = (sizeBytes: number) => held((tx) => beginFile(tx, job.id, fileId, sizeBytes));
    const end = await copy({ ...context, file, begin, tries, signal: stop.signal, copied }).catch(
      (error: unknown): FileEnd => {
        stop.signal.throwIfAborted();
        if (!(error instanceof FileFault) && !(error instanceof UnreadableImage)) throw error;
        return { status: 'FAILED', errorMessage: error.message };
      },
    );
    copied();
    if (end) await held((tx) => endFile(tx, job.id, fileId, end));
  } finally {
    copied();
    meter.forget(fileId);
    signal.removeEventListener('abort', forward);
    stop.abort(fileIsDone);
  }
}
