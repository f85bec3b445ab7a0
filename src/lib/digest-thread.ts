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

const hashes = new Map<number, Hash[]>();

function follow(order: DigestOrder): string[] {
  const { digest } = order;
  const open = hashes.get(digest) ?? [];
  switch (order.do) {
    case 'begin':
      hashes.set(
        digest,
        order.algorithms.map((algorithm) => createHash(algorithm)),
      );
      return [];
    case 'update':
      for (let at = 0; at < order.chunk.length; at += PIECE_BYTES) {
        const piece = order.chunk.subarray(at, at + PIECE_BYTES);
        for (const hash of open) hash.update(piece);
      }
      return [];
    case 'end':
      hashes.delete(digest);
      return open.map((hash) => hash.digest('hex'));
  }
}

parentPort?.on('message', (order: DigestOrder) => parentPort?.postMessage(follow(order)));
