import type { Bucket, StoredObject, Upload } from './s3-buckets.ts';
import { encode, type S3Error } from './s3-signature.ts';

const head = '<?xml version="1.0" encoding="UTF-8"?>\n';
const namespace = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"';

type Content = string | number | boolean | null | undefined;

function toXml(text: string): string {
  return text.replace(/[<>&"\r\n]/g, (sign) => `&#${sign.charCodeAt(0)};`);
}

/** `<name>value</name>` for each member that has a value. */
function members(values: Record<string, Content>): string {
  return Object.entries(values)
    .filter(([, value]) => value !== null && value !== undefined)
    .map(([name, value]) => `<${name}>${toXml(String(value))}</${name}>`)
    .join('');
}

export function errorXml(error: S3Error, resource: string, requestId: string): string {
  const values = { Code: error.code, Message: error.message, Resource: resource, RequestId: requestId };
  return `${head}<Error>${members(values)}</Error>`;
}

export function resultXml(name: string, values: Record<string, Content>): string {
  return `${head}<${name} ${namespace}>${members(values)}</${name}>`;
}

export function bucketsXml(names: string[]): string {
  const buckets = names.map((Name) => `<Bucket>${members({ Name, CreationDate: new Date(0).toISOString() })}</Bucket>`);
  return `${head}<ListAllMyBucketsResult ${namespace}><Buckets>${buckets.join('')}</Buckets></ListAllMyBucketsResult>`;
}

/** ListObjects of either version, at most `pageSize` a page; the page markers are keys in clear (version 1) or base64 (version 2). */
export function listXml(name: string, bucket: Bucket, query: URLSearchParams, pageSize: number): string {
  const second = query.get('list-type') === '2';
  const quote = query.get('encoding-type') === 'url' ? (text: string) => encode(text).replaceAll('%2F', '/') : String;
  const token = query.get('continuation-token');
  const prefix = query.get('prefix') ?? '';
  const delimiter = query.get('delimiter') ?? '';
  const maxKeys = Math.min(Number(query.get('max-keys') ?? pageSize), pageSize);
  const after = second
    ? token
      ? Buffer.from(token, 'base64').toString()
      : (query.get('start-after') ?? '')
    : (query.get('marker') ?? '');
  const page = bucket.list({ prefix, delimiter, after, maxKeys });
  const next = page.next === null ? null : second ? Buffer.from(page.next).toString('base64') : quote(page.next);
  const head1 = members({
    Name: name,
    Prefix: quote(prefix),
    Delimiter: delimiter ? quote(delimiter) : null,
    MaxKeys: maxKeys,
    EncodingType: query.get('encoding-type'),
    IsTruncated: next !== null,
    ...(second
      ? { KeyCount: page.objects.length + page.folders.length, ContinuationToken: token, NextContinuationToken: next }
      : { Marker: quote(after), NextMarker: next }),
  });
  const contents = page.objects.map((object) => `<Contents>${members(facts(object, quote))}</Contents>`);
  const folders = page.folders.map((key) => `<CommonPrefixes>${members({ Prefix: quote(key) })}</CommonPrefixes>`);
  return `${head}<ListBucketResult ${namespace}>${head1}${contents.join('')}${folders.join('')}</ListBucketResult>`;
}

function facts(object: StoredObject, quote: (text: string) => string): Record<string, Content> {
  return {
    Key: quote(object.key),
    LastModified: object.modifiedDate.toISOString(),
    ETag: `"${object.etag}"`,
    Size: object.sizeBytes,
    StorageClass: 'STANDARD',
  };
}

/** ListMultipartUploads, at most `pageSize` a page. */
export function uploadsXml(name: string, bucket: Bucket, query: URLSearchParams, pageSize: number): string {
  const quote = query.get('encoding-type') === 'url' ? (text: string) => encode(text).replaceAll('%2F', '/') : String;
  const prefix = query.get('prefix') ?? '';
  const afterKey = query.get('key-marker') ?? '';
  const afterId = query.get('upload-id-marker') ?? '';
  const maxUploads = Math.min(Number(query.get('max-uploads') ?? pageSize), pageSize);
  const page = bucket.listUploads({ prefix, afterKey, afterId, maxUploads });
  const last = page.isTruncated ? page.uploads.at(-1) : undefined;
  const values = members({
    Bucket: name,
    KeyMarker: quote(afterKey),
    UploadIdMarker: afterId,
    NextKeyMarker: last && quote(last.key),
    NextUploadIdMarker: last?.id,
    Prefix: quote(prefix),
    MaxUploads: maxUploads,
    EncodingType: query.get('encoding-type'),
    IsTruncated: page.isTruncated,
  });
  const uploads = page.uploads.map(({ id, key, initiatedDate }) => {
    const facts = { Key: quote(key), UploadId: id, StorageClass: 'STANDARD', Initiated: initiatedDate.toISOString() };
    return `<Upload>${members(facts)}</Upload>`;
  });
  return `${head}<ListMultipartUploadsResult ${namespace}>${values}${uploads.join('')}</ListMultipartUploadsResult>`;
}

export function partsXml(name: string, upload: Upload): string {
  const parts = [...upload.parts.values()]
    .sort((a, b) => a.number - b.number)
    .map((part) => `<Part>${members({ PartNumber: part.number, ETag: `"${part.md5}"`, Size: part.sizeBytes })}</Part>`);
  const values = members({ Bucket: name, Key: upload.key, UploadId: upload.id, IsTruncated: false });
  return `${head}<ListPartsResult ${namespace}>${values}${parts.join('')}</ListPartsResult>`;
}

/** The parts that a CompleteMultipartUpload names. */
export function readParts(xml: string): { number: number; etag: string }[] {
  return [...xml.matchAll(/<Part>(.*?)<\/Part>/gs)].map(([, part = '']) => ({
    number: Number(/<PartNumber>(\d+)<\/PartNumber>/.exec(part)?.[1]),
    etag: fromXml(/<ETag>(.*?)<\/ETag>/s.exec(part)?.[1] ?? '').replaceAll('"', ''),
  }));
}

/** The keys that a DeleteObjects names. */
export function readKeys(xml: string): string[] {
  return [...xml.matchAll(/<Key>(.*?)<\/Key>/gs)].map(([, key = '']) => fromXml(key));
}

function fromXml(text: string): string {
  const named: Record<string, string> = { lt: '<', gt: '>', amp: '&', quot: '"', apos: "'" };
  return text.replace(/&(?:#x([0-9a-f]+)|#(\d+)|(\w+));/gi, (_, hex, decimal, name) =>
    hex
      ? String.fromCodePoint(Number.parseInt(hex, 16))
      : decimal
        ? String.fromCodePoint(Number(decimal))
        : (named[name] ?? ''),
  );
}
