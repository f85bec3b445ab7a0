import { createHash, randomUUID } from 'node:crypto';
import { type Blob, joinBlobs } from './s3-bodies.ts';
import type { BodyFacts } from './s3-body.ts';
import { S3Error } from './s3-signature.ts';

/** Headers that S3 keeps with an object and gives back: media type and the like, and `x-amz-meta-*`. */
export type ObjectHeaders = Record<string, string>;

export interface StoredObject {
  key: string;
  sizeBytes: number;
  /** Without quotes: the MD5, or `md5-of-md5s-parts` after a multipart upload. */
  etag: string;
  modifiedDate: Date;
  headers: ObjectHeaders;
  checksums: Record<string, string>;
  blob: Blob;
}

export interface Part extends BodyFacts {
  number: number;
  blob: Blob;
}

export interface Upload {
  id: string;
  key: string;
  headers: ObjectHeaders;
  parts: Map<number, Part>;
  /** When it was begun; a test may set it back. */
  initiatedDate: Date;
}

export interface Listing {
  prefix: string;
  delimiter: string;
  /** Only what comes after this key or common prefix. */
  after: string;
  maxKeys: number;
}

export interface UploadListing {
  prefix: string;
  /** Only uploads of later keys, and those of this very key whose id comes after `afterId`, where there is one. */
  afterKey: string;
  afterId: string;
  maxUploads: number;
}

/** All parts but the last must have 5 MiB. */
const minPartBytes = 5 * 1024 * 1024;

/** One bucket: its objects and its open multipart uploads. */
export class Bucket {
  readonly objects = new Map<string, StoredObject>();
  readonly uploads = new Map<string, Upload>();
  #sorted: string[] | null = null;

  object(key: string): StoredObject {
    const object = this.objects.get(key);
    if (!object) throw new S3Error(404, 'NoSuchKey', 'The specified key does not exist.');
    return object;
  }

  put(object: Omit<StoredObject, 'modifiedDate'>): StoredObject {
    const old = this.objects.get(object.key);
    // HTTP dates have seconds: so has what S3 lists.
    const stored = { ...object, modifiedDate: new Date(Math.floor(Date.now() / 1000) * 1000) };
    this.objects.set(object.key, stored);
    if (!old) this.#sorted = null;
    old?.blob.drop();
    return stored;
  }

  delete(key: string): void {
    this.objects.get(key)?.blob.drop();
    if (this.objects.delete(key)) this.#sorted = null;
  }

  create(key: string, headers: ObjectHeaders): Upload {
    const upload = { id: randomUUID(), key, headers, parts: new Map(), initiatedDate: new Date() };
    this.uploads.set(upload.id, upload);
    return upload;
  }

  upload(id: string, key: string): Upload {
    const upload = this.uploads.get(id);
    if (upload?.key !== key) throw new S3Error(404, 'NoSuchUpload', 'The specified upload does not exist.');
    return upload;
  }

  addPart(upload: Upload, part: Part): void {
    if (!this.uploads.has(upload.id)) {
      part.blob.drop();
      throw new S3Error(404, 'NoSuchUpload');
    }
    upload.parts.get(part.number)?.blob.drop();
    upload.parts.set(part.number, part);
  }

  complete(upload: Upload, named: { number: number; etag: string }[]): StoredObject {
    const parts = named.map(({ number, etag }, i) => {
      const part = upload.parts.get(number);
      if (part?.md5 !== etag) throw new S3Error(400, 'InvalidPart');
      if (i > 0 && number <= (named[i - 1]?.number ?? 0)) throw new S3Error(400, 'InvalidPartOrder');
      if (i < named.length - 1 && part.sizeBytes < minPartBytes) throw new S3Error(400, 'EntityTooSmall');
      return part;
    });
    if (parts.length === 0) throw new S3Error(400, 'MalformedXML');
    const etag = createHash('md5').update(Buffer.from(parts.map(({ md5 }) => md5).join(''), 'hex'));
    this.uploads.delete(upload.id);
    for (const part of upload.parts.values()) if (!parts.includes(part)) part.blob.drop();
    const blob = joinBlobs(parts.map((part) => part.blob));
    return this.put({
      key: upload.key,
      sizeBytes: blob.sizeBytes,
      etag: `${etag.digest('hex')}-${parts.length}`,
      headers: upload.headers,
      checksums: {},
      blob,
    });
  }

  abort(upload: Upload): void {
    this.uploads.delete(upload.id);
    for (const part of upload.parts.values()) part.blob.drop();
  }

  /** One page of open uploads in the order of their keys and ids. */
  listUploads({ prefix, afterKey, afterId, maxUploads }: UploadListing): { uploads: Upload[]; isTruncated: boolean } {
    const isAfter = ({ key, id }: Upload) => {
      const order = compareBytes(key, afterKey);
      return order > 0 || (order === 0 && afterId !== '' && id > afterId);
    };
    const uploads = [...this.uploads.values()]
      .filter((upload) => upload.key.startsWith(prefix) && isAfter(upload))
      .sort((a, b) => compareBytes(a.key, b.key) || (a.id < b.id ? -1 : 1));
    return { uploads: uploads.slice(0, maxUploads), isTruncated: uploads.length > maxUploads };
  }

  /** One page in UTF-8 byte order; `next` is the `after` of the page behind it, null on the last. */
  list({ prefix, delimiter, after, maxKeys }: Listing): {
    objects: StoredObject[];
    folders: string[];
    next: string | null;
  } {
    this.#sorted ??= sortKeys([...this.objects.keys()]);
    const keys = this.#sorted;
    const objects: StoredObject[] = [];
    const folders: string[] = [];
    let last = after;
    for (let i = firstIndex(keys, prefix > after ? prefix : after); i < keys.length; i++) {
      const key = keys[i] ?? '';
      if (!key.startsWith(prefix)) {
        if (compareBytes(key, prefix) > 0) break;
        continue;
      }
      const cut = delimiter ? key.indexOf(delimiter, prefix.length) : -1;
      const name = cut < 0 ? key : key.slice(0, cut + delimiter.length);
      if (compareBytes(name, last) <= 0 && last !== '') continue;
      if (objects.length + folders.length === maxKeys) return { objects, folders, next: last };
      if (cut < 0) objects.push(this.object(key));
      else folders.push(name);
      last = name;
    }
    return { objects, folders, next: null };
  }
}

/** The engine's own order is that of the bytes, and much faster, where no surrogate pair meets U+E000 and above. */
function sortKeys(keys: string[]): string[] {
  return keys.some((key) => /[\ud800-\uffff]/.test(key)) ? keys.sort(compareBytes) : keys.sort();
}

function compareBytes(a: string, b: string): number {
  return Buffer.compare(Buffer.from(a), Buffer.from(b));
}

function firstIndex(keys: string[], from: string): number {
  let [low, high] = [0, keys.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (compareBytes(keys[middle] ?? '', from) < 0) low = middle + 1;
    else high = middle;
  }
  return low;
}
