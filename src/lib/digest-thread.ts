import { createHash, type Hash } from 'node:crypto';
import { parentPort } from 'node:worker_threads';

/** What the thread is asked; it answers each in turn. Digests are told apart by the number they were begun under. */
export type DigestOrder = { digest: number } & (
  | { do: 'begin'; algorithms: readonly string[] }
  | { do: 'update'; chunk: Uint8Array }
  | { do: 'end' }
);

/** 128 KiB: what the second hash reads is still near the processor. */
const PIECE_BYTES = 128 * 1024;

/** The answer to an order: the digests of one that ends, or why it could not be followed. */
export type DigestAnswer = string[] | { error: string };

const hashes = new Map<number, Hash[]>();

function follow(order: DigestOrder): string[] {
  if (order.do === 'begin') {
    hashes.set(
      order.digest,
      order.algorithms.map((algorithm) => createHash(algorithm)),
    );
    return [];
  }
  const open = hashes.get(order.digest);
  if (!open) throw new Error('There is no such digest.');
  if (order.do === 'end') {
    hashes.delete(order.digest);
    return open.map((hash) => hash.digest('hex'));
  }
  for (let at = 0; at < order.chunk.length; at += PIECE_BYTES) {
    const piece = order.chunk.subarray(at, at + PIECE_BYTES);
    for (const hash of open) hash.update(piece);
  }
  return [];
}

function answer(order: DigestOrder): DigestAnswer {
  try {
    return follow(order);
  } catch (error) {
    return { error: String(error) };
  }
}

parentPort?.on('message', (order: DigestOrder) => parentPort?.postMessage(answer(order)));
