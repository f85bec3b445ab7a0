import { errorFields, type Tell } from './report.ts';

/** Something to be done now and then, by whichever process comes first: it must do no harm when several do it. */
export interface Chore {
  /** A notification of this name (payload of `sds_jobs`) has it done at once. */
  name: string;
  everyMs: number;
  run(signal: AbortSignal): Promise<unknown>;
}

/** Does chores, each once at the start and then over and over, never twice at once. */
export class Chores {
  readonly #chores: Chore[];
  readonly #tell: Tell;
  readonly #stop = new AbortController();
  readonly #running = new Map<Chore, Promise<void>>();
  readonly #again = new Set<Chore>();
  #timers: NodeJS.Timeout[] = [];

  constructor(chores: Chore[], tell: Tell) {
    this.#chores = chores;
    this.#tell = tell;
  }

  start(): void {
    this.#timers = this.#chores.map((chore) => setInterval(() => this.#do(chore), chore.everyMs));
    for (const chore of this.#chores) this.#do(chore);
  }

  /** Does the chore that the notification asks for; false where it speaks of something else. */
  wake(notification: string): boolean {
    const asked = this.#chores.filter(({ name }) => name === notification);
    for (const chore of asked) this.#do(chore);
    return asked.length > 0;
  }

  async stop(): Promise<void> {
    this.#stop.abort();
    for (const timer of this.#timers) clearInterval(timer);
    await Promise.all(this.#running.values());
  }

  #do(chore: Chore): void {
    if (this.#stop.signal.aborted) return;
    // One that is under way may have looked already where there is something new.
    if (this.#running.has(chore)) this.#again.add(chore);
    else this.#running.set(chore, this.#run(chore));
  }

  async #run(chore: Chore): Promise<void> {
    const { signal } = this.#stop;
    do {
      this.#again.delete(chore);
      try {
        await chore.run(signal);
      } catch (error) {
        if (signal.aborted) break;
        const fields = { chore: chore.name, ...errorFields(error) };
        this.#tell({ type: 'log', level: 'warn', message: 'a chore could not be done', fields });
      }
    } while (this.#again.has(chore) && !signal.aborted);
    this.#running.delete(chore);
  }
}
