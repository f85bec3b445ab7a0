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
