import { createHash, createHmac, timingSafeEqual } from 'node:crypto';
import type { IncomingMessage } from 'node:http';

/** Keys that the server accepts, and the region its signatures must name (default: any). */
export interface Keys {
  accessKeyId: string;
  secretAccessKey: string;
  sessionToken?: string;
  region?: string;
}

/** What chunk signatures of a streamed body are chained to. */
export interface Signature {
  signature: string;
  signingKey: Buffer;
  date: string;
  scope: string;
  payloadHash: string;
}

/** An error as S3 words it. */
export class S3Error extends Error {
  readonly status: number;
  readonly code: string;

  constructor(status: number, code: string, message = code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** 15 minutes: how far a client's clock may be off. */
const maxSkewMs = 15 * 60_000;

/** Verifies AWS Signature Version 4 of a request, in its header or its query (presigned URL); throws what S3 answers. */
export function verifySignature(request: IncomingMessage, keys: Keys, now = Date.now()): Signature {
  const [path = '', query = ''] = (request.url ?? '').split(/\?(.*)/s);
  const parameters = new URLSearchParams(query);
  const presigned = parameters.has('X-Amz-Signature');
  const claim = presigned ? fromQuery(parameters, now) : fromHeader(request);
  const [accessKeyId, day, region, service, terminator] = claim.credential.split('/');
  if (accessKeyId !== keys.accessKeyId) throw new S3Error(403, 'InvalidAccessKeyId');
  if (service !== 's3' || terminator !== 'aws4_request' || !day || !region || !claim.date.startsWith(day))
    throw new S3Error(400, 'AuthorizationHeaderMalformed');
  if (keys.region && region !== keys.region)
    throw new S3Error(
      400,
      'AuthorizationHeaderMalformed',
      `the region '${region}' is wrong; expecting '${keys.region}'`,
    );
  if (claim.token !== keys.sessionToken) throw new S3Error(400, 'InvalidToken');
  if (!presigned && Math.abs(parseDate(claim.date) - now) > maxSkewMs) throw new S3Error(403, 'RequestTimeTooSkewed');
  for (const name of Object.keys(request.headers))
    if ((name === 'host' || name.startsWith('x-amz-')) && !claim.signedHeaders.includes(name))
      throw new S3Error(403, 'AccessDenied', `the header ${name} is not signed`);

  const scope = [day, region, service, terminator].join('/');
  const canonical = [
    request.method,
    encodePath(path),
    canonicalQuery(query),
    ...claim.signedHeaders.map((name) => `${name}:${headerValue(request, name)}`),
    '',
    claim.signedHeaders.join(';'),
    claim.payloadHash,
  ].join('\n');
  const toSign = ['AWS4-HMAC-SHA256', claim.date, scope, sha256(canonical)].join('\n');
  const signingKey = [day, region, service, terminator].reduce<string | Buffer>(
    (key, part) => hmac(key, part),
    `AWS4${keys.secretAccessKey}`,
  ) as Buffer;
  const expected = hmac(signingKey, toSign).toString('hex');
  if (!equal(expected, claim.signature)) throw new S3Error(403, 'SignatureDoesNotMatch');
  return { signature: expected, signingKey, date: claim.date, scope, payloadHash: claim.payloadHash };
}

/** Signature of one chunk of an aws-chunked body (or of its trailer), chained to the one before. */
export function chunkSignature(seed: Signature, previous: string, kind: 'PAYLOAD' | 'TRAILER', hash: string): string {
  const head = [`AWS4-HMAC-SHA256-${kind}`, seed.date, seed.scope, previous];
  const toSign = [...head, ...(kind === 'PAYLOAD' ? [sha256('')] : []), hash].join('\n');
  return hmac(seed.signingKey, toSign).toString('hex');
}

export function equal(a: string, b: string): boolean {
  return a.length === b.length && timingSafeEqual(Buffer.from(a), Buffer.from(b));
}

export function sha256(data: string | Uint8Array): string {
  return createHash('sha256').update(data).digest('hex');
}

interface Claim {
  credential: string;
  signedHeaders: string[];
  signature: string;
  date: string;
  payloadHash: string;
  token: string | undefined;
}

function fromHeader(request: IncomingMessage): Claim {
  const authorization = request.headers.authorization ?? '';
  const match = /^AWS4-HMAC-SHA256 Credential=([^,]+), ?SignedHeaders=([^,]+), ?Signature=([0-9a-f]{64})$/.exec(
    authorization,
  );
  if (!authorization) throw new S3Error(403, 'AccessDenied');
  if (!match) throw new S3Error(400, 'AuthorizationHeaderMalformed');
  const [, credential = '', signedHeaders = '', signature = ''] = match;
  const payloadHash = one(request, 'x-amz-content-sha256');
  if (!payloadHash) throw new S3Error(400, 'InvalidRequest', 'missing x-amz-content-sha256');
  return {
    credential,
    signedHeaders: signedHeaders.split(';'),
    signature,
    date: one(request, 'x-amz-date') ?? '',
    payloadHash,
    token: one(request, 'x-amz-security-token'),
  };
}

function fromQuery(query: URLSearchParams, now: number): Claim {
  const parameter = (name: string) => query.get(name) ?? '';
  const date = parameter('X-Amz-Date');
  const age = now - parseDate(date);
  if (age > Number(parameter('X-Amz-Expires')) * 1000) throw new S3Error(403, 'AccessDenied', 'Request has expired');
  if (age < -maxSkewMs) throw new S3Error(403, 'AccessDenied', 'Request is not valid yet');
  return {
    credential: parameter('X-Amz-Credential'),
    signedHeaders: parameter('X-Amz-SignedHeaders').split(';'),
    signature: parameter('X-Amz-Signature'),
    date,
    payloadHash: query.get('X-Amz-Content-Sha256') ?? 'UNSIGNED-PAYLOAD',
    token: query.get('X-Amz-Security-Token') ?? undefined,
  };
}

function canonicalQuery(query: string): string {
  return query
    .split('&')
    .filter((pair) => pair !== '' && !pair.startsWith('X-Amz-Signature='))
    .map((pair) => {
      const [name = '', value = ''] = pair.split(/=(.*)/s);
      return [encode(decodeURIComponent(name)), encode(decodeURIComponent(value))] as const;
    })
    .sort(([a, x], [b, y]) => (a < b ? -1 : a > b ? 1 : x < y ? -1 : 1))
    .map(([name, value]) => `${name}=${value}`)
    .join('&');
}

function encodePath(path: string): string {
  return path
    .split('/')
    .map((segment) => encode(decodeURIComponent(segment)))
    .join('/');
}

/** Percent-encoding with only the unreserved characters of RFC 3986 left bare. */
export function encode(text: string): string {
  return encodeURIComponent(text).replace(/[!'()*]/g, (sign) => `%${sign.charCodeAt(0).toString(16).toUpperCase()}`);
}

function headerValue(request: IncomingMessage, name: string): string {
  const value = request.headers[name];
  return [value].flat().join(',').trim().replace(/ +/g, ' ');
}

function one(request: IncomingMessage, name: string): string | undefined {
  return [request.headers[name]].flat()[0];
}

function parseDate(date: string): number {
  const parts = /^(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z$/.exec(date)?.slice(1);
  if (!parts) throw new S3Error(403, 'AccessDenied', 'malformed X-Amz-Date');
  const [year = '', month = '', day = '', hour = '', minute = '', second = ''] = parts;
  return Date.parse(`${year}-${month}-${day}T${hour}:${minute}:${second}Z`);
}

function hmac(key: string | Buffer, data: string): Buffer {
  return createHmac('sha256', key).update(data).digest();
}
