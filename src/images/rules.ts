import { isKey, prefixFaults } from '../credentials/object-keys.ts';
import type { Provider } from '../credentials/schemas.ts';
import type { Tx } from '../db/database.ts';
import type { Call } from '../http/operation.ts';
import { pointerTo } from '../lib/pointer.ts';
import { conflict, type Fault, notFound, Problem, rejected } from '../lib/problem.ts';
import { maxKeyBytes } from '../objects/store.ts';
import { findReferences } from '../studies/queries.ts';
import { cancelledReason, endEarly, type RecordEvent } from './end.ts';
import { bodyHash, idempotencyKey, keyHash } from './idempotency.ts';
import {
  addFiles,
  countActive,
  findByKey,
  findImagedSlides,
  findJobParents,
  holdCredential,
  holdStudy,
  insertJob,
  lockClient,
  lockJob,
  type NewFile,
  type NewJob,
  requestCancel,
  retryJob,
} from './job-queries.ts';
import { type JobStatus, transitions } from './states.ts';

/** 10 s: a job of a few slides is done by then. */
const RETRY_AFTER_S = '10';

export interface IngestBody {
  studyId: string;
  credentialId: string;
  prefix?: string;
  files?: { key: string; fileName?: string; subjectId?: string; organId?: string }[];
  overwrite?: boolean;
}

export interface TransferBody {
  studyId: string;
  credentialId: string;
  prefix?: string;
  slideIds?: string[];
}

type StartCall<Body> = Pick<Call<unknown, unknown, Body>, 'body' | 'caller' | 'faults' | 'request'>;

/** A job that was started, now or before under the same key. */
export interface Started {
  jobId: string;
  studyId: string;
  replayed: boolean;
}

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** What no schema tells of the members of a body; it may be anything yet. */
export function ingestFaults(body: unknown): Fault[] {
  if (!isObject(body)) return [];
  const { prefix, files } = body;
  if ((prefix === undefined) !== (files === undefined)) return [];
  const detail = 'exactly one of prefix and files is required';
  const both = [
    { pointer: '/prefix', detail },
    { pointer: '/files', detail },
  ];
  return prefix === undefined ? both.slice(0, 1) : both;
}

/** As {@link ingestFaults}. */
export function transferFaults(body: unknown): Fault[] {
  const slideIds = isObject(body) ? body.slideIds : null;
  if (!Array.isArray(slideIds)) return [];
  const seen = new Set<unknown>();
  return slideIds.flatMap((id, index) =>
    seen.size === seen.add(id).size ? [{ pointer: `/slideIds/${index}`, detail: 'is named twice' }] : [],
  );
}

/** Starts an ingest (decisions §5). */
export async function startIngest(tx: Tx, call: StartCall<IngestBody>, limit: number): Promise<Started> {
  const { prefix, files, overwrite = false } = call.body;
  return start(tx, call, { type: 'INGEST', prefix: prefix ?? null, overwrite }, limit, async (faults, provider) =>
    files ? filesOf(tx, call.body.studyId, files, provider, faults) : null,
  );
}

/** Starts a transfer (decisions §5). */
export async function startTransfer(tx: Tx, call: StartCall<TransferBody>, limit: number): Promise<Started> {
  const { prefix = '' } = call.body;
  return start(tx, call, { type: 'TRANSFER', prefix, overwrite: true }, limit, (faults) =>
    slidesOf(tx, call.body, prefix, faults),
  );
}

/**
 * What both have in common. The client's lock makes one job of many posts with one key, and keeps the limit, however
 * many come at once; whatever is thrown leaves neither job nor key behind.
 */
async function start(
  tx: Tx,
  { body, caller, faults, request }: StartCall<{ studyId: string; credentialId: string }>,
  job: Pick<NewJob, 'type' | 'prefix' | 'overwrite'>,
  limit: number,
  files: (faults: Fault[], provider: Provider | null) => Promise<NewFile[] | null>,
): Promise<Started> {
  const { clientId } = caller;
  const { studyId, credentialId } = body;
  const { key } = idempotencyKey(request.headers['idempotency-key']);
  await lockClient(tx, clientId);
  const hashes = key === null ? null : { keyHash: keyHash(key), bodyHash: bodyHash(body) };
  const before = hashes && (await findByKey(tx, clientId, job.type, hashes.keyHash));
  if (before && !before.bodyHash.equals(hashes.bodyHash)) {
    const detail = 'was used before with another body';
    throw rejected('validation-failed', [...faults, { header: 'Idempotency-Key', detail }]);
  }
  if (before) return { jobId: before.jobId, studyId, replayed: true };
  const isStudy = await holdStudy(tx, studyId);
  if (!isStudy) faults.push({ pointer: '/studyId', detail: 'is no study' });
  const provider = await holdCredential(tx, credentialId);
  if (!provider) faults.push({ pointer: '/credentialId', detail: 'is no credential' });
  else if (job.prefix !== null) faults.push(...prefixFaults(provider, job.prefix, uses[job.type]));
  const named = isStudy ? await files(faults, provider) : null;
  if (faults.length > 0) throw rejected('validation-failed', faults);
  await checkLimit(tx, clientId, limit);
  const jobId = await insertJob(tx, { ...job, studyId, credentialId, clientId, requestId: request.id, key: hashes });
  if (named) await addFiles(tx, jobId, named, true);
  return { jobId, studyId, replayed: false };
}

/** What a job does below its prefix. */
const uses = { INGEST: 'list', TRANSFER: 'write' } as const;

async function checkLimit(tx: Tx, clientId: string, limit: number): Promise<void> {
  if ((await countActive(tx, clientId)) < limit) return;
  const detail = `The client has ${limit} image jobs that wait or run; wait for one to end, or cancel it.`;
  throw new Problem('too-many-requests', detail, { headers: { 'Retry-After': RETRY_AFTER_S } });
}

/** The named files of an ingest, with faults for what cannot be. */
async function filesOf(
  tx: Tx,
  studyId: string,
  files: NonNullable<IngestBody['files']>,
  provider: Provider | null,
  faults: Fault[],
): Promise<NewFile[]> {
  const ids = (member: 'subjectId' | 'organId') => [...new Set(files.flatMap((file) => file[member] ?? []))];
  const references = { subjects: ids('subjectId'), organs: ids('organId'), slides: [] };
  const known = new Map<string, string | null>();
  if (references.subjects.length + references.organs.length > 0) {
    for (const { table, id, subject_id } of await findReferences(tx, studyId, references))
      known.set(`${table}/${id}`, subject_id);
  }
  const names = new Set<string>();
  return files.map(({ key, fileName, subjectId, organId }, index) => {
    const fault = (member: string, detail: string) =>
      faults.push({ pointer: pointerTo(`/files/${index}`, member), detail });
    const name = fileName ?? key.slice(key.lastIndexOf('/') + 1);
    if (Buffer.byteLength(key) > maxKeyBytes) fault('key', `must have at most ${maxKeyBytes} bytes`);
    else if (key.endsWith('/')) fault('key', 'names a folder');
    else if (provider && !isKey(provider, key)) fault('key', `is no key of the provider ${provider}`);
    if (names.has(name)) fault(fileName === undefined ? 'key' : 'fileName', 'has the FILE NAME of another file here');
    names.add(name);
    if (subjectId && !known.has(`subjects/${subjectId}`)) fault('subjectId', 'is no subject of this study');
    const organsSubject = organId ? known.get(`organs/${organId}`) : undefined;
    if (organId && organsSubject === undefined) fault('organId', 'is no organ of this study');
    if (organsSubject && subjectId && organsSubject !== subjectId) fault('organId', 'is an organ of another subject');
    return { name, key, subjectId: subjectId ?? organsSubject, organId };
  });
}

/** The named slides of a transfer as its files; null: all that have an image, which are listed when it runs. */
async function slidesOf(
  tx: Tx,
  { studyId, slideIds }: TransferBody,
  prefix: string,
  faults: Fault[],
): Promise<NewFile[] | null> {
  if (slideIds === undefined) {
    if ((await findImagedSlides(tx, studyId, { after: '', limit: 1 })).length === 0)
      faults.push({ pointer: '/studyId', detail: 'has no slide with an image' });
    return null;
  }
  const found = new Map(
    (await findImagedSlides(tx, studyId, { ids: slideIds })).map((slide) => [slide.slideId, slide]),
  );
  const without = slideIds.filter((id) => !found.has(id));
  const slides = new Set(
    (await findReferences(tx, studyId, { subjects: [], organs: [], slides: without })).map(({ id }) => id),
  );
  return slideIds.flatMap((slideId, index) => {
    const slide = found.get(slideId);
    if (slide) return [{ name: slide.fileName, key: prefix + slide.fileName, slideId, sizeBytes: slide.sizeBytes }];
    const detail = slides.has(slideId) ? 'has no image' : 'is no slide of this study';
    faults.push({ pointer: `/slideIds/${index}`, detail });
    return [];
  });
}

/** Throws the 409 of an action that the state of the job does not allow. */
function checkState(step: 'retry' | 'cancel', status: JobStatus): void {
  const from: readonly JobStatus[] = transitions[step].from;
  if (!from.includes(status))
    throw conflict(`The job is ${status}; only ${from.join(' and ')} ones can be ${PAST[step]}.`);
}

const PAST = { retry: 'retried', cancel: 'cancelled' };

/** `:retry` (decisions §5); returns the id of the job's study. */
export async function retry(tx: Tx, jobId: string, requestId: string, limit: number): Promise<string> {
  // The order of locks is the same everywhere: client, study, credential, job.
  const seen = await lockJobOf(tx, jobId);
  const { studyId } = seen;
  checkState('retry', seen.status);
  if (!seen.hasStudy) throw conflict('The study of the job was deleted.');
  if (!seen.hasCredential) throw conflict('The credential of the job was deleted.');
  await checkLimit(tx, seen.clientId, limit);
  await retryJob(tx, jobId, requestId);
  return studyId;
}

async function lockJobOf(tx: Tx, jobId: string) {
  const seen = await findJobParents(tx, jobId);
  if (!seen) throw notFound('image job');
  await lockClient(tx, seen.clientId);
  const hasStudy = await holdStudy(tx, seen.studyId);
  const hasCredential = (await holdCredential(tx, seen.credentialId)) !== null;
  const job = await lockJob(tx, jobId);
  if (!job) throw notFound('image job');
  return { ...job, hasStudy, hasCredential };
}

/**
 * `:cancel` (decisions §5); returns the id of the job's study. A worker that has the job hears of it; a job that none
 * has ends at once.
 */
export async function cancel(tx: Tx, jobId: string, record: RecordEvent): Promise<string> {
  const job = await lockJob(tx, jobId);
  if (!job) throw notFound('image job');
  checkState('cancel', job.status);
  await requestCancel(tx, jobId);
  if (!job.worked) await endEarly((work) => work(tx), jobId, 'CANCELLED', cancelledReason, record);
  return job.studyId;
}
