import { Readable } from 'node:stream';
import type { FastifyReply } from 'fastify';
import type { Result } from './operation.ts';
import { sendNothing } from './send-nothing.ts';

/** One event of a stream, in the form of the wire (HTML Living Standard §9.2.5); `data` is one line, such as JSON. */
export function serverSentEvent(event: string, id: string, data: string): string {
  return `id: ${id}\nevent: ${event}\ndata: ${data}\n\n`;
}

export interface EventStreamOptions {
  /** How long a client waits before it comes back, in milliseconds. */
  retryMs: number;
  /** After so long without an event a comment is sent, so that nothing between here and the client gives up. */
  keepAliveMs: number;
  /** A client that takes nothing for so long is cut off; it comes back and resumes. */
  stallMs: number;
  /** Ends the stream. */
  signal: AbortSignal;
}

/**
 * The answer that sends `events` (chunks of whole events) as they come, until they end, the signal aborts or the client
 * goes. What is not sent yet is asked for one chunk at a time, so a slow client makes nothing pile up here.
 */
export function eventStream(
  events: (signal: AbortSignal) => AsyncIterable<string>,
  options: EventStreamOptions,
): Result {
  return {
    headers: {
      'Content-Type': 'text/event-stream; charset=utf-8',
      'Cache-Control': 'no-store, no-transform',
      // Proxies (nginx) would collect events otherwise.
      'X-Accel-Buffering': 'no',
    },
    send: (reply) => {
      if (reply.request.method === 'HEAD') return sendNothing(reply);
      const stop = new AbortController();
      const end = () => stop.abort();
      const over = AbortSignal.any([options.signal, stop.signal]);
      reply.raw.once('close', end);
      return reply.send(
        Readable.from(chunks(reply, events(over), over, options), { objectMode: false, highWaterMark: 1 }),
      );
    },
  };
}

async function* chunks(
  reply: FastifyReply,
  events: AsyncIterable<string>,
  over: AbortSignal,
  { retryMs, keepAliveMs, stallMs }: EventStreamOptions,
): AsyncGenerator<string> {
  const iterator = events[Symbol.asyncIterator]();
  const ended = new Promise<'ended'>((resolve) => {
    if (over.aborted) resolve('ended');
    over.addEventListener('abort', () => resolve('ended'), { once: true });
  });
  let stalled: NodeJS.Timeout | undefined;
  let quiet: NodeJS.Timeout | undefined;
  // Between two pulls the client is taking what it was sent; that must not last for ever.
  const send = (chunk: string) => {
    stalled = setTimeout(() => reply.raw.destroy(), stallMs);
    return chunk;
  };
  try {
    yield send(`retry: ${retryMs}\n\n`);
    let next = iterator.next();
    for (;;) {
      clearTimeout(stalled);
      const silence = new Promise<'quiet'>((resolve) => {
        quiet = setTimeout(resolve, keepAliveMs, 'quiet');
      });
      const first = await Promise.race([next, silence, ended]);
      clearTimeout(quiet);
      if (first === 'ended') return;
      if (first === 'quiet') {
        yield send(': still here\n\n');
        continue;
      }
      if (first.done) return;
      yield send(first.value);
      next = iterator.next();
    }
  } finally {
    clearTimeout(stalled);
    clearTimeout(quiet);
    // Not awaited: a generator that waits ends by the signal.
    void Promise.resolve(iterator.return?.()).catch(() => {});
  }
}
