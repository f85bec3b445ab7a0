import { createHash } from 'node:crypto';
import { Readable } from 'node:stream';
import type { FastifyReply, FastifyRequest } from 'fastify';
import { Problem } from '../lib/problem.ts';
import type { Result } from './operation.ts';
import { parseRange, type Range } from './range.ts';

/** What a download needs of an object store. */
export interface DownloadStore {
  head(key: string): Promise<{ sizeBytes: number; etag: string }>;
  read(
    key: string,
    options: { start?: number; end?: number; ifMatch?: string; signal?: AbortSignal },
  ): Promise<Readable>;
  presignRead(
    key: string,
    options: { expiresInS: number; fileName: string; contentType: string },
  ): Promise<string | null>;
}

export interface Download {
  /** Key in the store. */
  key: string;
  sizeBytes: number;
  /** SHA-256 of the bytes, hexadecimal: the strong entity tag. */
  sha256: string;
  mediaType: string;
  /** What the client shall call the file. */
  fileName: string;
  lastModified: Date;
}

/** A redirected client begins at once; 5 minutes leave room for slow ones and clocks that differ. */
const PRESIGNED_S = 300;

/**
 * The answer that hands out a stored object (RFC 9110 §13–14): whole or one range of it, or told that the client has it
 * already; with `redirect`, a 307 to the store itself where it can sign URLs. Throws 412 and 416, 503 while the store
 * cannot be reached, and 500 for an object that is gone from it.
 */
export async function download(
  request: FastifyRequest,
  store: DownloadStore,
  file: Download,
  options: { redirect: boolean },
): Promise<Result> {
  const etag = `"${file.sha256}"`;
  const lastModified = new Date(Math.floor(file.lastModified.getTime() / 1000) * 1000);
  const validators = {
    ETag: etag,
    'Last-Modified': lastModified.toUTCString(),
    // Whoever keeps it asks first: it may have been deleted, and is for this client alone.
    'Cache-Control': 'private, no-cache',
  };
  if (isUnmodified(request, etag, lastModified)) {
    return { status: 304, headers: validators };
  }
  const range = rangeOf(request, etag, lastModified, file.sizeBytes);
  const version = await find(store, file);
  const isHead = request.method === 'HEAD';
  if (options.redirect && !isHead) {
    const { key, fileName, mediaType } = file;
    const url = await store.presignRead(key, { expiresInS: PRESIGNED_S, fileName, contentType: mediaType });
    if (url) return { status: 307, headers: { Location: url, 'Cache-Control': 'no-store' } };
  }
  const { start, end } = range ?? { start: 0, end: file.sizeBytes - 1 };
  const headers = {
    ...validators,
    'Content-Type': file.mediaType,
    'Content-Length': String(end - start + 1),
    'Content-Disposition': attachment(file.fileName),
    'Accept-Ranges': 'bytes',
    'X-Content-Type-Options': 'nosniff',
    ...(range ? { 'Content-Range': `bytes ${start}-${end}/${file.sizeBytes}` } : {}),
  };
  const send = async (reply: FastifyReply) => {
    if (isHead) return reply.send(Readable.from([]));
    const part = { start, end, ifMatch: version };
    const isWhole = start === 0 && end === file.sizeBytes - 1;
    return reply.send(await open(reply, store, file.key, part, isWhole ? file.sha256 : null));
  };
  return { status: range ? 206 : 200, headers, send };
}

/** Makes sure that the object is there as it was stored, before anything is said of it; its version in the store. */
async function find(store: DownloadStore, file: Download): Promise<string> {
  const { sizeBytes, etag } = await store.head(file.key).catch((error: unknown) => {
    throw storeProblem(error);
  });
  if (sizeBytes !== file.sizeBytes) {
    throw new Problem('internal', 'The stored file is not the one that was written.', {
      cause: new Error(`${file.key} has ${sizeBytes} bytes in the store, ${file.sizeBytes} were written`),
    });
  }
  return etag;
}

/** What the store’s refusal is to a client: worth another try, or the operator’s to mend. */
function storeProblem(error: unknown): Problem {
  const { kind } = error as { kind?: string };
  if (kind === 'transient') {
    // 5 s: a store that throttles or restarts asks for about as much.
    return new Problem('unavailable', 'The object store cannot be reached; try again.', {
      headers: { 'Retry-After': '5' },
      cause: error,
    });
  }
  const detail =
    kind === 'not-found' ? 'The file is gone from the object store.' : 'The object store refuses the file.';
  return new Problem('internal', detail, { cause: error });
}

/** The bytes, read as fast as the client takes them; a client that goes away ends the reading. */
async function open(
  reply: FastifyReply,
  store: DownloadStore,
  key: string,
  part: Range & { ifMatch: string },
  sha256: string | null,
): Promise<Readable> {
  const gone = new AbortController();
  reply.raw.once('close', () => gone.abort());
  const source = await store.read(key, { ...part, signal: gone.signal }).catch((error: unknown) => {
    throw storeProblem(error);
  });
  return Readable.from(exactly(source, part.end - part.start + 1, sha256), { objectMode: false });
}

/**
 * Passes the bytes on, and breaks where they are not those that were announced: a client must not take a part for the
 * whole, nor what was damaged for what was stored. Hence the last byte goes only when all are known to be right.
 */
async function* exactly(source: Readable, bytes: number, sha256: string | null): AsyncGenerator<Buffer> {
  const hash = sha256 === null ? null : createHash('sha256');
  let left = bytes;
  let last: Buffer | null = null;
  for await (const chunk of source as AsyncIterable<Buffer>) {
    if (chunk.length === 0) continue;
    hash?.update(chunk);
    left -= chunk.length;
    if (left < 0) break;
    if (left === 0) last = chunk.subarray(-1);
    yield left === 0 ? chunk.subarray(0, -1) : chunk;
  }
  if (left !== 0) throw new Error(`the object store sent ${left < 0 ? 'more' : 'fewer'} than ${bytes} bytes`);
  if (hash && hash.digest('hex') !== sha256) throw new Error('the bytes from the object store are not those stored');
  if (last) yield last;
}

/** Whether the client has this version already (RFC 9110 §13.2.2); throws the 412 of an If-Match. */
function isUnmodified(request: FastifyRequest, etag: string, lastModified: Date): boolean {
  const { headers } = request;
  const ifMatch = headers['if-match'];
  if (ifMatch !== undefined && !namesTag(ifMatch, etag, false)) {
    throw new Problem('precondition-failed', 'The file is another one by now.');
  }
  // If-Modified-Since counts only without it.
  if (headers['if-none-match'] !== undefined) return hasVersion(request, etag);
  const since = Date.parse(headers['if-modified-since'] ?? '');
  return !Number.isNaN(since) && lastModified.getTime() <= since;
}

/** Whether the client’s If-None-Match names this version, so that 304 is the answer (RFC 9110 §13.1.2). */
export function hasVersion({ headers }: Pick<FastifyRequest, 'headers'>, etag: string): boolean {
  const ifNoneMatch = headers['if-none-match'];
  return ifNoneMatch !== undefined && namesTag(ifNoneMatch, etag, true);
}

/** Whether a list of entity tags names this strong one; `weakly` also by a weak tag. */
function namesTag(list: string, etag: string, weakly: boolean): boolean {
  if (list.trim() === '*') return true;
  const tags = list.match(/(?:W\/)?"[^"]*"/g) ?? [];
  return tags.some((tag) => (weakly ? tag.replace(/^W\//, '') : tag) === etag);
}

/** The range that is asked for and applies; null for the whole. */
function rangeOf(request: FastifyRequest, etag: string, lastModified: Date, sizeBytes: number): Range | null {
  const { range, 'if-range': ifRange } = request.headers;
  if (request.method !== 'GET' || range === undefined) return null;
  // A part of another version would be joined to what the client has (RFC 9110 §13.1.5).
  if (typeof ifRange === 'string' && ifRange !== etag && Date.parse(ifRange) !== lastModified.getTime()) return null;
  const parsed = parseRange(range, sizeBytes);
  if (parsed !== 'unsatisfiable') return parsed;
  throw new Problem('range-not-satisfiable', `The file has ${sizeBytes} bytes.`, {
    headers: { 'Content-Range': `bytes */${sizeBytes}` },
  });
}

/** Content-Disposition (RFC 6266): a name in ASCII for all, and the real one (RFC 8187) where it differs. */
export function attachment(fileName: string): string {
  const ascii = fileName.replace(/[^\x20-\x7e]|["\\%]/gu, '_');
  const encoded = encodeURIComponent(fileName).replace(
    /['()*]/g,
    (character) => `%${character.charCodeAt(0).toString(16).toUpperCase()}`,
  );
  return `attachment; filename="${ascii}"${ascii === fileName ? '' : `; filename*=UTF-8''${encoded}`}`;
}
