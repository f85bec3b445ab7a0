import type { Readable } from 'node:stream';

/** Ends the stream with `signal.reason` when the signal aborts; returns the stream. */
export function endOnAbort<T extends Readable>(stream: T, signal: AbortSignal | undefined): T {
  if (!signal) return stream;
  const abort = () => stream.destroy(signal.reason instanceof Error ? signal.reason : new Error(String(signal.reason)));
  if (signal.aborted) abort();
  else {
    signal.addEventListener('abort', abort, { once: true });
    stream.once('close', () => signal.removeEventListener('abort', abort));
  }
  return stream;
}

/** A chunk of a stream that may carry text, as its bytes (UTF-8). */
export function toBytes(chunk: Uint8Array | string): Uint8Array {
  return typeof chunk === 'string' ? Buffer.from(chunk) : chunk;
}
