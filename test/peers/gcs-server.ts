import { createHash, type KeyObject } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { buffer } from 'node:stream/consumers';
import { jwtVerify } from 'jose';
import { type FaultyProxy, startFaultyProxy } from './faulty-proxy.ts';

/** A service account that may use the server. */
export interface KnownAccount {
  clientEmail: string;
  publicKey: KeyObject;
}

interface StoredObject {
  bytes: Buffer;
  generation: number;
  updated: Date;
  contentType: string;
}

/** A running server of Google Cloud Storage's JSON API, as far as an object store uses it, with tokens at `/token`. */
export interface GcsServer {
  /** Its origin, which is that of the proxy. */
  endpoint: string;
  /** Breaks what passes: faults are placed here. */
  proxy: FaultyProxy;
  buckets: Map<string, Map<string, StoredObject>>;
  /** Resumable uploads that are neither complete nor cancelled. */
  readonly openUploads: number;
  /** Makes every token given out so far worthless. */
  revokeTokens(): void;
  /** Objects in a page, at most what the client asks for. Default 1,000. */
  pageSize: number;
  /** Bytes of a request of an upload that are kept, in multiples of 256 KiB, unless it is the last. Default: all. */
  keepsOf: (bytes: number) => number;
  stop(): Promise<void>;
}

interface Upload {
  bucket: string;
  name: string;
  contentType: string;
  arrived: Buffer;
  done?: StoredObject;
}

/** Answers with a status. */
class Refusal extends Error {
  readonly status: number;

  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}

/** 256 KiB: every request of an upload but the last carries a multiple. */
const granule = 256 * 1024;

/** Starts the server on a free port with these buckets, empty, for one account. */
export async function startGcsServer(account: KnownAccount, bucketNames: string[]): Promise<GcsServer> {
  const buckets = new Map(bucketNames.map((name) => [name, new Map<string, StoredObject>()]));
  const uploads = new Map<string, Upload>();
  let tokens = new Set<string>();
  let counter = 1_700_000_000_000_000;

  const server = createServer((request, response) => {
    handle(request, response).catch((error: unknown) => {
      if (response.headersSent) return void response.destroy();
      const code = error instanceof Refusal ? error.status : 500;
      json(response, code, { error: { code, message: String(error) } });
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const proxy = await startFaultyProxy(`http://127.0.0.1:${(server.address() as AddressInfo).port}`);

  async function handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const url = new URL(request.url ?? '', proxy.origin);
    if (url.pathname === '/token') return giveToken(request, response);
    const uploadId = url.searchParams.get('upload_id');
    if (uploadId !== null) return continueUpload(request, response, uploadId);
    const bearer = /^Bearer (.+)$/.exec(request.headers.authorization ?? '')?.[1];
    if (bearer === undefined || !tokens.has(bearer)) throw new Refusal(401, 'Invalid Credentials');
    const [, upload, bucketName = '', rest = ''] =
      /^(\/upload)?\/storage\/v1\/b\/([^/]+)\/o(?:\/([^/]+))?$/.exec(url.pathname) ?? [];
    const bucket = buckets.get(decodeURIComponent(bucketName));
    if (!bucket) throw new Refusal(404, 'The specified bucket does not exist.');
    const key = decodeURIComponent(rest);
    if (upload) return startUpload(request, response, url, bucketName);
    if (rest === '') return list(response, url, bucket);
    const object = bucket.get(key);
    if (!object) throw new Refusal(404, `No such object: ${key}`);
    const wanted = url.searchParams.get('ifGenerationMatch');
    if (wanted !== null && !/^\d+$/.test(wanted)) throw new Refusal(400, 'Invalid generation');
    if (wanted !== null && Number(wanted) !== object.generation) throw new Refusal(412, 'conditionNotMet');
    if (request.method === 'DELETE') {
      bucket.delete(key);
      response.writeHead(204).end();
    } else if (url.searchParams.get('alt') === 'media') {
      download(request, response, object);
    } else {
      json(response, 200, resource(key, object));
    }
  }

  async function giveToken(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const form = new URLSearchParams((await buffer(request)).toString());
    try {
      if (form.get('grant_type') !== 'urn:ietf:params:oauth:grant-type:jwt-bearer') throw new Error('grant_type');
      const { payload } = await jwtVerify(form.get('assertion') ?? '', account.publicKey, {
        algorithms: ['RS256'],
        issuer: account.clientEmail,
        audience: `${proxy.origin}/token`,
        requiredClaims: ['iat', 'exp', 'scope'],
      });
      if ((payload.exp ?? 0) - (payload.iat ?? 0) > 3600) throw new Error('longer than an hour');
    } catch (error) {
      return json(response, 400, { error: 'invalid_grant', error_description: String(error) });
    }
    const token = `token-${counter++}`;
    tokens.add(token);
    json(response, 200, { access_token: token, token_type: 'Bearer', expires_in: 3599 });
  }

  function list(response: ServerResponse, url: URL, bucket: Map<string, StoredObject>): void {
    const prefix = url.searchParams.get('prefix') ?? '';
    const after = Buffer.from(url.searchParams.get('pageToken') ?? '', 'base64url');
    const limit = Math.min(Number(url.searchParams.get('maxResults') ?? 1000), gcs.pageSize);
    const keys = [...bucket.keys()]
      .filter((key) => key.startsWith(prefix) && Buffer.from(key).compare(after) > 0)
      .sort((a, b) => Buffer.from(a).compare(Buffer.from(b)));
    const items = keys.slice(0, limit).map((key) => resource(key, bucket.get(key) as StoredObject));
    const nextPageToken = keys.length > limit ? Buffer.from(keys[limit - 1] ?? '').toString('base64url') : undefined;
    json(response, 200, { ...(items.length > 0 && { items }), nextPageToken });
  }

  function download(
    request: IncomingMessage,
    response: ServerResponse,
    { bytes, contentType, generation }: StoredObject,
  ) {
    const [, first, last] = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? '') ?? [];
    const start = Number(first ?? 0);
    if (first !== undefined && start >= bytes.length) throw new Refusal(416, 'Requested range not satisfiable');
    const end = last ? Math.min(Number(last), bytes.length - 1) : bytes.length - 1;
    response.writeHead(first === undefined ? 200 : 206, {
      'content-type': contentType,
      'content-length': end - start + 1,
      'x-goog-generation': generation,
      'x-goog-stored-content-length': bytes.length,
      'x-goog-hash': `crc32c=AAAAAA==,md5=${md5(bytes)}`,
      ...(first !== undefined && { 'content-range': `bytes ${start}-${end}/${bytes.length}` }),
    });
    response.end(bytes.subarray(start, end + 1));
  }

  async function startUpload(request: IncomingMessage, response: ServerResponse, url: URL, bucket: string) {
    const type = url.searchParams.get('uploadType');
    const body = await buffer(request);
    if (type === 'media') {
      const contentType = request.headers['content-type'] ?? '';
      const upload = { bucket, name: url.searchParams.get('name') ?? '', contentType, arrived: body };
      return json(response, 200, resource(upload.name, store(upload)));
    }
    if (type !== 'resumable') throw new Refusal(400, 'uploadType');
    const { name, contentType = 'application/octet-stream' } = JSON.parse(body.toString());
    const id = `upload-${counter++}`;
    uploads.set(id, { bucket, name, contentType, arrived: Buffer.alloc(0) });
    url.searchParams.set('upload_id', id);
    response.writeHead(200, { location: url.href }).end();
  }

  async function continueUpload(request: IncomingMessage, response: ServerResponse, id: string): Promise<void> {
    const upload = uploads.get(id);
    if (!upload) throw new Refusal(404, 'no such upload');
    if (request.method === 'DELETE') {
      uploads.delete(id);
      return void response.writeHead(499).end();
    }
    const body = await buffer(request);
    const [, range = '', total = ''] =
      /^bytes (\*|\d+-\d+)\/(\*|\d+)$/.exec(request.headers['content-range'] ?? '') ?? [];
    if (total === '') throw new Refusal(400, 'Content-Range');
    if (!upload.done && range !== '*') {
      const [start = 0, end = 0] = range.split('-').map(Number);
      if (end - start + 1 !== body.length) throw new Refusal(400, 'Content-Range does not fit the body');
      if (start !== upload.arrived.length) throw new Refusal(503, 'a gap in the upload');
      if (total === '*' && body.length % granule !== 0) throw new Refusal(400, 'not a multiple of 256 KiB');
      const kept = total === '*' ? Math.floor(gcs.keepsOf(body.length) / granule) * granule : body.length;
      upload.arrived = Buffer.concat([upload.arrived, body.subarray(0, kept)]);
    }
    if (!upload.done && total !== '*' && upload.arrived.length === Number(total)) upload.done = store(upload);
    if (upload.done) return json(response, 200, resource(upload.name, upload.done));
    const arrived = upload.arrived.length;
    response.writeHead(308, arrived === 0 ? {} : { range: `bytes=0-${arrived - 1}` }).end();
  }

  function store({ bucket, name, contentType, arrived }: Upload): StoredObject {
    const object = { bytes: arrived, generation: counter++, updated: new Date(), contentType };
    buckets.get(decodeURIComponent(bucket))?.set(name, object);
    return object;
  }

  const gcs: GcsServer = {
    endpoint: proxy.origin,
    proxy,
    buckets,
    get openUploads() {
      return [...uploads.values()].filter(({ done }) => !done).length;
    },
    revokeTokens() {
      tokens = new Set();
    },
    pageSize: 1000,
    keepsOf: (bytes) => bytes,
    async stop() {
      await proxy.stop();
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
  return gcs;
}

const md5 = (bytes: Buffer) => createHash('md5').update(bytes).digest('base64');

function resource(name: string, { bytes, generation, updated, contentType }: StoredObject) {
  const size = String(bytes.length);
  return { name, size, generation: String(generation), updated, contentType, md5Hash: md5(bytes) };
}

function json(response: ServerResponse, status: number, body: unknown): void {
  response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
}
