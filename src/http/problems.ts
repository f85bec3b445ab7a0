import type { FastifyError, FastifyReply, FastifyRequest } from 'fastify';
import { isUnavailable } from '../db/database.ts';
import { Problem, problemKinds } from '../lib/problem.ts';
import type { EventName, Gate } from './gate.ts';
import { draftEvent } from './operation.ts';

/** The problem that an error stands for: what the framework and the database throw gets its place in interface.md §7. */
export function problemOf(error: unknown): Problem {
  if (error instanceof Problem) return error;
  const { code, statusCode, message } = error as FastifyError;
  if (code === 'FST_ERR_CTP_BODY_TOO_LARGE') {
    return new Problem('payload-too-large', 'The body is larger than this service accepts (SDS_BODY_LIMIT).');
  }
  if (code === 'FST_ERR_CTP_INVALID_MEDIA_TYPE') {
    return new Problem('unsupported-media-type', 'Send the body as application/json.');
  }
  // Before what the code alone tells: a client's connection breaks with the same ones as the database's.
  if (statusCode !== undefined && statusCode >= 400 && statusCode < 500) {
    const detail = code === 'ECONNRESET' ? 'The body broke off.' : message;
    return new Problem('bad-request', detail.endsWith('.') ? detail : `${detail}.`);
  }
  if (isUnavailable(error)) {
    // 2 s: as long as a restart of the embedded database takes.
    return new Problem('unavailable', 'The database cannot be reached; try again.', {
      headers: { 'Retry-After': '2' },
    });
  }
  return new Problem('internal', 'The server met an error; its log tells more under this requestId.', { cause: error });
}

/** RFC 9457 Problem Details, with the members of interface.md §7 and decisions §8. */
export function problemBody(problem: Problem, request: { url: string; id: string }): string {
  const { status, title } = problemKinds[problem.kind];
  return JSON.stringify({
    type: `/errors/${problem.kind}`,
    title,
    status,
    detail: problem.message,
    instance: request.url,
    requestId: request.id,
    ...(problem.faults.length > 0 ? { errors: problem.faults } : {}),
  });
}

/** Statuses whose event interface.md §6 names; every other rejection has a name of its own (decisions §7). */
const FAILURE_STATUSES = new Set([400, 403, 404, 422]);

function failureEvent(status: number): EventName {
  return FAILURE_STATUSES.has(status) ? 'CLIENT_ACCESSED_STUDY_FAILURE' : 'CLIENT_REQUEST_REJECTED';
}

/** The one renderer of errors. The event of an authenticated call is on record before the answer leaves. */
export function errorHandler(gate: Gate, db: Parameters<Gate['record']>[0]) {
  return async (error: unknown, request: FastifyRequest, reply: FastifyReply): Promise<FastifyReply> => {
    let problem = problemOf(error);
    if (request.caller && !request.recorded) {
      const event = draftEvent(request, failureEvent(problem.status), problem.status);
      try {
        // A database that is out of reach would keep the answer waiting as well.
        if (problem.status === 503 && isUnavailable(error)) gate.recordSoon(event);
        else await gate.record(db, event);
      } catch (fault) {
        // Without the event there is no other answer than that the service is not able to work.
        request.log.error({ err: fault }, 'the event of a rejected call could not be recorded');
        if (problem.status < 500) problem = problemOf(fault);
      }
    }
    if (problem.status >= 500) request.log.error({ err: error }, problem.message);
    // The framework would close the connection under a client that is still sending, which then sees a broken pipe and
    // not this answer. Kept open, the rest is read and thrown away.
    reply.removeHeader('connection');
    return (
      reply
        .code(problem.status)
        .headers(problem.headers)
        .header('content-type', 'application/problem+json')
        // Set here as well: an answer to a URL that cannot be decoded passes no hook.
        .header('x-request-id', request.id)
        .send(problemBody(problem, request))
    );
  };
}

const EXPLANATIONS: Record<string, string> = {
  'bad-request':
    'The request is malformed: not JSON, a missing or unknown member, a wrong type, a parameter out of range. errors lists every fault with its place.',
  unauthorized: 'The token is missing, expired or not valid. Get a new one from /oauth/token.',
  forbidden:
    'The token is valid, but the client lacks the scope that the detail names. An administrator assigns scopes.',
  'not-found': 'There is no such path or record, or it has been deleted.',
  'method-not-allowed': 'The path does not have this method. The header Allow lists those it has.',
  conflict:
    'The request conflicts with what is there: a name is taken, a job exists already, a state does not allow it.',
  gone: 'This version of the API is retired. Move to a current one.',
  'precondition-failed':
    'If-Match named another version than the record has by now. Read it again and repeat the change.',
  'payload-too-large': 'The body is larger than the server accepts. Send fewer items at once.',
  'unsupported-media-type': 'Bodies are JSON: send Content-Type: application/json.',
  'range-not-satisfiable': 'The Range lies outside of the file.',
  'validation-failed':
    'The request is well-formed, but a value breaks a rule. errors lists every fault with its place.',
  'too-many-requests': 'A limit is reached. The header Retry-After tells when to try again.',
  internal: 'The server met an error. Its log has the cause under the requestId of the answer.',
  unavailable:
    'The service cannot reach its database or store for now. The header Retry-After tells when to try again.',
};

/** The page behind a problem's `type`; null where there is no such kind. */
export function problemPage(name: string): string | null {
  const kind = Object.hasOwn(problemKinds, name) ? problemKinds[name as keyof typeof problemKinds] : null;
  if (!kind) return null;
  return `<!doctype html><html lang="en"><meta charset="utf-8"><title>${kind.title}</title><h1>${kind.status} ${kind.title}</h1><p>${EXPLANATIONS[name]}</p></html>`;
}
