import { Problem } from '../lib/problem.ts';
import type { ClientState } from './clients.ts';
import { Recent } from './recent.ts';

/** Older than this, a state is read again in the background while it still serves. */
const refreshMs = 2_000;
/** Older than this, a state does not serve any more: requests wait for a new one. One second below the 5 s promised. */
const usableMs = 4_000;
/** A state that took longer than this to read says nothing of now: what changes takes effect within 5 s (decisions §6). */
const deadlineMs = 5_000;
/** A few hundred bytes each. */
const kept = 10_000;

interface Entry {
  state: ClientState | null;
  /** When the reading of `state` began, so that its age is never underrated. */
  readAt: number;
  reading: Promise<ClientState | null> | null;
}

/**
 * What bounds the live tokens of each client, at most 5 s old: answers at once for clients in use, as their state is
 * read ahead. A fault of the database is passed on only where no state young enough is left.
 */
export class ClientStates {
  readonly #read: (clientId: string) => Promise<ClientState | null>;
  readonly #now: () => number;
  readonly #entries = new Recent<Entry>(kept);

  /** `now` is a monotonic clock in milliseconds. */
  constructor(read: (clientId: string) => Promise<ClientState | null>, now: () => number = () => performance.now()) {
    this.#read = read;
    this.#now = now;
  }

  /** Null: there is no such client. */
  get(clientId: string): ClientState | null | Promise<ClientState | null> {
    const entry = this.#entries.get(clientId);
    const age = entry ? this.#now() - entry.readAt : Number.POSITIVE_INFINITY;
    if (entry && age < refreshMs) return entry.state;
    const reading = entry?.reading ?? this.#refresh(clientId, entry);
    if (!entry || age >= usableMs) return reading;
    // Whoever cannot do without it any more meets the fault again.
    reading.catch(() => {});
    return entry.state;
  }

  #refresh(clientId: string, known: Entry | undefined): Promise<ClientState | null> {
    const startedAt = this.#now();
    const entry = known ?? { state: null, readAt: Number.NEGATIVE_INFINITY, reading: null };
    entry.reading = this.#read(clientId)
      .then((state) => {
        if (this.#now() - startedAt > deadlineMs) throw tooSlow();
        entry.state = state;
        entry.readAt = startedAt;
        return state;
      })
      .finally(() => {
        entry.reading = null;
      });
    this.#entries.set(clientId, entry);
    return entry.reading;
  }
}

function tooSlow(): Problem {
  // 1 s: the delay is that of a busy database, not of one that is gone.
  return new Problem('unavailable', 'The client could not be looked up in time.', { headers: { 'Retry-After': '1' } });
}
