import { setTimeout as sleep } from 'node:timers/promises';
import type { GetObjectCommandInput, GetObjectCommandOutput, S3Client } from '@aws-sdk/client-s3';
import { encode, IdleTimeoutError } from './s3-http.ts';

type Config = S3Client['config'];

/** What the SDK knows once and for all of a bucket: where it is, and how requests to it are signed. */
interface Place {
  url: URL;
  signer: Awaited<ReturnType<Config['signer']>>;
}

/** What is read of an answer, whoever got it. */
export type GetOutput = Partial<GetObjectCommandOutput>;

/** 200 ms at most, left to chance: before the SDK asks again where a store is busy or a connection broke. */
const pauseMs = 200;

/**
 * GetObject on a short way: signed by the SDK's signer and sent by our handler, without the layers that the SDK puts
 * around every request, which take several times as long as the request of a small object itself.
 */
export class ShortGet {
  readonly #config: Config;
  readonly #bucket: string;
  #place: Promise<Place | null> | null = null;
  /** Whether the MD5 that an ETag is says all that the store knows of a whole object; else the SDK is to compare the rest. */
  #hasMd5 = true;

  /** @param client of an endpoint that is given: one that the environment names is known to the SDK alone. */
  constructor(client: S3Client, bucket: string) {
    this.#config = client.config;
    this.#bucket = bucket;
  }

  /** Null where the answer is not a plain one: the SDK is to ask again, which knows what to make of all others. */
  async send(input: GetObjectCommandInput, options: { abortSignal?: AbortSignal }): Promise<GetOutput | null> {
    const { Range, IfMatch = '' } = input;
    const isWhole = Range === undefined;
    if (isWhole && !(this.#hasMd5 && isMd5(IfMatch))) return null;
    const response = await this.#ask(input, options);
    if (!response) return null;
    const { statusCode, headers, body } = response;
    if (statusCode !== (isWhole ? 200 : 206)) {
      body.resume(); // A short text, after which the connection serves again.
      if (statusCode === 429 || statusCode >= 500) await pause(options);
      return null;
    }
    if (isWhole && !isPlain(headers)) {
      this.#hasMd5 = false;
      body.destroy();
      return null;
    }
    const length = headers['content-length'];
    return {
      Body: body,
      ...(length !== undefined && { ContentLength: Number(length) }),
      ContentRange: headers['content-range'],
      ETag: headers.etag,
    };
  }

  async #ask(
    { Key = '', Range, IfMatch, ChecksumMode }: GetObjectCommandInput,
    options: { abortSignal?: AbortSignal },
  ) {
    try {
      this.#place ??= this.#find();
      const place = await this.#place;
      if (!place) return null;
      const { url, signer } = place;
      const request = {
        method: 'GET',
        protocol: url.protocol,
        hostname: url.hostname,
        ...(url.port && { port: Number(url.port) }),
        path: `${url.pathname.replace(/\/$/, '')}/${Key.split('/').map(encode).join('/')}`,
        headers: {
          host: url.host,
          'user-agent': 'study-data-service',
          ...(IfMatch && { 'if-match': IfMatch }),
          ...(Range && { range: Range }),
          ...(ChecksumMode && { 'x-amz-checksum-mode': ChecksumMode }),
        },
      };
      // As the SDK has set it right by the answers of the store.
      const signingDate = new Date(Date.now() + this.#config.systemClockOffset);
      const signed = await signer.sign(request, { signingDate });
      return (await this.#config.requestHandler.handle(signed, options)).response;
    } catch (error) {
      if (options.abortSignal?.aborted || error instanceof IdleTimeoutError) throw error;
      this.#place = null;
      await pause(options);
      return null;
    }
  }

  /** Null where requests are signed in another way than by a key for all. */
  async #find(): Promise<Place | null> {
    const config = this.#config;
    const custom = await config.endpoint?.();
    const port = custom?.port ? `:${custom.port}` : '';
    const { url, properties } = config.endpointProvider({
      Bucket: this.#bucket,
      Region: await config.region(),
      UseFIPS: await config.useFipsEndpoint(),
      UseDualStack: await config.useDualstackEndpoint(),
      ForcePathStyle: config.forcePathStyle,
      ...(custom && { Endpoint: `${custom.protocol}//${custom.hostname}${port}${custom.path}` }),
    });
    const [scheme] = properties?.authSchemes ?? [];
    return scheme?.name === 'sigv4' ? { url, signer: await config.signer(scheme) } : null;
  }
}

const isMd5 = (etag: string) => /^"[0-9a-f]{32}"$/.test(etag);

/** Whether the store tells of no checksum besides the ETag, nor of a key of KMS, with which the ETag is no MD5. */
function isPlain(headers: Record<string, string>): boolean {
  if (!isMd5(headers.etag ?? '') || headers['x-amz-server-side-encryption']?.startsWith('aws:kms')) return false;
  return !Object.keys(headers).some((name) => name.startsWith('x-amz-checksum-'));
}

async function pause({ abortSignal }: { abortSignal?: AbortSignal }): Promise<void> {
  await sleep(Math.random() * pauseMs, undefined, abortSignal && { signal: abortSignal });
}
