import { Readable } from 'node:stream';
import type { FastifyReply } from 'fastify';

/**
 * Sends an answer without a body. Of one to HEAD the server would tell by itself that GET has a body of 0 bytes
 * (RFC 9110 §8.6); a stream has no length.
 */
export function sendNothing(reply: FastifyReply): FastifyReply {
  return reply.request.method === 'HEAD' ? reply.send(Readable.from([])) : reply.send();
}
