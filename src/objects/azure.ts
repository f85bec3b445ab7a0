import { createHash, randomBytes } from 'node:crypto';
import { Readable } from 'node:stream';
import {
  AnonymousCredential,
  type BlockBlobClient,
  ContainerClient,
  newPipeline,
  type ContainerListBlobFlatSegmentResponse as Page,
  type RequestPolicyFactory,
  type RestError,
  StorageSharedKeyCredential,
} from '@azure/storage-blob';
import { md5Check } from './checksum.ts';
import { cloudError } from './cloud-errors.ts';
import { type CloudAccess, guardedAgents } from './egress.ts';
import { defaultIdleTimeoutMs, readWithIdleTimeout, withIdleTimeout } from './idle.ts';
import { parts, slices } from './parts.ts';
import {
  type Body,
  checkKey,
  type ListOptions,
  ObjectError,
  type ObjectInfo,
  type ObjectStore,
  type ReadOptions,
  type WriteOptions,
} from './store.ts';
import { takeBody } from './stream.ts';

/** Where the container is, and who asks: members of an AZURE_BLOB credential (decisions §5). */
export interface AzureSettings {
  account: string;
  container: string;
  /** URL of the blob service. Absent: the account's public one. The account's name is added where it does not stand in it. */
  endpoint?: string | undefined;
  accountKey?: string | undefined;
  sasToken?: string | undefined;
}

/** 8 MiB a block: what an upload holds in memory; 50,000 blocks, the limit of a blob, make 390 GiB. */
const blockBytes = 8 * 1024 * 1024;
const maxBlocks = 50_000;
/** 3 tries of a request, 200 ms and more apart: beyond that, it is up to the job. Every request may be repeated. */
const maxTries = 3;

/** Opens a container of Azure Blob Storage. Connects to nothing yet. */
export function openAzureStore(settings: AzureSettings, access: CloudAccess): ObjectStore {
  return new AzureStore(settings, access);
}

class AzureStore implements ObjectStore {
  readonly description: string;
  readonly #container: ContainerClient;
  readonly #agents: ReturnType<typeof guardedAgents>;
  readonly #idleTimeoutMs: number;

  constructor(settings: AzureSettings, { allowedOrigins, idleTimeoutMs = defaultIdleTimeoutMs, lookup }: CloudAccess) {
    const { account, container, accountKey, sasToken } = settings;
    this.description = `azure://${account}/${container}`;
    this.#idleTimeoutMs = idleTimeoutMs;
    const rules = { provider: 'AZURE_BLOB' as const, endpoint: settings.endpoint, allowedOrigins };
    this.#agents = guardedAgents(rules, lookup && { lookup });
    const url = new URL(serviceUrl(settings));
    url.pathname += `${url.pathname.endsWith('/') ? '' : '/'}${encodeURIComponent(container)}`;
    url.search = sasToken ?? '';
    const credential =
      accountKey === undefined ? new AnonymousCredential() : new StorageSharedKeyCredential(account, accountKey);
    const pipeline = newPipeline(credential, { retryOptions: { maxTries, retryDelayInMs: 200 } });
    pipeline.factories.push(agentPolicy(url.protocol === 'https:' ? this.#agents.httpsAgent : this.#agents.httpAgent));
    this.#container = new ContainerClient(url.href, pipeline);
  }

  async *list({ prefix, signal }: ListOptions = {}): AsyncGenerator<ObjectInfo[]> {
    const options = { ...(prefix && { prefix }), includeMetadata: true };
    let continuationToken: string | undefined;
    do {
      const pages = (abortSignal: AbortSignal) =>
        this.#container
          .listBlobsFlat({ ...options, abortSignal })
          .byPage({ maxPageSize: 1000, ...(continuationToken && { continuationToken }) });
      const page: Page = (await this.#call(this.description, signal, (stop) => pages(stop).next())).value;
      const infos = page.segment.blobItems
        // Accounts with a hierarchical namespace list their folders too.
        .filter(({ metadata }) => metadata?.hdi_isfolder !== 'true')
        .map(({ name, properties: { contentLength = 0, etag, lastModified } }) =>
          objectInfo(name, contentLength, etag, lastModified),
        );
      if (infos.length > 0) yield infos;
      continuationToken = page.continuationToken;
    } while (continuationToken);
  }

  async head(key: string, { signal }: { signal?: AbortSignal } = {}): Promise<ObjectInfo> {
    checkName(key);
    const { contentLength, etag, lastModified } = await this.#call(this.#what(key), signal, (abortSignal) =>
      this.#blob(key).getProperties({ abortSignal }),
    );
    return objectInfo(key, contentLength ?? 0, etag, lastModified);
  }

  async read(key: string, options: ReadOptions = {}): Promise<Readable> {
    const { start = 0, end, ifMatch, signal } = options;
    checkName(key);
    if (end !== undefined && end < start) return this.#emptyRead(key, options);
    const what = this.#what(key);
    try {
      const response = await this.#call(what, signal, (abortSignal) =>
        this.#blob(key).download(start, end === undefined ? undefined : end - start + 1, {
          abortSignal,
          maxRetryRequests: 0,
          ...(ifMatch !== undefined && { conditions: { ifMatch: `"${ifMatch}"` } }),
        }),
      );
      const { readableStreamBody, contentLength, contentRange, contentMD5 } = response;
      return readWithIdleTimeout(readableStreamBody as Readable, {
        what,
        sizeBytes: contentLength,
        idleTimeoutMs: this.#idleTimeoutMs,
        signal,
        ...(contentMD5 && !contentRange && { check: md5Check(what, contentMD5) }),
      });
    } catch (error) {
      if (error instanceof RangeBeyondEnd) return this.#emptyRead(key, options);
      // A version of an object that is not there at all: some servers compare first and look afterwards.
      if (error instanceof ObjectError && error.kind === 'changed') await this.head(key, signal && { signal });
      throw error;
    }
  }

  async write(key: string, body: Body, options: WriteOptions = {}): Promise<ObjectInfo> {
    const { sizeBytes, signal, onProgress, contentType } = options;
    const endBody = takeBody(body, signal);
    try {
      checkName(key);
      const blob = this.#blob(key);
      const md5 = createHash('md5');
      // Ids of one length, or the service refuses them; and unlike those of any other writer of this key.
      const writer = randomBytes(12);
      const blockIds: string[] = [];
      const partBytes = Math.max(blockBytes, Math.ceil((sizeBytes ?? 0) / maxBlocks));
      let size = 0;
      let whole: Buffer | undefined;
      for await (const { bytes, start, last } of parts(body, { key, partBytes, sizeBytes })) {
        md5.update(bytes);
        size = start + bytes.length;
        if (last && start === 0) {
          whole = bytes;
        } else {
          const id = Buffer.concat([writer, uint32(blockIds.length)]).toString('base64');
          blockIds.push(id);
          const transactionalContentMD5 = createHash('md5').update(bytes).digest();
          await this.#send(key, bytes, signal, (source, abortSignal) =>
            blob.stageBlock(id, source, bytes.length, { abortSignal, transactionalContentMD5 }),
          );
          if (!last) onProgress?.(size);
        }
      }
      const blobHTTPHeaders = { blobContentMD5: md5.digest(), ...(contentType && { blobContentType: contentType }) };
      const { etag, lastModified } = whole
        ? await this.#send(key, whole, signal, (source, abortSignal) =>
            blob.upload(source, size, { abortSignal, blobHTTPHeaders }),
          )
        : await this.#call(this.#what(key), signal, (abortSignal) =>
            blob.commitBlockList(blockIds, { abortSignal, blobHTTPHeaders }),
          );
      onProgress?.(size);
      return objectInfo(key, size, etag, lastModified);
    } finally {
      endBody();
    }
  }

  async delete(key: string, { signal }: { signal?: AbortSignal } = {}): Promise<void> {
    checkName(key);
    await this.#call(this.#what(key), signal, (abortSignal) => this.#blob(key).deleteIfExists({ abortSignal }));
  }

  async presignRead(): Promise<null> {
    return null;
  }

  async check({ signal }: { signal?: AbortSignal } = {}): Promise<void> {
    await this.#call(this.description, signal, (abortSignal) =>
      this.#container.listBlobsFlat({ abortSignal }).byPage({ maxPageSize: 1 }).next(),
    );
  }

  async close(): Promise<void> {
    this.#agents.close();
  }

  #blob(key: string): BlockBlobClient {
    return this.#container.getBlockBlobClient(key);
  }

  #what(key: string): string {
    return `${JSON.stringify(key)} in ${this.description}`;
  }

  /** One request, with its idle timeout and its errors made ours. */
  #call<T>(
    what: string,
    signal: AbortSignal | undefined,
    work: (abortSignal: AbortSignal, progress: () => void) => Promise<T>,
  ): Promise<T> {
    return withIdleTimeout({ what, idleTimeoutMs: this.#idleTimeoutMs, signal }, async (abortSignal, progress) => {
      try {
        return await work(abortSignal, progress);
      } catch (error) {
        throw azureError(what, error);
      }
    });
  }

  /** One request that carries `bytes`, in small pieces, so that a slow line counts as progress. */
  #send<T>(
    key: string,
    bytes: Buffer,
    signal: AbortSignal | undefined,
    work: (source: () => Readable, abortSignal: AbortSignal) => Promise<T>,
  ): Promise<T> {
    return this.#call(this.#what(key), signal, (abortSignal, progress) =>
      work(() => Readable.from(slices(bytes, progress), { objectMode: false }), abortSignal),
    );
  }

  /** An empty stream for a range past the end of an object that is there, in the version asked for. */
  async #emptyRead(key: string, { ifMatch, signal }: ReadOptions): Promise<Readable> {
    const { etag } = await this.head(key, signal && { signal });
    if (ifMatch !== undefined && ifMatch !== etag) throw cloudError(this.#what(key), { status: 412 });
    return Readable.from([]);
  }
}

/** Refuses keys that would name another object: the service reads `\` as `/`, and URLs resolve dot segments. */
function checkName(key: string): void {
  checkKey(key);
  if (key.includes('\\') || key.split('/').some((segment) => segment === '.' || segment === '..')) {
    throw new ObjectError('invalid-key', `Azure cannot hold the object key ${JSON.stringify(key)}.`);
  }
}

/** The service's URL: public, or custom with the account in its host (`account.…`) or in its path (`…/account`). */
function serviceUrl({ account, endpoint }: AzureSettings): string {
  if (endpoint === undefined) return `https://${encodeURIComponent(account)}.blob.core.windows.net`;
  const { hostname, pathname } = new URL(endpoint);
  const named = hostname.startsWith(`${account}.`) || pathname.length > 1;
  return named ? endpoint : `${endpoint.replace(/\/$/, '')}/${encodeURIComponent(account)}`;
}

/** Puts our agent into every request, after the client's own policies, among them the one for proxies. */
function agentPolicy(agent: unknown): RequestPolicyFactory {
  return {
    create: (next) => ({
      sendRequest: (request) => next.sendRequest(Object.assign(request, { agent })),
    }),
  };
}

/** The range starts behind the object's last byte. */
class RangeBeyondEnd extends Error {}

/** The client's errors keep the code of their cause, not the cause, and hold the request, signature and all. */
function azureError(what: string, error: unknown): Error {
  const { statusCode: status, code: ownCode, message, response } = error as Partial<RestError>;
  if (status === 416) return new RangeBeyondEnd();
  const code = ownCode ?? response?.headers.get('x-ms-error-code'); // the answer to HEAD has no body that tells it
  return cloudError(what, { status, code, ...(code === 'EGRESS_REFUSED' && { detail: message ?? code }) });
}

function objectInfo(key: string, sizeBytes: number, etag = '', lastModified?: Date): ObjectInfo {
  // Listings give the etag bare, headers in quotes.
  return { key, sizeBytes, etag: etag.replace(/^"|"$/g, ''), modifiedDate: lastModified ?? null };
}

function uint32(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(value);
  return bytes;
}
