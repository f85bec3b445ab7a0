import type { IncomingMessage } from 'node:http';
import { text } from 'node:stream/consumers';
import { storeBlob } from './s3-bodies.ts';
import { type BodyFacts, readBody } from './s3-body.ts';
import { Bucket, type ObjectHeaders, type StoredObject } from './s3-buckets.ts';
import type { Operation } from './s3-faults.ts';
import { S3Error, type Signature } from './s3-signature.ts';
import { bucketsXml, listXml, partsXml, readKeys, readParts, resultXml, uploadsXml } from './s3-xml.ts';

/** What the operations work on. */
export interface Shelf {
  /** Where bodies are kept. */
  dir: string;
  /** Most entries of a page of a listing. */
  pageSize: number;
  buckets: Map<string, Bucket>;
}

/** One request whose signature held. */
export interface Call {
  request: IncomingMessage;
  method: string;
  bucketName: string;
  key: string;
  query: URLSearchParams;
  signature: Signature;
  /** Body as it arrives, with what the fault does to it. */
  arriving: AsyncIterable<Buffer>;
}

export interface Answer {
  status: number;
  headers?: Record<string, string | number>;
  body?: string | AsyncIterable<Buffer>;
}

/** Does what the request asks for; throws the S3Error to answer with. */
export async function perform(shelf: Shelf, operation: Operation, call: Call): Promise<Answer> {
  const { bucketName, key, query, request } = call;
  if (bucketName === '') return xml(bucketsXml([...shelf.buckets.keys()]));
  if (operation === 'bucket' && call.method === 'PUT') {
    if (!shelf.buckets.has(bucketName)) shelf.buckets.set(bucketName, new Bucket());
    return { status: 200 };
  }
  const bucket = shelf.buckets.get(bucketName);
  if (!bucket) throw new S3Error(404, 'NoSuchBucket', 'The specified bucket does not exist');
  switch (operation) {
    case 'bucket':
      return query.has('location') ? xml(resultXml('LocationConstraint', {})) : { status: 200 };
    case 'list':
      return xml(listXml(bucketName, bucket, query, shelf.pageSize));
    case 'uploads':
      return xml(
        key
          ? partsXml(bucketName, bucket.upload(query.get('uploadId') ?? '', key))
          : uploadsXml(bucketName, bucket, query, shelf.pageSize),
      );
    case 'head':
    case 'get':
      return sendObject(bucket.object(key), call);
    case 'put': {
      if (request.headers['if-none-match'] === '*' && bucket.objects.has(key))
        throw new S3Error(412, 'PreconditionFailed');
      const { blob, facts } = await receive(shelf, call);
      const { md5: etag, checksums } = facts;
      bucket.put({ key, sizeBytes: blob.sizeBytes, etag, headers: keptHeaders(request), checksums, blob });
      return { status: 200, headers: { etag: `"${etag}"`, ...checksums } };
    }
    case 'copy':
      return copyObject(shelf, bucket, call);
    case 'delete': {
      if (call.method === 'DELETE') {
        bucket.delete(key);
        return { status: 204 };
      }
      for (const named of readKeys(await text(readAll(call)))) bucket.delete(named);
      return xml(resultXml('DeleteResult', {}));
    }
    case 'create': {
      const { id } = bucket.create(key, keptHeaders(request));
      return xml(resultXml('InitiateMultipartUploadResult', { Bucket: bucketName, Key: key, UploadId: id }));
    }
    case 'part': {
      if (request.headers['x-amz-copy-source']) throw new S3Error(501, 'NotImplemented');
      const upload = bucket.upload(query.get('uploadId') ?? '', key);
      const { blob, facts } = await receive(shelf, call);
      bucket.addPart(upload, { ...facts, number: Number(query.get('partNumber')), blob });
      return { status: 200, headers: { etag: `"${facts.md5}"`, ...facts.checksums } };
    }
    case 'complete': {
      const parts = readParts(await text(readAll(call)));
      const { etag } = bucket.complete(bucket.upload(query.get('uploadId') ?? '', key), parts);
      return xml(resultXml('CompleteMultipartUploadResult', { Bucket: bucketName, Key: key, ETag: `"${etag}"` }));
    }
    case 'abort':
      bucket.abort(bucket.upload(query.get('uploadId') ?? '', key));
      return { status: 204 };
  }
}

function xml(body: string): Answer {
  return { status: 200, headers: { 'content-type': 'application/xml' }, body };
}

async function receive(shelf: Shelf, call: Call) {
  const facts: BodyFacts = { sizeBytes: 0, md5: '', checksums: {} };
  const blob = await storeBlob(shelf.dir, readBody(call.request, call.signature, call.arriving, facts));
  return { blob, facts };
}

function readAll(call: Call): AsyncIterable<Buffer> {
  return readBody(call.request, call.signature, call.arriving, { sizeBytes: 0, md5: '', checksums: {} });
}

async function copyObject(shelf: Shelf, bucket: Bucket, call: Call): Promise<Answer> {
  const path = decodeURIComponent(String(call.request.headers['x-amz-copy-source'])).replace(/^\//, '');
  const [from = '', key = ''] = path.split(/\/(.*)/s);
  const source = shelf.buckets.get(from)?.object(key);
  if (!source) throw new S3Error(404, 'NoSuchBucket');
  const blob = await storeBlob(shelf.dir, source.blob.read(0, source.sizeBytes - 1));
  const replaced = call.request.headers['x-amz-metadata-directive'] === 'REPLACE';
  const headers = replaced ? keptHeaders(call.request) : source.headers;
  const { etag, modifiedDate } = bucket.put({ ...source, key: call.key, headers, blob });
  return xml(resultXml('CopyObjectResult', { ETag: `"${etag}"`, LastModified: modifiedDate.toISOString() }));
}

function keptHeaders(request: IncomingMessage): ObjectHeaders {
  const kept = /^(content-(type|encoding|disposition|language)|cache-control|x-amz-meta-.*)$/;
  return Object.fromEntries(
    Object.entries(request.headers)
      .filter(([name]) => kept.test(name))
      .map(([name, value]) => [name, String(value)]),
  );
}

function sendObject(object: StoredObject, { request, query, method }: Call): Answer {
  const { 'if-match': ifMatch, 'if-none-match': ifNoneMatch, range } = request.headers;
  const etag = `"${object.etag}"`;
  if (ifMatch && ![etag, object.etag, '*'].includes(ifMatch)) throw new S3Error(412, 'PreconditionFailed');
  if (ifNoneMatch && [etag, object.etag, '*'].includes(ifNoneMatch)) throw new S3Error(304, 'NotModified');
  const [start, end] = readRange(range, object.sizeBytes);
  const overrides = [...query]
    .filter(([name]) => name.startsWith('response-'))
    .map(([name, value]) => [name.slice('response-'.length), value]);
  const whole = !range && request.headers['x-amz-checksum-mode'] === 'ENABLED';
  const headers = {
    ...object.headers,
    ...Object.fromEntries(overrides),
    ...(whole ? object.checksums : {}),
    etag,
    'accept-ranges': 'bytes',
    'last-modified': object.modifiedDate.toUTCString(),
    'content-length': end - start + 1,
    ...(range ? { 'content-range': `bytes ${start}-${end}/${object.sizeBytes}` } : {}),
  };
  const status = range ? 206 : 200;
  return method === 'HEAD' ? { status, headers } : { status, headers, body: object.blob.read(start, end) };
}

function readRange(range: string | undefined, sizeBytes: number): [number, number] {
  if (!range) return [0, sizeBytes - 1];
  const [, from, to] = /^bytes=(\d*)-(\d*)$/.exec(range) ?? [];
  const start = from ? Number(from) : Math.max(sizeBytes - Number(to), 0);
  const end = from && to ? Math.min(Number(to), sizeBytes - 1) : sizeBytes - 1;
  if (start >= sizeBytes || start > end)
    throw new S3Error(416, 'InvalidRange', 'The requested range is not satisfiable');
  return [start, end];
}
