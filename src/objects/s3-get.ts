import type { GetObjectCommandInput, GetObjectCommandOutput, S3Client } from '@aws-sdk/client-s3';
import { encode, IdleTimeoutError } from './s3-http.ts';

type Config = S3Client['config'];
type Signer = Awaited<ReturnType<Config['signer']>>;

/** What the SDK knows once and for all of a bucket: where it is, and how requests to it are signed. */
interface Place {
  url: URL;
  signer: Signer;
}

/** What is read of an answer, whoever got it. */
export type GetOutput = Partial<GetObjectCommandOutput>;

/**
 * GetObject on a short way: signed by the SDK's signer and sent by our handler, without the layers that the SDK puts
 * around every request, which take several times as long as the request of a small object itself.
 */
export class ShortGet {
  readonly #config: Config;
  readonly #bucket: string;
  #place: Promise<Place | null> | null = null;

  constructor(client: S3Client, bucket: string) {
    this.#config = client.config;
    this.#bucket = bucket;
  }

  /** Null where the answer is not a plain one: the SDK is to ask again, which knows what to make of all others. */
  async send(
    { Key = '', IfMatch, Range }: GetObjectCommandInput,
    options: { abortSignal?: AbortSignal },
  ): Promise<GetOutput | null> {
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
        headers: { host: url.host, ...(IfMatch && { 'if-match': IfMatch }), ...(Range && { range: Range }) },
      };
      // As the SDK has set it right by the answers of the store.
      const signingDate = new Date(Date.now() + this.#config.systemClockOffset);
      const signed = await signer.sign(request, { signingDate });
      const { response } = await this.#config.requestHandler.handle(signed, options);
      const { statusCode, headers, body } = response;
      if (statusCode !== (Range ? 206 : 200)) {
        body.destroy();
        return null;
      }
      const length = headers['content-length'];
      return {
        Body: body,
        ...(length !== undefined && { ContentLength: Number(length) }),
        ContentRange: headers['content-range'],
        ETag: headers.etag,
        ServerSideEncryption: headers['x-amz-server-side-encryption'],
      };
    } catch (error) {
      if (options.abortSignal?.aborted || error instanceof IdleTimeoutError) throw error;
      this.#place = null;
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
