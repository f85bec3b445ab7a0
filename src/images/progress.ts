import { setMaxListeners } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Db } from '../db/database.ts';
import { serverSentEvent } from '../http/sse.ts';
import { type Moment, readMoment } from './progress-queries.ts';

/**
 * The stream of a job is the list of its numbered changes. A file keeps the number of its last change of status, the job
 * that of its last change of any kind, and numbers are given under the lock of the job, so that they are committed in
 * order. Hence "what has a larger number than N" is all that somebody missed who saw N last: on any node, without a log
 * of events. A file that changed twice since is told once, as it is.
 */

/** 250 ms: at most 4 `progress` a second (decisions §5), and one query a job and node in that time. */
const ROUND_MS = 250;
/** Also without a notification, should one be lost. */
const REFRESH_MS = 15_000;
/** Files a query: some 200 KiB. */
const PAGE = 500;
/** Of events that wait for a slow client; beyond that it reads on from the database once it has caught up. */
const MAX_WAITING_CHARACTERS = 256 * 1024;

interface FeedEvent {
  no: number;
  text: string;
}

/** The last event of a moment: how far the job is, or that it ended. */
function jobEvent({ eventNo, ended, job, progress }: Moment): FeedEvent {
  const text = ended
    ? serverSentEvent('end', String(eventNo), job)
    : serverSentEvent('progress', String(eventNo), progress);
  return { no: eventNo, text };
}

function fileEvents({ files }: Moment): FeedEvent[] {
  return files.map(({ no, record }) => ({ no, text: serverSentEvent('file', String(no), record) }));
}

/** What waits for one client. */
class Watcher {
  files: FeedEvent[] = [];
  job: (FeedEvent & { ended: boolean }) | null = null;
  /** More came than may wait: nothing is kept any more. */
  overflown = false;
  #characters = 0;
  #wake: () => void = () => {};

  /** Forgets everything, and keeps what comes from now on. */
  reset(): void {
    this.files = [];
    this.job = null;
    this.overflown = false;
    this.#characters = 0;
  }

  offer(files: FeedEvent[], job: Watcher['job']): void {
    for (const event of files) this.#characters += event.text.length;
    if (this.#characters > MAX_WAITING_CHARACTERS) this.overflown = true;
    if (this.overflown) this.files = [];
    else this.files.push(...files);
    this.job = job ?? this.job;
    this.#wake();
  }

  /** Resolves when something waits, or at the next {@link wake}. */
  async waiting(): Promise<void> {
    if (this.job !== null || this.overflown) return;
    await new Promise<void>((resolve) => {
      this.#wake = resolve;
    });
  }

  wake(): void {
    this.#wake();
  }
}

/** The changes of one job, read once for all its watchers on this node. */
class JobFeed {
  readonly watchers = new Set<Watcher>();
  readonly ready: Promise<void>;
  readonly #db: Db;
  readonly #jobId: string;
  #position = 0;
  #changed = false;
  #reading: Promise<void> | null = null;

  constructor(db: Db, jobId: string) {
    this.#db = db;
    this.#jobId = jobId;
    this.ready = readMoment(db, jobId, null, 0).then((moment) => {
      this.#position = moment?.eventNo ?? 0;
    });
    this.ready.catch(() => {});
  }

  /** The job may have changed. */
  changed(): void {
    this.#changed = true;
    this.#reading ??= this.#read().finally(() => {
      this.#reading = null;
    });
  }

  async #read(): Promise<void> {
    await this.ready.catch(() => {});
    while (this.#changed && this.watchers.size > 0) {
      this.#changed = false;
      try {
        await this.#round();
      } catch {
        // The database is away; every watcher that comes to need it hears of that itself.
        this.#changed = true;
      }
      await sleep(ROUND_MS);
    }
  }

  async #round(): Promise<void> {
    for (;;) {
      const moment = await readMoment(this.#db, this.#jobId, this.#position, PAGE);
      if (!moment || moment.eventNo <= this.#position) return;
      const files = fileEvents(moment);
      const isLast = files.length < PAGE;
      const job = isLast ? { ...jobEvent(moment), ended: moment.ended } : null;
      for (const watcher of this.watchers) watcher.offer(files, job);
      this.#position = isLast ? moment.eventNo : (files.at(-1)?.no ?? this.#position);
      if (isLast) return;
    }
  }
}

/** The streams of all jobs that somebody watches on this node. */
export class JobFeeds {
  readonly #db: Db;
  readonly #feeds = new Map<string, JobFeed>();
  readonly #closing = new AbortController();
  readonly #refresh: NodeJS.Timeout;

  constructor(db: Db) {
    this.#db = db;
    this.#refresh = setInterval(() => this.changedAll(), REFRESH_MS);
    this.#refresh.unref();
    // One of every stream.
    setMaxListeners(0, this.#closing.signal);
  }

  /** Ends when the feeds are closed. */
  get closing(): AbortSignal {
    return this.#closing.signal;
  }

  /** A notification (`sds_image_jobs`) told that the job changed. */
  changed(jobId: string): void {
    this.#feeds.get(jobId)?.changed();
  }

  /** Notifications may have been missed. */
  changedAll(): void {
    for (const feed of this.#feeds.values()) feed.changed();
  }

  /** Ends all streams. */
  close(): void {
    clearInterval(this.#refresh);
    this.#closing.abort();
  }

  /**
   * The events of a job, in chunks of whole ones, after event number `after` (null: from now on) until it has ended.
   * First what the database has, then what comes; it subscribes before it looks, so nothing falls between.
   */
  async *follow(jobId: string, after: number | null, signal: AbortSignal): AsyncGenerator<string> {
    const feed = this.#feeds.get(jobId) ?? new JobFeed(this.#db, jobId);
    this.#feeds.set(jobId, feed);
    const watcher = new Watcher();
    feed.watchers.add(watcher);
    const wake = () => watcher.wake();
    signal.addEventListener('abort', wake);
    try {
      await feed.ready;
      let position = after;
      let progressAt = Number.NEGATIVE_INFINITY;
      while (!signal.aborted) {
        watcher.reset();
        for (let isLast = false; !isLast; ) {
          const moment = await readMoment(this.#db, jobId, position, PAGE);
          if (!moment) return;
          const files = fileEvents(moment);
          isLast = files.length < PAGE;
          const events = isLast ? [...files, jobEvent(moment)] : files;
          await pause(isLast && !moment.ended ? progressAt : Number.NEGATIVE_INFINITY, signal);
          yield events.map(({ text }) => text).join('');
          if (isLast && moment.ended) return;
          if (isLast) progressAt = performance.now();
          position = events.at(-1)?.no ?? position;
        }
        while (!signal.aborted) {
          await watcher.waiting();
          await pause(progressAt, signal);
          if (watcher.overflown || signal.aborted) break;
          const { files, job } = watcher;
          watcher.reset();
          const seen = position ?? 0;
          const events = [...files, ...(job ? [job] : [])].filter(({ no }) => no > seen);
          if (events.length === 0) continue;
          yield events.map(({ text }) => text).join('');
          if (job?.ended) return;
          progressAt = performance.now();
          position = events.at(-1)?.no ?? position;
        }
      }
    } finally {
      signal.removeEventListener('abort', wake);
      feed.watchers.delete(watcher);
      if (feed.watchers.size === 0 && this.#feeds.get(jobId) === feed) this.#feeds.delete(jobId);
    }
  }
}

/** Waits until a round after `since`. */
async function pause(since: number, signal: AbortSignal): Promise<void> {
  const ms = since + ROUND_MS - performance.now();
  if (ms > 0) await sleep(ms, undefined, { signal }).catch(() => {});
}
