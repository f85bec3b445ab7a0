import { randomUUID } from 'node:crypto';
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { pipeline } from 'node:stream/promises';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { type Answer, perform, type Shelf } from './s3-answers.ts';
import { Bucket, type StoredObject, type Upload } from './s3-buckets.ts';
import { createFaults, type Fault, type Faults, type Operation, type PlacedFault } from './s3-faults.ts';
import { type Keys, S3Error, verifySignature } from './s3-signature.ts';
import { errorXml } from './s3-xml.ts';

export type { Fault, Operation, PlacedFault };

export interface S3ServerOptions extends Keys {
  /** Buckets that exist from the start. */
  buckets: string[];
  /** Default 0: any free one. */
  port?: number;
  /** Where bodies over 64 KiB are kept. Default: a temporary directory, removed by `close`. */
  dir?: string;
  /** Most entries of a page of a listing. Default 1,000, as S3 has it. */
  pageSize?: number;
}

export interface S3Stats {
  /** Requests so far, by what they asked for. */
  requests: Record<Operation, number>;
  /** Requests answered with 403 for their signature or keys. */
  refusedSignatures: number;
  /** Multipart uploads that are open now, in all buckets. */
  readonly openUploads: number;
  /** Connections accepted so far. */
  connections: number;
}

export interface S3Server {
  /** `http://127.0.0.1:port`, to be used with path-style addressing. */
  url: string;
  faults: Faults;
  stats: S3Stats;
  /** What a bucket holds now. */
  objects(bucket: string): Map<string, StoredObject>;
  /** The multipart uploads of a bucket that are open now, by id. */
  uploads(bucket: string): Map<string, Upload>;
  /** Bytes of an object. */
  body(bucket: string, key: string): Promise<Buffer>;
  close(): Promise<void>;
}

/**
 * A real S3 server over HTTP for tests and benchmarks. It verifies signatures, digests and checksums, knows both listings,
 * ranges, conditions, multipart uploads, presigned URLs and aws-chunked bodies, and fails on demand (`faults`).
 */
export async function startS3Server(options: S3ServerOptions): Promise<S3Server> {
  const dir = options.dir ?? (await mkdtemp(join(tmpdir(), 's3-')));
  await mkdir(dir, { recursive: true });
  const { pageSize = 1000 } = options;
  const buckets = new Map(options.buckets.map((name) => [name, new Bucket()]));
  const faults = createFaults();
  const operations: Operation[] = ['bucket', 'list', 'head', 'get', 'put', 'copy', 'delete'];
  const requests = Object.fromEntries(
    [...operations, 'create', 'part', 'complete', 'abort', 'uploads'].map((name) => [name, 0]),
  ) as Record<Operation, number>;
  const stats: S3Stats = {
    requests,
    refusedSignatures: 0,
    connections: 0,
    get openUploads() {
      return [...buckets.values()].reduce((sum, { uploads }) => sum + uploads.size, 0);
    },
  };
  const server = createServer((request, response) => {
    serve({ options, dir, pageSize, buckets, faults, stats }, request, response).catch(() => response.destroy());
  });
  server.keepAliveTimeout = 60_000;
  server.on('connection', () => stats.connections++);
  await new Promise<void>((resolve) => server.listen(options.port ?? 0, '127.0.0.1', resolve));
  const bucket = (name: string) => {
    const found = buckets.get(name);
    if (!found) throw new Error(`there is no bucket ${name}`);
    return found;
  };
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    faults,
    stats,
    objects: (name) => bucket(name).objects,
    uploads: (name) => bucket(name).uploads,
    body: (name, key) => {
      const { blob, sizeBytes } = bucket(name).object(key);
      return buffer(blob.read(0, sizeBytes - 1));
    },
    async close() {
      faults.clear();
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
      if (!options.dir) await rm(dir, { recursive: true, force: true });
    },
  };
}

interface Context extends Shelf {
  options: S3ServerOptions;
  faults: Faults;
  stats: S3Stats;
}

/** A fault cuts the connection. */
class Cut extends Error {}

async function serve(context: Context, request: IncomingMessage, response: ServerResponse): Promise<void> {
  const requestId = randomUUID();
  const address = locate(context, request);
  const { method = 'GET' } = request;
  const query = new URLSearchParams(request.url?.split(/\?(.*)/s)[1] ?? '');
  const operation = classify(method, address.key, query, request);
  context.stats.requests[operation]++;
  let fault: PlacedFault | null = null;
  let answer: Answer;
  try {
    const signature = verifySignature(request, context.options);
    fault = context.faults.take(operation, address.key);
    await failAtOnce(fault, request);
    const receives = ['put', 'part'].includes(operation);
    // Not destroyed by who stops reading: the answer goes over the same connection.
    const body: AsyncIterable<Buffer> = request.iterator({ destroyOnReturn: false });
    const arriving = receives ? spoil(body, fault, request) : body;
    answer = await perform(context, operation, { request, method, ...address, query, signature, arriving });
    if (fault?.fault.does === 'lose-answer') throw cut(request, 'reset');
  } catch (error) {
    if (error instanceof Cut || request.socket.destroyed) return void request.socket.destroy();
    request.resume(); // The rest of a body that nobody wants, so that the connection stays usable.
    const known = error instanceof S3Error ? error : new S3Error(500, 'InternalError', String(error));
    if (['SignatureDoesNotMatch', 'InvalidAccessKeyId', 'InvalidToken'].includes(known.code))
      context.stats.refusedSignatures++;
    const body = known.status === 304 ? '' : errorXml(known, request.url ?? '', requestId);
    answer = { status: known.status, headers: { 'content-type': 'application/xml' }, body };
  }
  const body = answer.body ?? '';
  const headers = { 'x-amz-request-id': requestId, ...answer.headers };
  if (typeof body === 'string') {
    const empty = method === 'HEAD';
    response.writeHead(answer.status, { 'content-length': Buffer.byteLength(body), ...headers });
    response.end(empty ? '' : body);
    return;
  }
  response.writeHead(answer.status, headers);
  await pipeline(spoil(body, fault, request), response);
}

/** Bucket and key of the request: `/bucket/key`, or `/key` of the host `bucket.anything`. */
function locate(context: Context, request: IncomingMessage): { bucketName: string; key: string } {
  const path = decodeURIComponent((request.url ?? '/').split('?')[0] ?? '').slice(1);
  const [host = '', ...domain] = (request.headers.host ?? '').split('.');
  if (domain.length > 0 && context.buckets.has(host)) return { bucketName: host, key: path };
  const [bucketName = '', key = ''] = path.split(/\/(.*)/s);
  return { bucketName, key };
}

function classify(method: string, key: string, query: URLSearchParams, request: IncomingMessage): Operation {
  if (key === '') {
    if (method === 'POST') return 'delete';
    if (method !== 'GET' || query.has('location')) return 'bucket';
    return query.has('uploads') ? 'uploads' : 'list';
  }
  if (query.has('uploads')) return 'create';
  if (query.has('uploadId')) {
    return ({ PUT: 'part', POST: 'complete', DELETE: 'abort', GET: 'uploads' } as const)[method] ?? 'bucket';
  }
  if (request.headers['x-amz-copy-source']) return 'copy';
  return ({ GET: 'get', HEAD: 'head', PUT: 'put', DELETE: 'delete' } as const)[method] ?? 'bucket';
}

/** Faults that happen before anything is done. */
async function failAtOnce(fault: PlacedFault | null, request: IncomingMessage): Promise<void> {
  if (!fault) return;
  const { does, afterBytes = 0 } = fault.fault;
  if (does === 'slow-down') throw new S3Error(503, 'SlowDown', 'Please reduce your request rate.');
  if (does === 'internal') throw new S3Error(500, 'InternalError', 'We encountered an internal error.');
  if (does === 'denied') throw new S3Error(403, 'AccessDenied', 'Access Denied');
  if (afterBytes > 0) return;
  if (does === 'reset') throw cut(request, 'reset');
  if (does === 'hang') await released(fault, request);
}

/** Lets `afterBytes` of a body pass and then does to it what the fault says. */
async function* spoil(
  body: AsyncIterable<Buffer>,
  fault: PlacedFault | null,
  request: IncomingMessage,
): AsyncGenerator<Buffer> {
  const { does, afterBytes = 0 } = fault?.fault ?? {};
  if (!fault || (does !== 'corrupt' && does !== 'truncate' && afterBytes === 0)) return yield* body;
  let passed = 0;
  let done = false;
  for await (const chunk of body) {
    const at = afterBytes - passed;
    passed += chunk.length;
    if (done || at >= chunk.length) {
      yield chunk;
      continue;
    }
    done = true;
    if (does === 'corrupt') {
      const spoiled = Buffer.from(chunk);
      spoiled[at] = (spoiled[at] ?? 0) ^ 1;
      yield spoiled;
      continue;
    }
    yield chunk.subarray(0, at);
    if (does === 'truncate') throw cut(request, 'end');
    if (does === 'reset') throw cut(request, 'reset');
    if (does === 'hang') await released(fault, request);
    yield chunk.subarray(at);
  }
}

function cut(request: IncomingMessage, how: 'reset' | 'end'): Cut {
  if (how === 'reset') request.socket.resetAndDestroy();
  return new Cut();
}

/** Resolves when the fault is removed; throws when the client gives up before. */
async function released(fault: PlacedFault, request: IncomingMessage): Promise<void> {
  const gone = new Promise<'gone'>((resolve) => request.socket.once('close', () => resolve('gone')));
  if ((await Promise.race([fault.removed, gone])) === 'gone') throw new Cut();
}

/** As a process of its own: prints its URL and serves until it is killed. */
if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { values } = parseArgs({
    options: {
      port: { type: 'string', default: '0' },
      dir: { type: 'string' },
      bucket: { type: 'string', multiple: true, default: ['bucket'] },
      'access-key-id': { type: 'string', default: 'test-key-id' },
      'secret-access-key': { type: 'string', default: 'test-secret-access-key' },
    },
  });
  const { url } = await startS3Server({
    accessKeyId: values['access-key-id'],
    secretAccessKey: values['secret-access-key'],
    buckets: values.bucket,
    port: Number(values.port),
    ...(values.dir ? { dir: values.dir } : {}),
  });
  process.stdout.write(`${url}\n`);
}
