import { once } from 'node:events';
import { createServer, request as httpRequest, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

/** What a request is, for a fault to decide on. */
export interface Passing {
  method: string;
  /** Path and query, as sent. */
  path: string;
}

export type ProxyFailure =
  /** 503 instead of passing the request on. */
  | 'unavailable'
  /** The connection is reset: while the request's body passes, or, where it has none, the answer's. */
  | 'reset'
  /** Nothing more passes, in either direction. */
  | 'hang'
  /** One bit of the body is flipped: of the request's, or, where it has none, of the answer's. */
  | 'corrupt'
  /** The connection is closed in the middle of the answer's body. */
  | 'truncate'
  /** The request is passed on and done, but the connection is reset instead of the answer. */
  | 'lose-answer'
  /** A redirect to `location`. */
  | 'redirect';

export interface ProxyFault {
  on: (request: Passing) => boolean;
  does: ProxyFailure;
  /** Bytes of the body that pass before it happens (reset, hang, corrupt, truncate). Default 0. */
  afterBytes?: number;
  /** How often it happens. Default 1. */
  times?: number;
  location?: string;
}

/** A proxy that breaks what passes through it, as networks do: before any server that speaks HTTP. */
export interface FaultyProxy {
  /** Where it listens: use it instead of the target's origin. */
  origin: string;
  /** Requests that came, oldest first. */
  requests: Passing[];
  add(fault: ProxyFault): void;
  /** Removes all faults. */
  clear(): void;
  stop(): Promise<void>;
}

/** Starts a proxy before `target`, an origin. */
export async function startFaultyProxy(target: string): Promise<FaultyProxy> {
  let faults: Required<ProxyFault>[] = [];
  const requests: Passing[] = [];
  const take = (passing: Passing) => {
    const fault = faults.find(({ on, times }) => times > 0 && on(passing));
    if (fault) fault.times -= 1;
    return fault;
  };
  const server = createServer((request, response) => {
    const passing = { method: request.method ?? '', path: request.url ?? '' };
    requests.push(passing);
    const fault = take(passing);
    if (fault?.does === 'unavailable' || fault?.does === 'redirect') {
      request.resume();
      response.writeHead(fault.does === 'redirect' ? 302 : 503, { location: fault.location }).end();
      return;
    }
    // A connection that breaks is what this is for.
    pass(target, request, response, fault).catch(() => response.destroy());
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    origin: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    requests,
    add: (fault) => void faults.push({ afterBytes: 0, times: 1, location: '', ...fault }),
    clear() {
      faults = [];
    },
    async stop() {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
}

async function pass(
  target: string,
  request: IncomingMessage,
  response: ServerResponse,
  fault: Required<ProxyFault> | undefined,
): Promise<void> {
  const upstream = httpRequest(target + request.url, {
    method: request.method,
    headers: request.headers,
    agent: false,
  });
  upstream.on('error', () => response.destroy());
  response.on('close', () => upstream.destroy());
  const answered = once(upstream, 'response');
  answered.catch(() => {});
  const hasBody = Number(request.headers['content-length'] ?? (request.headers['transfer-encoding'] ? 1 : 0)) > 0;
  let passed = 0;
  for await (const chunk of request) {
    if (hasBody && fault && (fault.does === 'reset' || fault.does === 'hang') && passed >= fault.afterBytes) {
      return breakOff(request, fault);
    }
    if (
      hasBody &&
      fault?.does === 'corrupt' &&
      passed <= fault.afterBytes &&
      passed + chunk.length > fault.afterBytes
    ) {
      chunk[fault.afterBytes - passed] ^= 1;
    }
    passed += chunk.length;
    if (!upstream.write(chunk)) await once(upstream, 'drain');
  }
  upstream.end();
  const [answer] = (await answered) as [IncomingMessage];
  if (fault?.does === 'lose-answer') {
    answer.resume();
    await once(answer, 'end');
    return void request.socket.resetAndDestroy();
  }
  if (fault && !hasBody && fault.afterBytes === 0 && fault.does !== 'corrupt') return breakOff(request, fault);
  response.writeHead(answer.statusCode ?? 0, answer.headers);
  passed = 0;
  for await (const chunk of answer as AsyncIterable<Buffer>) {
    const room = fault ? fault.afterBytes - passed : Number.POSITIVE_INFINITY;
    passed += chunk.length;
    if (!fault || hasBody || chunk.length <= room) {
      if (!response.write(chunk)) await once(response, 'drain');
    } else if (fault.does === 'corrupt') {
      chunk[room] = (chunk[room] ?? 0) ^ 1;
      response.write(chunk);
      fault.afterBytes = Number.POSITIVE_INFINITY;
    } else {
      if (room > 0) await new Promise((written) => response.write(chunk.subarray(0, room), written));
      return breakOff(request, fault);
    }
  }
  response.end();
}

function breakOff({ socket }: IncomingMessage, { does }: ProxyFault): void {
  if (does === 'reset') socket.resetAndDestroy();
  if (does === 'truncate') socket.end();
}
