import { createHash } from 'node:crypto';
import { pipeline } from 'node:stream/promises';
import {
  AbortMultipartUploadCommand,
  CompleteMultipartUploadCommand,
  CreateMultipartUploadCommand,
  HeadObjectCommand,
  PutObjectCommand,
  type S3Client,
  UploadPartCommand,
} from '@aws-sdk/client-s3';
import { parts } from './parts.ts';
import { codeOf, s3Error } from './s3-errors.ts';
import { type Body, ObjectError, type WriteOptions } from './store.ts';

/** 5 MiB: the smallest that S3 takes; larger ones cost memory and win nothing. */
const leastPartBytes = 5 * 1024 * 1024;

/** 15 MiB, of which one part is being filled and the rest is under way. */
const memoryBytes = 3 * leastPartBytes;

/** Most parts of one object, by S3's own limit. */
const maxParts = 10_000;

/** Tries of one piece that got stuck on its way; other failures are repeated by the client itself. */
const triesPerPiece = 3;

interface Target {
  Bucket: string;
  Key: string;
}

interface UploadedPart {
  PartNumber: number;
  ETag: string;
}

/**
 * Streams a body to S3: in one request when it fits a part, else in parts, several at once. The signature of a piece
 * covers its SHA-256, so that the store refuses what was damaged. A failure or abort leaves no parts behind.
 */
export async function uploadObject(
  client: S3Client,
  target: Target,
  what: string,
  body: Body,
  options: WriteOptions,
): Promise<{ etag: string; sizeBytes: number }> {
  const stop = new AbortController();
  // Not AbortSignal.any: a long-lived signal of the caller's would remember every upload.
  const forward = () => stop.abort(options.signal?.reason);
  options.signal?.addEventListener('abort', forward, { once: true });
  const upload = new Upload(client, target, what, options, stop);
  try {
    const take = (source: AsyncIterable<Uint8Array | string>) => upload.take(source);
    await pipeline(body, take, { signal: stop.signal });
    return await upload.finish();
  } catch (error) {
    stop.abort(error);
    await upload.abort();
    throw stop.signal.reason;
  } finally {
    options.signal?.removeEventListener('abort', forward);
  }
}

class Upload {
  readonly #client: S3Client;
  readonly #target: Target;
  readonly #what: string;
  readonly #options: WriteOptions;
  readonly #stop: AbortController;
  readonly #signal: AbortSignal;
  readonly #partBytes: number;
  readonly #free: Buffer[] = [];
  readonly #underWay = new Set<Promise<void>>();
  readonly #parts: UploadedPart[] = [];
  /** The body, where it fits one part. */
  #whole: Buffer | null = null;
  #id: string | null = null;
  #takenBytes = 0;
  #sentBytes = 0;

  constructor(client: S3Client, target: Target, what: string, options: WriteOptions, stop: AbortController) {
    this.#client = client;
    this.#target = target;
    this.#what = what;
    this.#options = options;
    this.#stop = stop;
    this.#signal = stop.signal;
    const wholeMiB = Math.ceil((options.sizeBytes ?? 0) / maxParts / 1024 / 1024) * 1024 * 1024;
    this.#partBytes = Math.max(leastPartBytes, wholeMiB);
  }

  /** Takes the body in, and sends its parts as they fill. */
  async take(source: AsyncIterable<Uint8Array | string>): Promise<void> {
    const { sizeBytes } = this.#options;
    const buffer = () => this.#free.pop() ?? Buffer.allocUnsafeSlow(this.#partBytes);
    const cut = parts(source, { key: this.#target.Key, partBytes: this.#partBytes, sizeBytes, buffer });
    for await (const { bytes, start, last } of cut) {
      this.#takenBytes = start + bytes.length;
      if (start === 0 && last) {
        this.#whole = bytes;
        return;
      }
      this.#id ??= await this.#create();
      await this.#start(bytes);
    }
  }

  async finish(): Promise<{ etag: string; sizeBytes: number }> {
    await Promise.all(this.#underWay);
    const etag = this.#whole ? await this.#put(this.#whole) : await this.#complete();
    this.#options.onProgress?.(this.#takenBytes);
    return { etag, sizeBytes: this.#takenBytes };
  }

  /** Removes the parts. Not stopped by the caller's signal: it is what that signal asks for. */
  async abort(): Promise<void> {
    await Promise.allSettled(this.#underWay);
    if (this.#id === null) return;
    const command = new AbortMultipartUploadCommand({ ...this.#target, UploadId: this.#id });
    // The error that led here says more than one of this; a sweep finds what is left.
    await this.#client.send(command).catch(() => {});
  }

  /** Sends one part beside the others, waiting first until there is room for it. */
  async #start(part: Buffer): Promise<void> {
    const number = this.#parts.length + 1;
    if (number > maxParts) throw new ObjectError('failed', `${this.#what} is too large to be sent without its size.`);
    const mostUnderWay = Math.max(1, Math.floor(memoryBytes / this.#partBytes) - 1);
    while (this.#underWay.size >= mostUnderWay) await Promise.race(this.#underWay);
    // Another part failed for good: the rest of the body is of no use.
    this.#signal.throwIfAborted();
    const entry: UploadedPart = { PartNumber: number, ETag: '' };
    this.#parts.push(entry);
    const sending = this.#send((abortSignal) =>
      this.#client.send(
        new UploadPartCommand({
          ...this.#target,
          UploadId: this.#id ?? '',
          PartNumber: number,
          Body: part,
        }),
        { abortSignal },
      ),
    )
      .then(({ ETag = '' }) => {
        entry.ETag = ETag;
        this.#sentBytes += part.length;
        this.#options.onProgress?.(this.#sentBytes);
        if (part.length === this.#partBytes) this.#free.push(part);
      })
      // Also wakes a wait for a stream that does not come.
      .catch((error: unknown) => this.#stop.abort(error));
    const tracked = sending.finally(() => this.#underWay.delete(tracked));
    this.#underWay.add(tracked);
  }

  async #put(body: Buffer): Promise<string> {
    const { ETag = '' } = await this.#send((abortSignal) =>
      this.#client.send(
        new PutObjectCommand({
          ...this.#target,
          Body: body,
          ContentType: this.#options.contentType,
        }),
        { abortSignal },
      ),
    );
    return ETag;
  }

  async #create(): Promise<string> {
    const { UploadId } = await this.#send((abortSignal) =>
      this.#client.send(new CreateMultipartUploadCommand({ ...this.#target, ContentType: this.#options.contentType }), {
        abortSignal,
      }),
    );
    if (!UploadId) throw new ObjectError('failed', `${this.#what}: The store does not take uploads in parts.`);
    return UploadId;
  }

  async #complete(): Promise<string> {
    this.#signal.throwIfAborted();
    const MultipartUpload = { Parts: this.#parts.map(({ PartNumber, ETag }) => ({ PartNumber, ETag })) };
    const command = new CompleteMultipartUploadCommand({ ...this.#target, UploadId: this.#id ?? '', MultipartUpload });
    try {
      const { ETag = '' } = await this.#send((abortSignal) => this.#client.send(command, { abortSignal }));
      return ETag;
    } catch (error) {
      const known = s3Error(error, this.#what);
      if (known.kind !== 'transient' || !(await this.#isThere())) throw known;
      return this.#etag();
    }
  }

  /** Whether our object is there although the answer that says so got lost: by the ETag that S3 makes of the parts. */
  async #isThere(): Promise<boolean> {
    try {
      const { ETag } = await this.#client.send(new HeadObjectCommand(this.#target), { abortSignal: this.#signal });
      return ETag === this.#etag();
    } catch {
      return false;
    }
  }

  #etag(): string {
    const hash = createHash('md5');
    for (const { ETag } of this.#parts) hash.update(ETag.replaceAll('"', ''), 'hex');
    return `"${hash.digest('hex')}-${this.#parts.length}"`;
  }

  /** Repeats what got stuck on its way: to begin a large object anew for that would cost too much. */
  async #send<T>(work: (signal: AbortSignal) => Promise<T>): Promise<T> {
    for (let triesLeft = triesPerPiece - 1; ; triesLeft--) {
      try {
        this.#signal.throwIfAborted();
        return await work(this.#signal);
      } catch (error) {
        if (codeOf(error) !== 'IdleTimeoutError' || triesLeft === 0) throw s3Error(error, this.#what);
      }
    }
  }
}
