import { type Agent, request as httpRequest, type IncomingMessage, type OutgoingHttpHeaders } from 'node:http';
import { type Agent as HttpsAgent, request as httpsRequest } from 'node:https';
import { Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import type { CloudFailure } from './cloud-errors.ts';
import { egressRefusal } from './egress.ts';

export interface CloudRequest {
  method: 'GET' | 'POST' | 'PUT' | 'DELETE';
  url: URL;
  headers?: OutgoingHttpHeaders;
  /** Bytes of the body, sent piece by piece. */
  body?: Iterable<Buffer>;
  signal: AbortSignal;
}

/** What came back: the status, and the body still to be read. Redirects are not followed. */
export type CloudResponse = IncomingMessage & { statusCode: number };

/** 32 MiB: a page of 1,000 names of 1,024 characters, escaped, is below 8 MiB. */
const maxTextBytes = 32 * 1024 * 1024;

/**
 * One HTTP request through guarded agents, without a proxy, cookies or redirects. Resolves when the headers are there;
 * rejects with the error of the connection. An abort of `signal` ends the request, and the body while it is read.
 */
export function sendRequest(
  agents: { httpAgent: Agent; httpsAgent: HttpsAgent },
  { method, url, headers = {}, body, signal }: CloudRequest,
): Promise<CloudResponse> {
  return new Promise((resolve, reject) => {
    const options = { method, headers, signal };
    const request =
      url.protocol === 'https:'
        ? httpsRequest(url, { ...options, agent: agents.httpsAgent })
        : httpRequest(url, { ...options, agent: agents.httpAgent });
    request.once('error', reject);
    request.once('response', (response) => resolve(response as CloudResponse));
    if (body) Readable.from(body, { objectMode: false }).pipe(request);
    else request.end();
  });
}

/** The whole body of a short answer; rejects where it is longer than any that is expected. */
export async function readText(response: IncomingMessage, progress: () => void): Promise<string> {
  let received = 0;
  response.on('data', (chunk: Buffer) => {
    progress();
    received += chunk.length;
    if (received > maxTextBytes) response.destroy(new Error('The answer is too long.'));
  });
  return (await buffer(response)).toString('utf8');
}

/** Why a connection failed. */
export function connectionFailure(error: unknown): CloudFailure {
  const refusal = egressRefusal(error);
  if (refusal) return { code: refusal.code, detail: refusal.message };
  return { code: error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : undefined };
}
