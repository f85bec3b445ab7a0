import { type Claim, Interruption, type JobKind } from './kind.ts';
import { errorFields, type Report, type Tell } from './report.ts';

/** 15 s: with a poll every 2 s, a job is taken over within 30 s of its worker’s death (decisions §4). */
const LEASE_MS = 15_000;
/** A third of the lease, so that two renewals can go wrong before it runs out. */
const RENEW_MS = 5_000;
/** After a renewal that failed: a database that restarts is back within a second or two. */
const RENEW_AGAIN_MS = 1_000;
/** A worker counts its lease as over this long before the database does: what it has begun to write ends in time. */
const MARGIN_MS = 1_000;
/** For jobs whose notification was missed and leases that ran out. */
const POLL_MS = 2_000;

interface Running {
  claim: Claim;
  interrupt: AbortController;
  /** Looks at once whether the worker still has the job. */
  look: () => Promise<void>;
  ended: Promise<void>;
}

export interface LoopOptions {
  kinds: JobKind[];
  /** Jobs at once. */
  concurrency: number;
  /** Unique among all workers that ever were. */
  workerId: string;
  tell: Tell;
}

/** Claims jobs of all kinds and runs them, several at once, until it is stopped. */
export class JobLoop {
  readonly #options: LoopOptions;
  readonly #running = new Set<Running>();
  #poll: NodeJS.Timeout | undefined;
  #claiming: Promise<void> | null = null;
  #again = false;
  #stopped = false;
  /** Which kind is asked first; it takes turns, so that no kind waits for the last job of another. */
  #turn = 0;

  constructor(options: LoopOptions) {
    this.#options = options;
  }

  start(): void {
    this.#poll = setInterval(() => this.wake(), POLL_MS);
    this.wake();
  }

  /** There may be something to do. */
  wake(): void {
    if (this.#stopped) return;
    this.#again = true;
    this.#claiming ??= this.#claimAll().finally(() => {
      this.#claiming = null;
      // Woken between the last look and here.
      if (this.#again) this.wake();
    });
  }

  /** Somebody deleted or cancelled this job; looks at once whether it is one of ours. */
  cancelled(id: string): void {
    for (const { claim, look } of this.#running) if (claim.id === id) void look();
  }

  /** Interrupts all jobs and hands them back; resolves when none runs any more. */
  async stop(): Promise<void> {
    this.#stopped = true;
    clearInterval(this.#poll);
    await this.#claiming;
    const running = [...this.#running];
    for (const { interrupt } of running) interrupt.abort(new Interruption('stopped'));
    await Promise.all(running.map(({ ended }) => ended));
  }

  async #claimAll(): Promise<void> {
    while (this.#again && !this.#stopped) {
      this.#again = false;
      try {
        while (this.#running.size < this.#options.concurrency && (await this.#claimOne()));
      } catch (error) {
        this.#log('warn', 'jobs could not be looked for', errorFields(error));
      }
    }
  }

  async #claimOne(): Promise<boolean> {
    const { kinds, workerId } = this.#options;
    for (let i = 0; i < kinds.length; i++) {
      const kind = kinds[this.#turn++ % kinds.length] as JobKind;
      const asked = performance.now();
      const claim = await kind.claim(workerId, LEASE_MS);
      if (!claim) continue;
      this.#begin(kind, claim, asked);
      return !this.#stopped;
    }
    return false;
  }

  #begin(kind: JobKind, claim: Claim, claimedAt: number): void {
    const interrupt = new AbortController();
    if (this.#stopped) interrupt.abort(new Interruption('stopped'));
    const lease = this.#keepLease(kind, claim, interrupt, claimedAt);
    const ended = this.#work(kind, claim, interrupt.signal).finally(() => {
      lease.end();
      this.#running.delete(running);
      this.#tell({ type: 'running', count: this.#running.size });
      this.wake();
    });
    const running: Running = { claim, interrupt, look: lease.look, ended };
    this.#running.add(running);
    this.#tell({ type: 'running', count: this.#running.size });
  }

  /** Runs one job to its end, whatever that is; never rejects. */
  async #work(kind: JobKind, claim: Claim, signal: AbortSignal): Promise<void> {
    const started = performance.now();
    const fields = { job: kind.name, jobId: claim.id, attempt: claim.attempt };
    this.#log('info', 'job started', fields);
    const outcome = await this.#outcome(kind, claim, signal, fields);
    const seconds = (performance.now() - started) / 1000;
    this.#tell({ type: 'job', kind: kind.name, outcome, seconds });
    this.#log('info', `job ${outcome}`, { ...fields, seconds: Math.round(seconds * 1000) / 1000 });
  }

  async #outcome(
    kind: JobKind,
    claim: Claim,
    signal: AbortSignal,
    fields: Record<string, unknown>,
  ): Promise<(Report & { type: 'job' })['outcome']> {
    try {
      signal.throwIfAborted();
      await kind.run(claim, signal);
      return 'finished';
    } catch (error) {
      const interruption = signal.aborted ? signal.reason : error;
      const why = interruption instanceof Interruption ? interruption.why : null;
      try {
        if (why === 'stopped') await kind.handBack(claim);
        if (why) return why;
        this.#log('error', 'a job failed', { ...fields, ...errorFields(error) });
        await kind.fail(claim, error);
        return 'failed';
      } catch (fault) {
        // Its lease runs out, and whoever reaches the database takes it over.
        this.#log('error', 'the end of a job could not be recorded', { ...fields, ...errorFields(fault) });
        return 'lost';
      }
    }
  }

  /** Renews the lease until `end`; interrupts the job when it is lost, or cannot be renewed in time. */
  #keepLease(kind: JobKind, claim: Claim, interrupt: AbortController, claimedAt: number) {
    let next: NodeJS.Timeout | undefined;
    let over: NodeJS.Timeout | undefined;
    const lose = () => interrupt.abort(new Interruption('lost'));
    // Counted from before the database was asked, so that the worker's lease never ends after the database's.
    const hold = (asked: number) => {
      clearTimeout(over);
      over = setTimeout(lose, asked + LEASE_MS - MARGIN_MS - performance.now());
    };
    const look = async () => {
      const asked = performance.now();
      try {
        const held = await kind.renew(claim, LEASE_MS);
        if (held === 'held') hold(asked);
        else interrupt.abort(new Interruption(held));
      } catch (error) {
        this.#log('warn', 'a lease could not be renewed', { job: kind.name, jobId: claim.id, ...errorFields(error) });
        return RENEW_AGAIN_MS;
      }
      return RENEW_MS;
    };
    const renewal = async () => {
      const wait = await look();
      if (!interrupt.signal.aborted && over) next = setTimeout(renewal, wait);
    };
    hold(claimedAt);
    next = setTimeout(renewal, RENEW_MS);
    return {
      look: async () => void (await look()),
      end: () => {
        clearTimeout(next);
        clearTimeout(over);
        over = undefined;
      },
    };
  }

  #log(level: 'info' | 'warn' | 'error', message: string, fields: Record<string, unknown>): void {
    this.#tell({ type: 'log', level, message, fields });
  }

  #tell(report: Report): void {
    this.#options.tell(report);
  }
}
