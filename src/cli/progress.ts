import type { WriteStream } from 'node:tty';

/** 10 redraws a second are smooth and cost nothing. */
const REDRAW_MS = 100;
/** Without a terminal: a line every 2 s at most, so that a log of it stays short. */
const LINE_MS = 2_000;
const BAR_WIDTH = 28;

/** A progress bar on a terminal, plain lines elsewhere, and none of those for what takes less than a line's interval. */
export class Progress {
  readonly #out: NodeJS.WriteStream;
  #label = '';
  #drawn = 0;
  #open = false;

  constructor(out: NodeJS.WriteStream = process.stderr) {
    this.#out = out;
  }

  /** Shows that `done` of `total` is through; a new label begins a new bar. */
  show(label: string, done: number, total: number): void {
    const now = performance.now();
    const ended = done >= total;
    if (label !== this.#label) {
      this.end();
      this.#label = label;
      this.#drawn = this.#out.isTTY ? 0 : now;
    }
    const due = now - this.#drawn >= (this.#out.isTTY ? REDRAW_MS : LINE_MS);
    if (!due && !(ended && this.#out.isTTY)) return;
    this.#drawn = now;
    const share = total > 0 ? Math.min(done / total, 1) : 1;
    const percent = `${Math.floor(share * 100)}`.padStart(3);
    if (this.#out.isTTY) {
      const filled = Math.round(share * BAR_WIDTH);
      const bar = '█'.repeat(filled) + '░'.repeat(BAR_WIDTH - filled);
      const line = `${label.padEnd(24)} ${bar} ${percent} %  ${done.toLocaleString('en')} of ${total.toLocaleString('en')}`;
      this.#out.write(`\r\u001b[2K${line.slice(0, ((this.#out as WriteStream).columns ?? 80) - 1)}`);
      this.#open = true;
      if (ended) this.end();
    } else {
      this.#out.write(`${label}: ${percent} % (${done} of ${total})\n`);
    }
  }

  /** Leaves the line of the bar. */
  end(): void {
    if (this.#open) this.#out.write('\n');
    this.#open = false;
  }
}
