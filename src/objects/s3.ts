import { Readable } from 'node:stream';
import {
  DeleteObjectCommand,
  GetObjectCommand,
  type GetObjectCommandInput,
  HeadBucketCommand,
  HeadObjectCommand,
  ListObjectsV2Command,
  S3Client,
} from '@aws-sdk/client-s3';
import { getSignedUrl } from '@aws-sdk/s3-request-presigner';
import { defaultIdleTimeoutMs } from './idle.ts';
import { codeOf, s3Error } from './s3-errors.ts';
import { type GetOutput, ShortGet } from './s3-get.ts';
import { type Agents, createAgents, createRequestHandler } from './s3-http.ts';
import { verifiedBody } from './s3-read.ts';
import { createRetryStrategy } from './s3-retry.ts';
import { abortOrphans } from './s3-sweep.ts';
import { uploadObject } from './s3-upload.ts';
import {
  type Body,
  checkKey,
  type ListOptions,
  ObjectError,
  type ObjectInfo,
  type OwnStore,
  type ReadOptions,
  type SweepOptions,
  type WriteOptions,
} from './store.ts';
import { endOnAbort, takeBody } from './stream.ts';

export interface S3StoreOptions {
  bucket: string;
  /** All keys live below it; a `/` is put behind it. */
  prefix?: string;
  /** Default: as the AWS SDK finds it; `us-east-1` with an endpoint of one's own. */
  region?: string;
  /** Origin of an S3-compatible service. Default: AWS. */
  endpoint?: string;
  /** The bucket in the path instead of in the host name, as most S3-compatible services want it. */
  forcePathStyle?: boolean;
  /** Default: the AWS SDK's own chain (environment, files, instance role). With them, nothing of the environment counts. */
  credentials?: { accessKeyId: string; secretAccessKey: string; sessionToken?: string };
  /** Sockets to use (for instance with a `lookup` that refuses private addresses); `close` destroys them. */
  agents?: Agents;
  /** A connection that makes no progress for so long is given up as `transient`. Default 30 s. */
  idleTimeoutMs?: number;
}

/** A bucket of AWS S3 or of any S3-compatible service. Opening makes no call. */
export function openS3Store(options: S3StoreOptions): OwnStore {
  return new S3Store(options);
}

class S3Store implements OwnStore {
  readonly description: string;
  readonly #bucket: string;
  readonly #prefix: string;
  readonly #client: S3Client;
  readonly #shortGet: ShortGet | null;

  constructor(options: S3StoreOptions) {
    const { credentials, endpoint } = options;
    const region = options.region ?? (endpoint ? 'us-east-1' : undefined);
    this.#bucket = options.bucket;
    this.#prefix = options.prefix ? options.prefix.replace(/\/*$/, '/') : '';
    this.description = `s3://${this.#bucket}/${this.#prefix}`;
    this.#client = new S3Client({
      ...(region ? { region } : {}),
      ...(endpoint ? { endpoint } : {}),
      // A customer's keys must not go to the endpoint that the environment names for the service's own store.
      ...(credentials ? { credentials, ignoreConfiguredEndpointUrls: true } : {}),
      forcePathStyle: options.forcePathStyle ?? false,
      requestHandler: createRequestHandler(
        options.agents ?? createAgents(),
        options.idleTimeoutMs ?? defaultIdleTimeoutMs,
      ),
      // The SDK's default checksums break many S3-compatible services. The signature covers the SHA-256 of a body anyway.
      requestChecksumCalculation: 'WHEN_REQUIRED',
      responseChecksumValidation: 'WHEN_REQUIRED',
      // Bodies are buffers, sent again at need: asking first whether they are welcome would cost a round trip each.
      expectContinueHeader: false,
      followRegionRedirects: false,
      retryStrategy: createRetryStrategy(),
    });
    this.#shortGet = endpoint || credentials ? new ShortGet(this.#client, this.#bucket) : null;
  }

  async *list({ prefix = '', signal }: ListOptions = {}): AsyncGenerator<ObjectInfo[]> {
    let token: string | undefined;
    do {
      const page = await this.#call(this.description, signal, (abort) =>
        this.#client.send(
          new ListObjectsV2Command({
            Bucket: this.#bucket,
            Prefix: this.#prefix + prefix,
            ContinuationToken: token,
            // Without it, a key with a control character would break the XML.
            EncodingType: 'url',
          }),
          abort,
        ),
      );
      const decode = page.EncodingType === 'url' ? decodeKey : String;
      const infos = (page.Contents ?? []).map(({ Key = '', Size = 0, ETag = '', LastModified }) => ({
        key: decode(Key).slice(this.#prefix.length),
        sizeBytes: Size,
        etag: bare(ETag),
        modifiedDate: LastModified ?? null,
      }));
      // A folder marker at the prefix itself would have an empty key.
      const named = infos.filter(({ key }) => key !== '');
      if (named.length > 0) yield named;
      token = page.IsTruncated ? page.NextContinuationToken : undefined;
      if (page.IsTruncated && !token)
        throw new ObjectError(
          'failed',
          `${this.description}: The store does not list past the first page (version 2).`,
        );
    } while (token);
  }

  async head(key: string, { signal }: { signal?: AbortSignal } = {}): Promise<ObjectInfo> {
    const target = this.#target(key);
    const { ContentLength, ETag, LastModified } = await this.#call(key, signal, (abort) =>
      this.#client.send(new HeadObjectCommand(target), abort),
    );
    return { key, sizeBytes: ContentLength ?? 0, etag: bare(ETag ?? ''), modifiedDate: LastModified ?? null };
  }

  async read(key: string, options: ReadOptions = {}): Promise<Readable> {
    const { start = 0, end, ifMatch, signal } = options;
    const whole = start === 0 && end === undefined;
    if (end !== undefined && end < start) return this.#readNothing(key, options);
    const input: GetObjectCommandInput = {
      ...this.#target(key),
      ...(ifMatch === undefined ? {} : { IfMatch: `"${ifMatch}"` }),
      ...(whole ? { ChecksumMode: 'ENABLED' } : { Range: `bytes=${start}-${end ?? ''}` }),
    };
    const output = await this.#call(key, signal, (abort) =>
      this.#get(input, abort).catch((error: unknown) => {
        if (codeOf(error) === 'InvalidRange') return null;
        throw error;
      }),
    );
    if (!output) return this.#readNothing(key, options);
    if (!(output.Body instanceof Readable)) throw new ObjectError('failed', `${name(key)}: The answer has no body.`);
    if (!whole && !output.ContentRange?.startsWith(`bytes ${start}-`)) {
      output.Body.destroy();
      throw new ObjectError('failed', `${name(key)}: The store does not read ranges.`);
    }
    return endOnAbort(verifiedBody(output, output.Body, name(key), whole), signal);
  }

  async write(key: string, body: Body, options: WriteOptions = {}): Promise<ObjectInfo> {
    const endBody = takeBody(body);
    try {
      options.signal?.throwIfAborted();
      const { etag, sizeBytes } = await uploadObject(this.#client, this.#target(key), name(key), body, options);
      return { key, sizeBytes, etag: bare(etag), modifiedDate: null };
    } finally {
      endBody();
    }
  }

  async delete(key: string, { signal }: { signal?: AbortSignal } = {}): Promise<void> {
    const target = this.#target(key);
    await this.#call(key, signal, (abort) => this.#client.send(new DeleteObjectCommand(target), abort));
  }

  async presignRead(
    key: string,
    { expiresInS, fileName, contentType }: { expiresInS: number; fileName: string; contentType: string },
  ): Promise<string> {
    const ascii = fileName.replace(/[^\x20-\x7e]|["\\]/g, '_');
    const exact = encodeURIComponent(fileName).replace(/['()*]/g, (sign) => `%${sign.charCodeAt(0).toString(16)}`);
    const command = new GetObjectCommand({
      ...this.#target(key),
      ResponseContentType: contentType,
      ResponseContentDisposition: `attachment; filename="${ascii}"; filename*=UTF-8''${exact}`,
    });
    return this.#call(key, undefined, () => getSignedUrl(this.#client, command, { expiresIn: expiresInS }));
  }

  async check({ signal }: { signal?: AbortSignal } = {}): Promise<void> {
    try {
      await this.#call(this.description, signal, (abort) =>
        this.#client.send(new HeadBucketCommand({ Bucket: this.#bucket }), abort),
      );
    } catch (error) {
      if (error instanceof ObjectError && error.kind === 'not-found')
        throw new ObjectError('failed', `${this.description}: The bucket does not exist.`, { cause: error });
      throw error;
    }
  }

  async sweep({ prefixes, olderThanMs, signal }: SweepOptions): Promise<number> {
    const sweepOf = (prefix: string) => {
      const orphans = { Bucket: this.#bucket, Prefix: this.#prefix + prefix, olderThanMs };
      return this.#call(this.description, signal, (abort) => abortOrphans(this.#client, { ...orphans, ...abort }));
    };
    const swept = await Promise.allSettled(prefixes.map(sweepOf));
    // What cannot be swept below one prefix does not keep the others.
    return swept.reduce((sum, one) => {
      if (one.status === 'rejected') throw one.reason;
      return sum + one.value;
    }, 0);
  }

  async close(): Promise<void> {
    this.#client.destroy();
  }

  #target(key: string): { Bucket: string; Key: string } {
    checkKey(key);
    const full = this.#prefix + key;
    if (this.#prefix) checkKey(full);
    return { Bucket: this.#bucket, Key: full };
  }

  async #get(input: GetObjectCommandInput, options: { abortSignal?: AbortSignal }): Promise<GetOutput> {
    return (await this.#shortGet?.send(input, options)) ?? this.#client.send(new GetObjectCommand(input), options);
  }

  /** A range without bytes, of an object that must be there all the same. */
  async #readNothing(key: string, { ifMatch, signal }: ReadOptions): Promise<Readable> {
    const { etag } = await this.head(key, signal ? { signal } : {});
    if (ifMatch !== undefined && ifMatch !== etag)
      throw new ObjectError('changed', `${name(key)}: The object has changed meanwhile.`);
    return Readable.from([], { objectMode: false });
  }

  async #call<T>(
    what: string,
    signal: AbortSignal | undefined,
    work: (options: { abortSignal?: AbortSignal }) => Promise<T>,
  ): Promise<T> {
    try {
      signal?.throwIfAborted();
      return await work(signal ? { abortSignal: signal } : {});
    } catch (error) {
      throw signal?.aborted ? signal.reason : s3Error(error, what === this.description ? what : name(what));
    }
  }
}

function name(key: string): string {
  return JSON.stringify(key);
}

function bare(etag: string): string {
  return etag.replace(/^"(.*)"$/, '$1');
}

/** As S3 encodes keys in listings: form encoding, in which a space may be a plus. */
function decodeKey(key: string): string {
  try {
    return decodeURIComponent(key.replaceAll('+', ' '));
  } catch {
    return key; // The store says that it encodes, and does not.
  }
}
