import type { IncomingHttpHeaders } from 'node:http';
import { type Api, operation } from '../http/operation.ts';
import { eventStream } from '../http/sse.ts';
import { type Fault, notFound } from '../lib/problem.ts';
import { findJob } from './job-queries.ts';
import type { JobFeeds } from './progress.ts';
import { readMoment } from './progress-queries.ts';
import { ProgressEvents } from './schemas.ts';

/** decisions §5. */
const RETRY_MS = 2_000;
const KEEP_ALIVE_MS = 15_000;
/** 30 s: a client that has taken nothing for so long is gone or stuck; if it is not, it comes back and resumes. */
const STALL_MS = 30_000;
/** 5 s: so soon an expired token, a disabled client or a lost scope ends a stream (decisions §6). */
const CHECK_MS = 5_000;

const SCOPE = 'Image:Read';

/** The event that the client saw last, null without one; a fault where it cannot be one. */
function lastEventId(headers: IncomingHttpHeaders): { last: number | null; fault: Fault | null } {
  const value = String(headers['last-event-id'] ?? '').trim();
  if (value === '') return { last: null, fault: null };
  if (/^\d{1,15}$/.test(value)) return { last: Number(value), fault: null };
  return { last: null, fault: { header: 'Last-Event-ID', detail: 'is not an id of an event of this stream' } };
}

/** `:streamProgress` (interface.md §4, decisions §5). */
export function progressRoute(api: Api, feeds: JobFeeds): void {
  // Otherwise a stream would keep the server from stopping.
  api.app.addHook('preClose', async () => feeds.close());

  operation(api, {
    tag: 'image jobs',
    resource: { type: 'imageJob', id: 'jobId' },
    method: 'GET',
    path: '/image/jobs/{jobId}:streamProgress',
    operationId: 'streamImageJobProgress',
    summary: 'Streams the progress of an image job as Server-Sent Events',
    scope: SCOPE,
    event: 'CLIENT_ACCESSED_STUDY',
    headers: { 'Last-Event-ID': { description: 'Id of the last event that was received: resumes after it.' } },
    check: ({ headers }) => {
      const { fault } = lastEventId(headers);
      return fault ? [fault] : [];
    },
    responses: {
      200: { description: 'Events until the job ends.', schema: ProgressEvents, mediaType: 'text/event-stream' },
      204: { description: 'Last-Event-ID is that of the job’s end: nothing more will come.', schema: null },
    },
    problems: [404],
    read: async (db, { params, request, caller }) => {
      const { last } = lastEventId(request.headers);
      const job = await findJob(db, params.jobId);
      const moment = job && (await readMoment(db, params.jobId, null, 0));
      if (!job || !moment) throw notFound('image job');
      const event = { studyId: job.studyId };
      if (moment.ended && last === moment.eventNo) return { status: 204, event };
      // An id that this job has not given yet belongs to another one.
      const after = last !== null && last <= moment.eventNo ? last : null;
      const over = new AbortController();
      const stream = eventStream((signal) => feeds.follow(params.jobId, after, signal), {
        retryMs: RETRY_MS,
        keepAliveMs: KEEP_ALIVE_MS,
        stallMs: STALL_MS,
        signal: over.signal,
      });
      const send: typeof stream.send = (reply) => {
        const end = () => over.abort();
        const check = async () => {
          const now = await api.gate.authenticate(request.headers.authorization);
          if (!now.scopes.has(SCOPE)) end();
        };
        const checks = setInterval(() => void check().catch(end), CHECK_MS);
        // The exact moment, unless it lies beyond what a timer can wait for.
        const expiry = setTimeout(end, Math.min(caller.expiresAt - Date.now(), 2 ** 31 - 1));
        feeds.closing.addEventListener('abort', end, { once: true });
        if (feeds.closing.aborted) end();
        reply.raw.once('close', () => {
          clearInterval(checks);
          clearTimeout(expiry);
          feeds.closing.removeEventListener('abort', end);
        });
        return stream.send?.(reply);
      };
      return { ...stream, send, event };
    },
  });
}
