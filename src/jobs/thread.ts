import type { Worker } from 'node:worker_threads';
import { startThread } from '../lib/thread.ts';
import { errorFields, type Report, type Tell } from './report.ts';

/** Between a thread’s death and the next start; doubles up to the longest, and starts again after a while of life. */
const FIRST_DELAY_MS = 500;
const LONGEST_DELAY_MS = 30_000;
/** Jobs are handed back within a second; a thread that does not end in this time is ended, and its leases run out. */
const STOP_MS = 8_000;

/** The thread in which jobs run, kept alive: outside of the request loop, with its own connections. */
export class WorkThread {
  readonly #entry: URL;
  readonly #work: object;
  readonly #tell: Tell;
  #worker: Worker | null = null;
  #exited: Promise<void> = Promise.resolve();
  #restart: NodeJS.Timeout | undefined;
  #delayMs = FIRST_DELAY_MS;
  #stopped = false;

  /** @param entry module of the thread, which gets `work` as `workerData.work` and posts {@link Report}s. */
  constructor(entry: URL, work: object, tell: Tell) {
    this.#entry = entry;
    this.#work = work;
    this.#tell = tell;
  }

  start(): void {
    const started = performance.now();
    const worker = startThread(this.#entry, { workerData: { work: this.#work }, name: 'work' });
    this.#worker = worker;
    worker.on('message', (report: Report) => this.#tell(report));
    worker.on('error', (error) => this.#log('error', 'the worker thread died', errorFields(error)));
    this.#exited = new Promise((resolve) => {
      worker.once('exit', (code) => {
        this.#worker = null;
        resolve();
        if (this.#stopped) return;
        if (performance.now() - started > LONGEST_DELAY_MS) this.#delayMs = FIRST_DELAY_MS;
        this.#log('warn', 'the worker thread ended and is started again', { code, delayMs: this.#delayMs });
        this.#tell({ type: 'running', count: 0 });
        this.#restart = setTimeout(() => this.start(), this.#delayMs);
        this.#delayMs = Math.min(2 * this.#delayMs, LONGEST_DELAY_MS);
      });
    });
  }

  /** Has the jobs handed back, and resolves when the thread has ended. */
  async stop(): Promise<void> {
    this.#stopped = true;
    clearTimeout(this.#restart);
    const worker = this.#worker;
    if (!worker) return;
    worker.postMessage('stop');
    const late = setTimeout(() => {
      this.#log('warn', 'the worker thread does not stop and is ended', {});
      void worker.terminate();
    }, STOP_MS);
    await this.#exited;
    clearTimeout(late);
  }

  #log(level: 'warn' | 'error', message: string, fields: Record<string, unknown>): void {
    this.#tell({ type: 'log', level, message, fields });
  }
}
