import { type Static, type TObject, type TSchema, Type } from 'typebox';
import type { Tx } from '../db/database.ts';
import { pageParameters, pageRequest } from '../db/paging.ts';
import { type Api, operation, type Result } from '../http/operation.ts';
import { pageBody, pageSchema } from '../http/page.ts';
import { notFound } from '../lib/problem.ts';
import type { ObjectStore } from '../objects/store.ts';
import { idOf } from '../studies/schemas.ts';
import { idempotencyKey } from './idempotency.ts';
import { findJob, listJobFiles, listJobs } from './job-queries.ts';
import type { JobFeeds } from './progress.ts';
import { progressRoute } from './progress-route.ts';
import { cancel, ingestFaults, retry, type Started, startIngest, startTransfer, transferFaults } from './rules.ts';
import { ImageFile, ImageJob, StartIngest, StartTransfer } from './schemas.ts';
import { slideImageRoutes } from './slide-routes.ts';
import { fileStatuses, jobStatuses, jobTypes } from './states.ts';

export interface ImageRouteDeps {
  /** The service's own store, where the images of slides are. */
  store: ObjectStore;
  feeds: JobFeeds;
  /** SDS_IMAGE_JOBS_PER_CLIENT: jobs that wait or run, of one client. */
  imageJobsPerClient: number;
  /** SDS_DOWNLOAD_REDIRECT. */
  downloadRedirect: boolean;
}

const tag = 'image jobs';
const jobs = '/image/jobs';
const one = '/image/jobs/{jobId}';
const ofOne = { tag, resource: { type: 'imageJob', id: 'jobId' } } as const;

/** 2 s: what a client should wait before it asks again how far a job is. */
const POLL_S = '2';

/** The 202 of a job: as it is now, and where to ask for it. */
async function accepted(tx: Tx, jobId: string, studyId: string, replayed = false): Promise<Result> {
  const job = await findJob(tx, jobId);
  if (!job) throw notFound('image job');
  return {
    status: 202,
    body: job.record,
    headers: {
      Location: `/api/v1${jobs}/${jobId}`,
      'Retry-After': POLL_S,
      ...(replayed ? { 'Idempotency-Replayed': 'true' } : {}),
    },
    event: { resourceId: jobId, studyId },
  };
}

const acceptedResponse = {
  202: { description: 'The job, as it is now.', schema: ImageJob, headers: ['Location', 'Retry-After'] },
};

/** Image jobs (interface.md §4, decisions §5) and what they bring: images of slides. */
export function imageRoutes(api: Api, deps: ImageRouteDeps): void {
  const limit = deps.imageJobsPerClient;
  startRoute(api, 'ingest', 'Starts an ingest: copies objects of a cloud to slides', StartIngest, (tx, call) =>
    startIngest(tx, call, limit),
  );
  startRoute(api, 'transfer', 'Starts a transfer: copies images of slides to a cloud', StartTransfer, (tx, call) =>
    startTransfer(tx, call, limit),
  );
  readRoutes(api);
  actionRoutes(api, limit);
  progressRoute(api, deps.feeds);
  slideImageRoutes(api, deps);
}

function startRoute<B extends TObject>(
  api: Api,
  action: 'ingest' | 'transfer',
  summary: string,
  body: B,
  start: (tx: Tx, call: Parameters<typeof startIngest>[1] & { body: Static<B> }) => Promise<Started>,
): void {
  operation<`/image/jobs:${typeof action}`, TObject, TSchema>(api, {
    tag,
    resource: { type: 'imageJob' },
    method: 'POST',
    path: `${jobs}:${action}`,
    operationId: `start${action === 'ingest' ? 'Ingest' : 'Transfer'}`,
    summary,
    scope: 'Image:Write',
    event: 'IMAGE_JOB_CREATED',
    body,
    headers: {
      'Idempotency-Key': {
        description: 'Up to 255 characters. The same key with the same body gives the job that was started with it.',
      },
    },
    check: ({ headers, body }) => {
      const { fault } = idempotencyKey(headers['idempotency-key']);
      const faults = action === 'ingest' ? ingestFaults(body) : transferFaults(body);
      return fault ? [...faults, fault] : faults;
    },
    responses: {
      202: { ...acceptedResponse[202], headers: [...acceptedResponse[202].headers, 'Idempotency-Replayed'] },
    },
    problems: [422],
    write: async (tx, call) => {
      const { jobId, studyId, replayed } = await start(tx, call as unknown as Parameters<typeof start>[1]);
      return accepted(tx, jobId, studyId, replayed);
    },
  });
}

function readRoutes(api: Api): void {
  const read = { method: 'GET', scope: 'Image:Read', event: 'CLIENT_ACCESSED_STUDY' } as const;

  operation(api, {
    ...read,
    tag,
    resource: { type: 'imageJob' },
    path: jobs,
    operationId: 'listImageJobs',
    summary: 'Lists image jobs',
    query: Type.Object({
      studyId: Type.Optional({ ...idOf('study'), description: 'Only jobs of this study.' }),
      status: Type.Optional(Type.Enum([...jobStatuses], { description: 'Only jobs in this state.' })),
      type: Type.Optional(Type.Enum([...jobTypes], { description: 'Only jobs of this type.' })),
      ...pageParameters(['createdDate']),
    }),
    responses: { 200: { description: 'A page of jobs.', schema: pageSchema(ImageJob) } },
    read: async (db, { query, request }) => {
      const page = await listJobs(db, query as Record<string, string>, pageRequest(query, 'createdDate'));
      return { body: pageBody(page, request, api.publicUrl) };
    },
  });

  operation(api, {
    ...read,
    ...ofOne,
    path: one,
    operationId: 'getImageJob',
    summary: 'Reads an image job',
    responses: { 200: { description: 'The job.', schema: ImageJob } },
    problems: [404],
    read: async (db, { params }) => {
      const job = await findJob(db, params.jobId);
      if (!job) throw notFound('image job');
      return { body: job.record, event: { studyId: job.studyId } };
    },
  });

  operation(api, {
    ...read,
    ...ofOne,
    path: `${one}:listFiles`,
    operationId: 'listImageJobFiles',
    summary: 'Lists the files of an image job',
    query: Type.Object({
      status: Type.Optional(Type.Enum([...fileStatuses], { description: 'Only files in this state.' })),
      ...pageParameters(['name']),
    }),
    responses: { 200: { description: 'A page of files.', schema: pageSchema(ImageFile) } },
    problems: [404],
    read: async (db, { params, query, request }) => {
      const { status } = query as { status?: string };
      const found = await listJobFiles(db, params.jobId, status, pageRequest(query, 'name'));
      if (!found) throw notFound('image job');
      return { body: pageBody(found.page, request, api.publicUrl), event: { studyId: found.studyId } };
    },
  });
}

function actionRoutes(api: Api, limit: number): void {
  const action = {
    ...ofOne,
    method: 'POST',
    scope: 'Image:Write',
    body: Type.Object({}),
    bodyOptional: true,
    responses: acceptedResponse,
    problems: [404, 409],
  } as const;

  operation(api, {
    ...action,
    path: `${one}:retry`,
    operationId: 'retryImageJob',
    summary: 'Retries what a FAILED or PARTIAL job has not done',
    event: 'IMAGE_JOB_RETRIED',
    write: async (tx, { params, request }) =>
      accepted(tx, params.jobId, await retry(tx, params.jobId, request.id, limit)),
  });

  operation(api, {
    ...action,
    path: `${one}:cancel`,
    operationId: 'cancelImageJob',
    summary: 'Cancels a job that waits or runs',
    event: 'IMAGE_JOB_CANCELLED',
    write: async (tx, { params }) => accepted(tx, params.jobId, await cancel(tx, params.jobId, api.gate.record)),
  });
}
