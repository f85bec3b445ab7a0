import { setTimeout as sleep } from 'node:timers/promises';
import { ObjectError } from '../objects/store.ts';
import { UnreadableImage } from './format/byte-source.ts';

/** Tries of one file in all (decisions §5). */
export const MAX_TRIES = 5;
/** Before the second try; doubles with every further one: 0.5 to 4 s, some 8 s in all. */
const FIRST_DELAY_MS = 500;

/** Why a file cannot be done; the message is a reason for a user. */
export class FileFault extends Error {
  override name = 'FileFault';
}

/**
 * The tries of one file, however many of its parts are under way: what breaks at the same time counts once, and all of
 * them go on together after the pause.
 */
export class Tries {
  #count: number;
  #pause: Promise<void> | null = null;
  readonly #signal: AbortSignal;
  readonly #onAgain: (tries: number) => Promise<void>;

  /** @param count the how-manieth try this is; `onAgain` is told of every further one. */
  constructor(count: number, signal: AbortSignal, onAgain: (tries: number) => Promise<void>) {
    this.#count = count;
    this.#signal = signal;
    this.#onAgain = onAgain;
  }

  /** Does `work` until it is done; an error that another try does not mend, or the last try's, becomes a {@link FileFault}. */
  async run<T>(work: () => Promise<T>): Promise<T> {
    for (;;) {
      await this.#pause;
      const begun = this.#count;
      try {
        return await work();
      } catch (error) {
        await this.again(error, begun);
      }
    }
  }

  /** The try that is under way. */
  get current(): number {
    return this.#count;
  }

  /** Waits for the next try, after `error` in the try `begun`; throws where there is none. */
  async again(error: unknown, begun: number): Promise<void> {
    this.#signal.throwIfAborted();
    if (error instanceof FileFault) throw error;
    if (error instanceof UnreadableImage) throw new FileFault(error.message, { cause: error });
    if (!(error instanceof ObjectError)) throw error;
    if (error.kind !== 'transient') throw new FileFault(error.message, { cause: error });
    // Somebody else has begun the next try since.
    if (this.#count > begun) return this.#pause ?? undefined;
    if (this.#count >= MAX_TRIES) {
      throw new FileFault(`Given up after ${MAX_TRIES} tries: ${error.message}`, { cause: error });
    }
    this.#count += 1;
    this.#pause = this.#wait();
    await this.#pause;
  }

  async #wait(): Promise<void> {
    await this.#onAgain(this.#count);
    // Half of it is left to chance, so that many files that broke together do not all come back at once.
    const delayMs = FIRST_DELAY_MS * 2 ** (this.#count - 2) * (0.5 + Math.random() / 2);
    await sleep(delayMs, undefined, { signal: this.#signal }).catch(() => this.#signal.throwIfAborted());
  }
}
