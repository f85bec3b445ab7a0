import { Readable } from 'node:stream';
import { ObjectError } from './store.ts';
import { endOnAbort } from './stream.ts';

/** Default for `idleTimeoutMs`. 30 s: decisions §5 (`SDS_CLOUD_IDLE_TIMEOUT_S`). */
export const defaultIdleTimeoutMs = 30_000;

/** Nothing moved for the idle timeout. */
export class IdleTimeout extends ObjectError {
  constructor(what: string, idleTimeoutMs: number) {
    super('transient', `${what} made no progress for ${idleTimeoutMs / 1000} s.`);
  }
}

/**
 * Runs one call to a store and aborts it when nothing moved for `idleTimeoutMs`: `work` reports every movement by
 * `progress`. Rejects with `transient` then, even where `work` does not end; with `signal.reason` once `work` has ended
 * because the caller aborted.
 */
export async function withIdleTimeout<T>(
  { what, idleTimeoutMs, signal }: { what: string; idleTimeoutMs: number; signal: AbortSignal | undefined },
  work: (signal: AbortSignal, progress: () => void) => Promise<T>,
): Promise<T> {
  signal?.throwIfAborted();
  const stop = new AbortController();
  // Not AbortSignal.any: a job's signal would gather one dependent for every part of every file.
  const forward = () => stop.abort(signal?.reason);
  signal?.addEventListener('abort', forward);
  let timer: NodeJS.Timeout | undefined;
  const silence = new Promise<never>((_, reject) => {
    timer = setTimeout(() => {
      stop.abort(new IdleTimeout(what, idleTimeoutMs));
      reject(stop.signal.reason);
    }, idleTimeoutMs);
  });
  try {
    return await Promise.race([work(stop.signal, () => timer?.refresh()), silence]);
  } catch (error) {
    throw stop.signal.aborted ? stop.signal.reason : error;
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener('abort', forward);
  }
}

/** What a download must come to. */
export interface Expected {
  /** For messages: the object, and where it is. */
  what: string;
  /** Bytes that the provider announced, where it did. */
  sizeBytes: number | undefined;
  idleTimeoutMs: number;
  /** Looks at each chunk, and throws at the end (null) where the bytes are not those that the provider has. */
  check?: (chunk: Buffer | null) => void;
  signal: AbortSignal | undefined;
}

/**
 * The body of a download, which ends in a `transient` error where `source` breaks off, is cut short, or brings nothing
 * for `idleTimeoutMs` while somebody waits for it: a slow reader, who makes the source pause, is not the cloud's fault.
 */
export function readWithIdleTimeout(source: Readable, expected: Expected): Readable {
  const { what, sizeBytes, idleTimeoutMs, check, signal } = expected;
  let received = 0;
  let timer: NodeJS.Timeout | undefined;
  const broken = (cause?: Error) =>
    new ObjectError('transient', `${what} broke off after ${received} of ${sizeBytes ?? 'its'} bytes.`, { cause });
  const body = new Readable({
    read() {
      timer ??= setTimeout(() => body.destroy(new IdleTimeout(what, idleTimeoutMs)), idleTimeoutMs);
      source.resume();
    },
    destroy(error, callback) {
      clearTimeout(timer);
      source.destroy();
      callback(error);
    },
  });
  source.pause();
  source.on('data', (chunk: Buffer) => {
    received += chunk.length;
    check?.(chunk);
    if (body.push(chunk)) return void timer?.refresh();
    clearTimeout(timer);
    timer = undefined;
    source.pause();
  });
  source.on('end', () => {
    clearTimeout(timer);
    try {
      if (sizeBytes !== undefined && received !== sizeBytes) throw broken();
      check?.(null);
      body.push(null);
    } catch (error) {
      body.destroy(error instanceof Error ? error : broken());
    }
  });
  source.on('error', (error) => body.destroy(error instanceof ObjectError ? error : broken(error)));
  source.on('close', () => {
    if (!source.readableEnded) body.destroy(broken());
  });
  return endOnAbort(body, signal);
}
