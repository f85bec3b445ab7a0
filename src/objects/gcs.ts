import { createHash } from 'node:crypto';
import { Readable } from 'node:stream';
import { setTimeout as delay } from 'node:timers/promises';
import { md5Check } from './checksum.ts';
import { cloudError } from './cloud-errors.ts';
import { type CloudRequest, type CloudResponse, connectionFailure, readText, sendRequest } from './cloud-request.ts';
import { type CloudAccess, guardedAgents } from './egress.ts';
import { parseJson, type ServiceAccount, tokenSource } from './gcs-token.ts';
import { defaultIdleTimeoutMs, IdleTimeout, readWithIdleTimeout, withIdleTimeout } from './idle.ts';
import { type Part, parts, slices } from './parts.ts';
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

/** Where the bucket is, and who asks: members of a GCS credential (decisions §5). */
export interface GcsSettings extends ServiceAccount {
  bucket: string;
  /** Origin that serves the JSON API instead of Google, and tokens at its `/token`. */
  endpoint?: string | undefined;
}

/** 8 MiB a request: what an upload holds in memory; a multiple of 256 KiB, as the service demands. */
const partBytes = 8 * 1024 * 1024;
/** 3 tries of a part, each after asking how much of the one before arrived. */
const partTries = 3;

/** An object as the JSON API describes it; sizes and generations are strings there. */
interface ObjectResource {
  name: string;
  size: string;
  generation: string;
  updated?: string;
  md5Hash?: string;
}
const resourceFields = 'name,size,generation,updated,md5Hash';

/**
 * Opens a bucket of Google Cloud Storage by its JSON API. Written on plain HTTP: Google's own client takes its agents
 * from a pool shared by the whole process, where no guard of one credential can stand.
 * Connects to nothing yet. Etags are generations.
 */
export function openGcsStore(settings: GcsSettings, access: CloudAccess): ObjectStore {
  return new GcsStore(settings, access);
}

class GcsStore implements ObjectStore {
  readonly description: string;
  readonly #agents: ReturnType<typeof guardedAgents>;
  readonly #token: ReturnType<typeof tokenSource>;
  readonly #tokenUrl: URL;
  readonly #base: string;
  readonly #bucket: string;
  readonly #idleTimeoutMs: number;

  constructor(settings: GcsSettings, { allowedOrigins, idleTimeoutMs = defaultIdleTimeoutMs, lookup }: CloudAccess) {
    const { bucket, endpoint } = settings;
    this.description = `gs://${bucket}`;
    this.#idleTimeoutMs = idleTimeoutMs;
    this.#agents = guardedAgents({ provider: 'GCS', endpoint, allowedOrigins }, lookup && { lookup });
    this.#base = (endpoint ?? 'https://storage.googleapis.com').replace(/\/$/, '');
    this.#bucket = encodeURIComponent(bucket);
    const google = new URL(this.#base).hostname.endsWith('.googleapis.com');
    this.#tokenUrl = new URL(google ? 'https://oauth2.googleapis.com/token' : `${this.#base}/token`);
    this.#token = tokenSource(settings, this.#tokenUrl);
  }

  async *list({ prefix, signal }: ListOptions = {}): AsyncGenerator<ObjectInfo[]> {
    let pageToken: string | undefined;
    do {
      const url = this.#url('/storage/v1/b', 'o', {
        maxResults: 1000,
        fields: `nextPageToken,items(${resourceFields})`,
        prefix: prefix || undefined,
        pageToken,
      });
      const text = await this.#text(this.description, { method: 'GET', url }, signal);
      const page = (parseJson(text) ?? {}) as { items?: unknown[]; nextPageToken?: string };
      const resources = (page.items ?? []).map((item) => objectResource(this.description, item));
      if (resources.length > 0) yield resources.map(objectInfo);
      pageToken = page.nextPageToken;
    } while (pageToken);
  }

  async head(key: string, { signal }: { signal?: AbortSignal } = {}): Promise<ObjectInfo> {
    const url = this.#objectUrl(key, { fields: resourceFields });
    const text = await this.#text(this.#what(key), { method: 'GET', url }, signal);
    return objectInfo(objectResource(this.#what(key), parseJson(text)));
  }

  async read(key: string, options: ReadOptions = {}): Promise<Readable> {
    const { start = 0, end, ifMatch, signal } = options;
    const what = this.#what(key);
    const versioned = ifMatch === undefined || /^\d+$/.test(ifMatch);
    if (!versioned || (end !== undefined && end < start)) return this.#emptyRead(key, options);
    const url = this.#objectUrl(key, { alt: 'media', ifGenerationMatch: ifMatch });
    // Stored as gzip, an object is sent as it is instead of unpacked only to a client that says it takes gzip.
    const headers = { 'accept-encoding': 'gzip', range: `bytes=${start}-${end ?? ''}` };
    const whole = start === 0 && end === undefined;
    try {
      const request = { method: 'GET' as const, url, headers: whole ? { 'accept-encoding': 'gzip' } : headers };
      const response = await this.#call(what, request, signal, async (answer) => answer);
      const md5 = whole && /md5=([\w+/]+=*)/.exec(response.headers['x-goog-hash']?.toString() ?? '')?.[1];
      return readWithIdleTimeout(response, {
        what,
        sizeBytes: announcedBytes(response, whole),
        idleTimeoutMs: this.#idleTimeoutMs,
        signal,
        ...(md5 && { check: md5Check(what, Buffer.from(md5, 'base64')) }),
      });
    } catch (error) {
      if (error instanceof RangeBeyondEnd) return this.#emptyRead(key, options);
      // A version of an object that is not there at all: a server may compare first and look afterwards.
      if (error instanceof ObjectError && error.kind === 'changed') await this.head(key, signal && { signal });
      throw error;
    }
  }

  async write(key: string, body: Body, options: WriteOptions = {}): Promise<ObjectInfo> {
    const { sizeBytes, signal, onProgress } = options;
    const endBody = takeBody(body, signal);
    let session: URL | undefined;
    try {
      checkName(key);
      const md5 = createHash('md5');
      let written: ObjectResource | undefined;
      for await (const part of parts(body, { key, partBytes, sizeBytes })) {
        md5.update(part.bytes);
        session ??= await this.#startUpload(key, options);
        written = await this.#sendPart(key, session, part, signal);
        if (!part.last) onProgress?.(part.start + part.bytes.length);
      }
      session = undefined;
      if (!written) throw new ObjectError('transient', `${this.#what(key)}: the upload was not completed.`);
      if (written.md5Hash !== undefined && written.md5Hash !== md5.digest('base64')) {
        await this.#remove(key, { ifGenerationMatch: written.generation }, signal);
        throw new ObjectError('transient', `${this.#what(key)} arrived with a wrong checksum.`);
      }
      const info = objectInfo(written);
      onProgress?.(info.sizeBytes);
      return info;
    } catch (error) {
      if (session) await this.#cancelUpload(key, session);
      throw error;
    } finally {
      endBody();
    }
  }

  async delete(key: string, { signal }: { signal?: AbortSignal } = {}): Promise<void> {
    checkName(key);
    await this.#remove(key, {}, signal);
  }

  async presignRead(): Promise<null> {
    return null;
  }

  async check({ signal }: { signal?: AbortSignal } = {}): Promise<void> {
    const url = this.#url('/storage/v1/b', 'o', { maxResults: 1, fields: 'nextPageToken' });
    await this.#text(this.description, { method: 'GET', url }, signal);
  }

  async close(): Promise<void> {
    this.#agents.close();
  }

  /** Opens a resumable upload: nothing is visible until its last part has arrived. */
  #startUpload(key: string, { contentType, sizeBytes, signal }: WriteOptions): Promise<URL> {
    const url = this.#url('/upload/storage/v1/b', 'o', { uploadType: 'resumable', fields: resourceFields });
    const headers = {
      'content-type': 'application/json',
      ...(contentType !== undefined && { 'x-upload-content-type': contentType }),
      ...(sizeBytes !== undefined && { 'x-upload-content-length': sizeBytes }),
    };
    const bytes = Buffer.from(JSON.stringify({ name: key, contentType }));
    return this.#call(this.#what(key), { method: 'POST', url, headers, bytes }, signal, async (answer) => {
      answer.resume();
      return new URL(answer.headers.location ?? '', url);
    });
  }

  /** Sends a part; what of it did not arrive, again. The object's resource after the last one. */
  async #sendPart(
    key: string,
    session: URL,
    { bytes, start, last }: Part,
    signal: AbortSignal | undefined,
  ): Promise<ObjectResource | undefined> {
    const end = start + bytes.length;
    const total = last ? end : '*';
    /** Bytes of the object that have arrived; unknown after a failure. */
    let arrived: number | null = start;
    for (let tries = 1; tries <= partTries; ) {
      const rest = arrived === null ? Buffer.alloc(0) : bytes.subarray(arrived - start);
      const range = arrived === null ? '*/*' : rest.length === 0 ? `*/${total}` : `${arrived}-${end - 1}/${total}`;
      try {
        const answer = await this.#put(key, session, rest, `bytes ${range}`, signal);
        if (typeof answer !== 'number') return answer;
        if (answer === end && !last) return undefined;
        if (answer < start || answer > end) break;
        if (arrived !== null) tries++;
        arrived = answer;
      } catch (error) {
        const again = error instanceof ObjectError && error.kind === 'transient' && !(error instanceof IdleTimeout);
        if (!again || tries++ === partTries) throw error;
        await delay(Math.random() * 200 * 2 ** tries, undefined, { signal }).catch(() => signal?.throwIfAborted());
        arrived = null;
      }
    }
    throw cloudError(this.#what(key), { code: 'incomplete upload' });
  }

  /** One request of an upload: how many bytes of the object have arrived by then, or the object once it is complete. */
  #put(
    key: string,
    session: URL,
    bytes: Buffer,
    range: string,
    signal: AbortSignal | undefined,
  ): Promise<ObjectResource | number> {
    const headers = { 'content-range': range };
    const request = { method: 'PUT' as const, url: session, headers, bytes };
    return this.#call(this.#what(key), request, signal, async (answer, progress) => {
      const text = await readText(answer, progress);
      if (answer.statusCode !== 308) return objectResource(this.#what(key), parseJson(text));
      const last = /^bytes=0-(\d+)$/.exec(answer.headers.range ?? '')?.[1];
      return last === undefined ? 0 : Number(last) + 1;
    });
  }

  /** Tells the service to drop what it holds; of no consequence where that fails, for it forgets by itself. */
  async #cancelUpload(key: string, session: URL): Promise<void> {
    const request = { method: 'DELETE' as const, url: session };
    // 5 s: whoever aborted is waiting.
    await this.#text(this.#what(key), request, AbortSignal.timeout(5000)).catch(() => {});
  }

  async #remove(key: string, query: Query, signal: AbortSignal | undefined): Promise<void> {
    try {
      await this.#text(this.#what(key), { method: 'DELETE', url: this.#objectUrl(key, query) }, signal);
    } catch (error) {
      if (!(error instanceof ObjectError && error.kind === 'not-found')) throw error;
    }
  }

  /** An empty stream for a range past the end of an object that is there, in the version asked for. */
  async #emptyRead(key: string, { ifMatch, signal }: ReadOptions): Promise<Readable> {
    const { etag } = await this.head(key, signal && { signal });
    if (ifMatch !== undefined && ifMatch !== etag) throw cloudError(this.#what(key), { status: 412 });
    return Readable.from([]);
  }

  #what(key: string): string {
    return `${JSON.stringify(key)} in ${this.description}`;
  }

  #url(path: string, below: string, query: Query): URL {
    const url = new URL(`${this.#base}${path}/${this.#bucket}/${below}`);
    for (const [name, value] of Object.entries(query)) {
      if (value !== undefined) url.searchParams.set(name, String(value));
    }
    return url;
  }

  #objectUrl(key: string, query: Query): URL {
    checkName(key);
    return this.#url('/storage/v1/b', `o/${encodeURIComponent(key)}`, query);
  }

  #text(what: string, request: Ask, signal: AbortSignal | undefined): Promise<string> {
    return this.#call(what, request, signal, readText);
  }

  /** One request with a token; once more with a new one where the service does not take the old. */
  #call<T>(what: string, ask: Ask, signal: AbortSignal | undefined, take: Take<T>): Promise<T> {
    return withIdleTimeout({ what, idleTimeoutMs: this.#idleTimeoutMs, signal }, async (stop, progress) => {
      try {
        for (let tries = 1; ; tries++) {
          const token = await this.#accessToken(stop, progress);
          const headers = { ...ask.headers, authorization: `Bearer ${token}` };
          const answer = await this.#send({ ...ask, headers }, stop, progress);
          const { statusCode: status } = answer;
          if (status === 308 || (status >= 200 && status < 300)) return await take(answer, progress);
          answer.resume();
          if (status === 416) throw new RangeBeyondEnd();
          // Asked for no object, it is the bucket that is not there.
          const code = status === 404 && ask.url.pathname.endsWith('/o') ? 'BucketNotFound' : undefined;
          if (status !== 401 || tries > 1) throw cloudError(what, { status, code });
          this.#token.forget();
        }
      } catch (error) {
        if (error instanceof ObjectError || error instanceof RangeBeyondEnd) throw error;
        throw cloudError(what, connectionFailure(error));
      }
    });
  }

  #send({ bytes, headers, ...ask }: Ask, signal: AbortSignal, progress: () => void): Promise<CloudResponse> {
    if (!bytes) return sendRequest(this.#agents, { ...ask, headers: headers ?? {}, signal });
    const sized = { ...headers, 'content-length': bytes.length };
    return sendRequest(this.#agents, { ...ask, headers: sized, body: slices(bytes, progress), signal });
  }

  #accessToken(signal: AbortSignal, progress: () => void): Promise<string> {
    return this.#token.get(async (form) => {
      const headers = { 'content-type': 'application/x-www-form-urlencoded' };
      const ask = { method: 'POST' as const, url: this.#tokenUrl, headers, bytes: Buffer.from(form) };
      const answer = await this.#send(ask, signal, progress);
      return { status: answer.statusCode, text: await readText(answer, progress) };
    });
  }
}

type Query = Record<string, string | number | undefined>;
type Ask = Omit<CloudRequest, 'signal' | 'body'> & { bytes?: Buffer };
type Take<T> = (answer: CloudResponse, progress: () => void) => Promise<T>;

/** Bytes that the body must have; the stored size counts, should anybody on the way have packed them. */
function announcedBytes({ headers }: CloudResponse, whole: boolean): number | undefined {
  const announced = (whole ? headers['x-goog-stored-content-length'] : undefined) ?? headers['content-length'];
  return announced === undefined ? undefined : Number(announced);
}

/** The range starts behind the object's last byte. */
class RangeBeyondEnd extends Error {}

/** Refuses keys that a URL would resolve as dot segments; the service does not hold them either. */
function checkName(key: string): void {
  checkKey(key);
  if (key === '.' || key === '..' || /[\r\n]/.test(key)) {
    throw new ObjectError('invalid-key', `Google Cloud Storage cannot hold the object key ${JSON.stringify(key)}.`);
  }
}

/** The value as a resource; `failed` where the service answered something else. */
function objectResource(what: string, value: unknown): ObjectResource {
  const resource = (value ?? {}) as Partial<Record<keyof ObjectResource, unknown>>;
  const texts = [resource.name, resource.size, resource.generation];
  if (texts.every((text) => typeof text === 'string')) return value as ObjectResource;
  throw new ObjectError('failed', `${what}: the answer is not that of Google Cloud Storage.`);
}

function objectInfo({ name, size, generation, updated }: ObjectResource): ObjectInfo {
  return {
    key: name,
    sizeBytes: Number(size),
    etag: generation,
    modifiedDate: updated === undefined ? null : new Date(updated),
  };
}
