/** A job that this worker has: which, and the how-manieth claim of it (what a worker writes names both). */
export interface Claim {
  id: string;
  attempt: number;
}

/**
 * How a worker stands to a job that it claimed: it has it, somebody asked to cancel it, or it has it no longer (the job
 * was deleted, or another worker took it over).
 */
export type Hold = 'held' | 'cancelled' | 'lost';

/**
 * A table of jobs, as the run loop sees it. Every method but `run` is one short statement; those that write do so only
 * while the claim holds, and otherwise change nothing.
 */
export interface JobKind<C extends Claim = Claim> {
  /** As in log lines, metrics and notifications: `export`. */
  readonly name: string;
  /** Takes the oldest job that waits, or whose lease ran out, for `leaseMs` from now; null where there is none. */
  claim(workerId: string, leaseMs: number): Promise<C | null>;
  /** Prolongs the lease to `leaseMs` from now, and tells how the worker stands to the job. */
  renew(claim: C, leaseMs: number): Promise<Hold>;
  /** Lets another worker have the job at once: this one stops. */
  handBack(claim: C): Promise<void>;
  /** Records that the job failed. */
  fail(claim: C, error: unknown): Promise<void>;
  /**
   * Does the job and records its end. When the signal aborts, with an {@link Interruption} as its reason, it cleans up
   * and rejects soon. A job that was cancelled may record that itself, and resolve; one that finds out itself that it
   * has been lost rejects with an Interruption.
   */
  run(claim: C, signal: AbortSignal): Promise<void>;
}

/** Why a job is interrupted: this worker stops, somebody cancelled the job, or the worker has it no longer. */
export class Interruption extends Error {
  readonly why: 'stopped' | 'cancelled' | 'lost';

  constructor(why: Interruption['why']) {
    super({ stopped: 'The worker stops.', cancelled: 'The job was cancelled.', lost: 'The job was lost.' }[why]);
    this.name = 'Interruption';
    this.why = why;
  }
}
