import type { Db } from '../db/database.ts';
import type { EventDraft } from '../http/gate.ts';
import { recordAll, recordEvent } from './record.ts';

/** 250 ms: decisions §7 allows a read event to come so late. */
const FLUSH_INTERVAL_MS = 200;
/** Events of one statement: large enough that its cost does not show, small enough (200 kB) not to hold others up. */
const BATCH = 500;
/** Events that may wait: 10,000 are about 5 MB and a second of full load; beyond, they are dropped and counted. */
const CAPACITY = 10_000;

interface Waiting {
  draft: EventDraft;
  /** performance.now() of the call, as its date is the time of the call and not of the flush. */
  at: number;
}

/** Read events on their way to the log: buffered, bounded, and counted when dropped (decisions §7). */
export class ReadBuffer {
  #waiting: Waiting[] = [];
  #timer: NodeJS.Timeout | null = null;
  #flushing: Promise<void> | null = null;
  readonly #db: Db;
  readonly #onDropped: (count: number, error?: unknown) => void;

  constructor(db: Db, onDropped: (count: number, error?: unknown) => void) {
    this.#db = db;
    this.#onDropped = onDropped;
  }

  /** Takes an event without waiting for anything. */
  add(draft: EventDraft): void {
    if (this.#waiting.length >= CAPACITY) {
      this.#onDropped(1);
      return;
    }
    this.#waiting.push({ draft, at: performance.now() });
    if (this.#waiting.length >= BATCH) void this.flush();
    else this.#timer ??= setTimeout(() => void this.flush(), FLUSH_INTERVAL_MS);
  }

  /** Writes what waits; at shutdown the last thing before the database goes. Never rejects. */
  async flush(): Promise<void> {
    if (this.#timer) clearTimeout(this.#timer);
    this.#timer = null;
    while (this.#flushing) await this.#flushing;
    if (this.#waiting.length === 0) return;
    this.#flushing = this.#writeAll();
    await this.#flushing;
  }

  async #writeAll(): Promise<void> {
    while (this.#waiting.length > 0) {
      const batch = this.#waiting.splice(0, BATCH);
      try {
        const plain = batch.filter(({ draft }) => draft.reason === null);
        const now = performance.now();
        const drafts = plain.map(({ draft }) => draft);
        if (drafts.length > 0)
          await recordAll(
            this.#db,
            drafts,
            plain.map(({ at }) => now - at),
          );
        // A reason on a read is rare: such events go one by one, with their details.
        for (const { draft } of batch) if (draft.reason !== null) await recordEvent(this.#db, draft);
      } catch (error) {
        this.#onDropped(batch.length, error);
      }
    }
    this.#flushing = null;
  }
}
