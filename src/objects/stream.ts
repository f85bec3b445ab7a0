import { Readable } from 'node:stream';
import type { Body } from './store.ts';

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

/** Makes a body ours: it may break before anybody reads it, who will find the error then. Returns what ends it for good. */
export function takeBody(body: Body, signal?: AbortSignal): () => void {
  if (body instanceof Readable) {
    endOnAbort(
      body.on('error', () => {}),
      signal,
    );
    return () => void body.destroy();
  }
  return () => void body.return(undefined).catch(() => {});
}

/** A chunk of a stream that may carry text, as its bytes (UTF-8). */
export function toBytes(chunk: Uint8Array | string): Uint8Array {
  return typeof chunk === 'string' ? Buffer.from(chunk) : chunk;
}
