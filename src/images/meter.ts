/** Twice a second: half of what a stream may tell (decisions §5), and little work for the database. */
const TICK_MS = 500;
/** The speed is that of the last 5 s: steady enough to reckon the time left, quick enough to show a stall. */
const WINDOW_MS = 5_000;

/** Measures how far the files of a job are, and tells it now and then. */
export class Meter {
  readonly #files = new Map<string, number>();
  readonly #tell: (files: { id: string; bytes: number }[], bytesPerSecond: number) => Promise<void>;
  #movedBytes = 0;
  #samples: { at: number; bytes: number }[] = [{ at: performance.now(), bytes: 0 }];
  #told = '';
  #telling: Promise<void> | null = null;
  #timer: NodeJS.Timeout;

  constructor(tell: (files: { id: string; bytes: number }[], bytesPerSecond: number) => Promise<void>) {
    this.#tell = tell;
    this.#timer = setInterval(() => this.#tick(), TICK_MS);
  }

  /** The file has so many bytes by now; fewer than before, where it begins anew. */
  at(fileId: string, bytes: number): void {
    this.#movedBytes += Math.max(0, bytes - (this.#files.get(fileId) ?? 0));
    this.#files.set(fileId, bytes);
  }

  forget(fileId: string): void {
    this.#files.delete(fileId);
  }

  async stop(): Promise<void> {
    clearInterval(this.#timer);
    await this.#telling;
  }

  #tick(): void {
    const now = performance.now();
    this.#samples.push({ at: now, bytes: this.#movedBytes });
    this.#samples = this.#samples.filter(({ at }) => at >= now - WINDOW_MS);
    const [first] = this.#samples;
    const seconds = first ? (now - first.at) / 1000 : 0;
    const bytesPerSecond = first && seconds > 0 ? Math.round((this.#movedBytes - first.bytes) / seconds) : 0;
    const files = [...this.#files].map(([id, bytes]) => ({ id, bytes }));
    const news = JSON.stringify([files, bytesPerSecond]);
    if (news === this.#told || this.#telling) return;
    this.#told = news;
    // What cannot be told now is told by the next tick.
    this.#telling = this.#tell(files, bytesPerSecond)
      .catch(() => {
        this.#told = '';
      })
      .finally(() => {
        this.#telling = null;
      });
  }
}
