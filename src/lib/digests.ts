import type { Worker } from 'node:worker_threads';
import type { DigestAnswer, DigestOrder } from './digest-thread.ts';
import { startThread } from './thread.ts';

/** Digests of one run of bytes, being computed. */
export interface Digest {
  /** Takes the next bytes; resolves when they have been read. Those in shared memory are read where they are. */
  update(chunk: Uint8Array): Promise<void>;
  /** Ends it, also where nobody wants the result: hexadecimal, one for each algorithm. */
  end(): Promise<string[]>;
}

/** The thread died, with all that was begun: to be done again. */
export class DigestsEnded extends Error {
  constructor(cause?: unknown) {
    super('The thread that computes digests has ended.', { cause });
    this.name = 'DigestsEnded';
  }
}

interface Thread {
  worker: Worker;
  /** Who waits for an answer; the thread gives them in the order in which it was asked. */
  asked: { resolve: (answer: string[]) => void; reject: (error: Error) => void }[];
}

const entry = new URL(import.meta.url.endsWith('.ts') ? './digest-thread.ts' : './digest-thread.js', import.meta.url);

/** Computes digests in a thread of their own: it takes longer to hash bytes than to move them from a socket to a file. */
export class Digests {
  #thread: Thread | null = null;
  #begun = 0;

  /** Begins to digest; the first starts the thread, and so does the first after it died. */
  begin(...algorithms: string[]): Digest {
    this.#thread ??= this.#start();
    const thread = this.#thread;
    const digest = ++this.#begun;
    const ask = (order: DigestOrder) =>
      new Promise<string[]>((resolve, reject) => {
        if (this.#thread !== thread) return reject(new DigestsEnded());
        thread.asked.push({ resolve, reject });
        thread.worker.ref();
        thread.worker.postMessage(order);
      });
    // Where it cannot be begun, the next order is told so.
    ask({ do: 'begin', digest, algorithms }).catch(() => {});
    return {
      update: async (chunk) => void (await ask({ do: 'update', digest, chunk })),
      end: () => ask({ do: 'end', digest }),
    };
  }

  /** Ends the thread. */
  async close(): Promise<void> {
    await this.#thread?.worker.terminate();
  }

  #start(): Thread {
    const worker = startThread(entry, { name: 'digests' });
    const thread: Thread = { worker, asked: [] };
    const end = (error: Error) => {
      if (this.#thread === thread) this.#thread = null;
      for (const { reject } of thread.asked.splice(0)) reject(error);
    };
    worker.on('message', (answer: DigestAnswer) => {
      const asked = thread.asked.shift();
      if ('error' in answer) asked?.reject(new Error(answer.error));
      else asked?.resolve(answer);
      if (thread.asked.length === 0) worker.unref();
    });
    worker.on('error', (cause) => end(new DigestsEnded(cause))).on('exit', () => end(new DigestsEnded()));
    return thread;
  }
}
