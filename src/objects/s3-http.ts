import { Agent as HttpAgent, type IncomingMessage, request as requestHttp } from 'node:http';
import { Agent as HttpsAgent, request as requestHttps } from 'node:https';
import type { S3ClientConfig } from '@aws-sdk/client-s3';

/** The sockets of a store. Image jobs bring agents whose `lookup` refuses forbidden addresses. */
export interface Agents {
  httpAgent: HttpAgent;
  httpsAgent: HttpsAgent;
}

/** 64 sockets: enough to hide the latency of many small objects, few enough for any server. */
const maxSockets = 64;

/** 256 KiB: a body is written in such pieces, to see that it moves. */
const pieceBytes = 256 * 1024;

export function createAgents(): Agents {
  return {
    httpAgent: new HttpAgent({ keepAlive: true, maxSockets }),
    httpsAgent: new HttpsAgent({ keepAlive: true, maxSockets }),
  };
}

/** What the SDK hands over and wants back. */
interface SdkRequest {
  protocol: string;
  hostname: string;
  port?: number;
  method: string;
  path: string;
  query?: Record<string, string | string[] | null>;
  headers: Record<string, string>;
  body?: Uint8Array | string;
}

/**
 * Sends the SDK's requests. Its own handler times the request as a whole, so that a large part on a slow line is cut off
 * while it moves, or not at all; and makes agents of its own for large bodies, past the given ones. Here one rule holds
 * from the connect to the last byte: no progress for `idleTimeoutMs` is an error. A reader that pauses is not the peer's.
 */
export function createRequestHandler(
  agents: Agents,
  idleTimeoutMs: number,
): Exclude<S3ClientConfig['requestHandler'], undefined> {
  return {
    handle: (request: unknown, options: { abortSignal?: unknown } = {}) =>
      send(
        agents,
        idleTimeoutMs,
        request as SdkRequest,
        options.abortSignal instanceof AbortSignal ? options.abortSignal : undefined,
      ),
    destroy() {
      agents.httpAgent.destroy();
      agents.httpsAgent.destroy();
    },
    metadata: { handlerProtocol: 'http/1.1' },
    updateHttpClientConfig() {},
    httpHandlerConfigs: () => ({}),
  } as Exclude<S3ClientConfig['requestHandler'], undefined>;
}

/** The peer was silent for too long; the SDK does not repeat it, since the caller knows better whether to wait once more. */
export class IdleTimeoutError extends Error {
  constructor(idleTimeoutMs: number) {
    super(`no progress for ${idleTimeoutMs / 1000} s`);
    this.name = 'IdleTimeoutError';
  }
}

function send(
  agents: Agents,
  idleTimeoutMs: number,
  request: SdkRequest,
  signal: AbortSignal | undefined,
): Promise<{ response: { statusCode: number; headers: Record<string, string>; body: IncomingMessage } }> {
  const secure = request.protocol === 'https:';
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const outgoing = (secure ? requestHttps : requestHttp)({
      host: request.hostname.replace(/^\[(.*)\]$/, '$1'),
      ...(request.port === undefined ? {} : { port: request.port }),
      method: request.method,
      path: pathOf(request),
      headers: request.headers,
      agent: secure ? agents.httpsAgent : agents.httpAgent,
    });
    let timer: NodeJS.Timeout | undefined;
    let answer: IncomingMessage | undefined;
    let steps = 0;
    const moved = () => void steps++;
    const abort = () => outgoing.destroy(abortError(signal));
    signal?.addEventListener('abort', abort, { once: true });
    outgoing
      .on('socket', (socket) => {
        if (socket.connecting) socket.once('connect', moved).once('secureConnect', moved);
        // From here on: to wait in the agent's queue is to wait for our own other requests.
        timer = watch(idleTimeoutMs, {
          // While there are bytes that nobody has fetched, it is the reader who pauses.
          progress: () => (answer ? (answer.readableLength > 0 ? 'paused' : socket.bytesRead) : -1 - steps),
          stop: (error) => (answer ?? outgoing).destroy(error),
        });
      })
      .on('error', reject)
      .on('close', () => {
        clearInterval(timer);
        signal?.removeEventListener('abort', abort);
      })
      .on('response', (response) => {
        // Whoever reads it hears an error as well; who has dropped it must not take the process down.
        answer = response.on('error', () => {});
        resolve({ response: { statusCode: response.statusCode ?? 0, headers: flat(response), body: response } });
      });
    writeBody(outgoing, request.body, moved);
  });
}

/** Writes piece by piece, so that `moved` is called for each that has left, and the answer may come in between. */
function writeBody(
  outgoing: ReturnType<typeof requestHttp>,
  body: SdkRequest['body'],
  moved: () => void,
  offset = 0,
): void {
  const bytes = typeof body === 'string' ? Buffer.from(body) : body;
  if (!bytes || bytes.length - offset <= pieceBytes) {
    outgoing.end(bytes?.subarray(offset), moved);
    return;
  }
  outgoing.write(bytes.subarray(offset, offset + pieceBytes), (error) => {
    moved();
    if (!error) writeBody(outgoing, bytes, moved, offset + pieceBytes);
  });
}

/**
 * Stops what shows no progress. Looks four times per timeout, so it may be late by a quarter; in return a process that
 * is too busy to look is not taken for a silent peer.
 */
function watch(
  idleTimeoutMs: number,
  { progress, stop }: { progress: () => number | 'paused'; stop: (error: Error) => void },
): NodeJS.Timeout {
  let seen = progress();
  let quietLooks = 0;
  return setInterval(() => {
    const now = progress();
    quietLooks = now === seen && now !== 'paused' ? quietLooks + 1 : 0;
    seen = now;
    if (quietLooks >= 4) stop(new IdleTimeoutError(idleTimeoutMs));
  }, idleTimeoutMs / 4);
}

function flat(response: IncomingMessage): Record<string, string> {
  return Object.fromEntries(Object.entries(response.headers).map(([name, value]) => [name, [value].flat().join(', ')]));
}

function pathOf({ path, query = {} }: SdkRequest): string {
  const pairs = Object.entries(query).flatMap(([name, value]) =>
    [value].flat().map((one) => (one === null ? encode(name) : `${encode(name)}=${encode(one ?? '')}`)),
  );
  return pairs.length > 0 ? `${path}?${pairs.join('&')}` : path;
}

/** As Signature Version 4 encodes. */
export function encode(text: string): string {
  return encodeURIComponent(text).replace(/[!'()*]/g, (sign) => `%${sign.charCodeAt(0).toString(16).toUpperCase()}`);
}

function abortError(signal: AbortSignal | undefined): Error {
  return Object.assign(new Error('aborted', { cause: signal?.reason }), { name: 'AbortError' });
}
