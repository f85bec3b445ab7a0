import type { Socket } from 'node:net';
import type { ConnectionError } from 'fastify';
import { newId } from '../lib/id.ts';
import { Problem } from '../lib/problem.ts';
import { problemBody } from './problems.ts';

/** What a parser of HTTP/1.1 says of the head of a request, as far as a client can do something about it. */
const DETAILS: Record<string, string> = {
  HPE_HEADER_OVERFLOW: 'The request line and the headers are too long.',
  ERR_HTTP_REQUEST_TIMEOUT: 'The request did not come to its end in time.',
};

/** Answers what is no request of HTTP, and so comes to no handler, by a problem like all others (interface.md §7). */
export function answerClientError(error: ConnectionError, socket: Socket): void {
  const { code } = error;
  // Somebody who has gone, or an answer that has begun: there is nothing to say and nobody to say it to.
  if (code === 'ECONNRESET' || !socket.writable || socket.bytesWritten > 0) {
    socket.destroy();
    return;
  }
  const { rawPacket } = error as unknown as { rawPacket?: Buffer };
  const [, url = '/'] = /^\S+ (\S+)/.exec(rawPacket?.toString('latin1') ?? '') ?? [];
  const problem = new Problem('bad-request', DETAILS[code ?? ''] ?? 'This is no request of HTTP/1.1.');
  const body = problemBody(problem, { url, id: newId() });
  socket.end(
    `HTTP/1.1 400 Bad Request\r\nContent-Type: application/problem+json\r\nContent-Length: ${Buffer.byteLength(body)}\r\nConnection: close\r\n\r\n${body}`,
  );
}
