import { copyFile, mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { crc32 } from 'node:zlib';
import { eventually, type Json, type TestService } from './service.ts';

/** Real slides. */
export const wsi = '../shared/data/wsi';
export const slideFile = `${wsi}/viv-sites-multi-channel.ome.tif`;

/** A directory tree as the administrator opens it. */
export async function makeRoot(): Promise<{
  dir: string;
  put(key: string, content: string | Buffer | { copyOf: string }): Promise<void>;
  read(key: string): Promise<Buffer>;
  remove(): Promise<void>;
}> {
  const dir = await mkdtemp(join(tmpdir(), 'sds-root-'));
  return {
    dir,
    async put(key, content) {
      const path = join(dir, key);
      await mkdir(dirname(path), { recursive: true });
      if (typeof content === 'string' || Buffer.isBuffer(content)) await writeFile(path, content);
      else await copyFile(content.copyOf, path);
    },
    read: (key) => readFile(join(dir, key)),
    remove: () => rm(dir, { recursive: true, force: true }),
  };
}

export async function createStudy(service: TestService): Promise<string> {
  const { body } = await service.call('POST', '/studies', { name: 'A study with images' });
  return body.studyId;
}

async function credentialOf(service: TestService, body: Json): Promise<string> {
  const created = await service.call('POST', '/cloud/credentials', body);
  if (created.status !== 201) throw new Error(created.text);
  return created.body.credentialId;
}

/** A credential of a file root. */
export function createCredential(service: TestService, root: string): Promise<string> {
  return credentialOf(service, { name: root, provider: 'FILE', settings: { root } });
}

/** Keys of the S3 server of the tests. */
export const s3Keys = { accessKeyId: 'AKIATESTS', secretAccessKey: 'not-a-secret' };

export function createS3Credential(service: TestService, endpoint: string, bucket: string): Promise<string> {
  const { accessKeyId, secretAccessKey } = s3Keys;
  return credentialOf(service, {
    name: 's3',
    provider: 'S3',
    settings: { region: 'us-east-1', bucket, endpoint, forcePathStyle: true, accessKeyId },
    secret: { secretAccessKey },
  });
}

/** A whole file, by its chunks, that is unlike every other one of another `seed`; its pixels cannot be decoded. */
export function png(seed: number, sizeBytes = 200): Buffer {
  const head = Buffer.from('89504e470d0a1a0a0000000d494844520000001000000010080200000090916836', 'hex');
  const end = Buffer.from('0000000049454e44ae426082', 'hex');
  const pixels = Buffer.alloc(sizeBytes - head.length - 12 - end.length);
  for (let i = 0, state = seed + 1; i < pixels.length; i++) {
    state = (Math.imul(state, 1_103_515_245) + 12_345) >>> 0;
    pixels[i] = state >>> 24;
  }
  const [length, checksum] = [Buffer.alloc(4), Buffer.alloc(4)];
  length.writeUInt32BE(pixels.length);
  const typed = Buffer.concat([Buffer.from('IDAT'), pixels]);
  checksum.writeUInt32BE(crc32(typed));
  return Buffer.concat([head, length, typed, checksum, end]);
}

/** Starts a job and waits for its end. */
export async function runJob(
  service: TestService,
  action: 'ingest' | 'transfer',
  body: Json,
  seconds = 30,
): Promise<Json> {
  const started = await service.call('POST', `/image/jobs:${action}`, body);
  if (started.status !== 202) throw new Error(started.text);
  return ended(service, started.body.jobId, seconds);
}

export function ended(service: TestService, jobId: string, seconds = 30): Promise<Json> {
  return eventually(async () => {
    const { body } = await service.call('GET', `/image/jobs/${jobId}`);
    return ['COMPLETED', 'FAILED', 'PARTIAL'].includes(body.status) ? body : null;
  }, seconds);
}

/** All files of a job by name. */
export async function filesOf(service: TestService, jobId: string): Promise<Json[]> {
  const { body } = await service.call('GET', `/image/jobs/${jobId}:listFiles?pageSize=100`);
  return body.items;
}

/** One event of a stream. */
export interface StreamEvent {
  id: number;
  event: string;
  data: Json;
}

/** A client of `:streamProgress` that keeps what it gets. */
export class ProgressClient {
  readonly events: StreamEvent[] = [];
  readonly comments: string[] = [];
  status = 0;
  headers = new Headers();
  retryMs = 0;
  readonly opened: Promise<void>;
  readonly closed: Promise<void>;
  readonly #stop = new AbortController();

  constructor(service: TestService, token: string, jobId: string, lastEventId?: string) {
    const opened = this.#open(service.url, token, jobId, lastEventId);
    this.opened = opened.then(() => {});
    this.closed = opened
      .then((response) => this.#read(response))
      .catch((error: unknown) => {
        if (!this.#stop.signal.aborted) throw error;
      });
    this.closed.catch(() => {});
  }

  get last(): StreamEvent | undefined {
    return this.events.at(-1);
  }

  named(event: string): StreamEvent[] {
    return this.events.filter((one) => one.event === event);
  }

  disconnect(): void {
    this.#stop.abort();
  }

  async #open(url: string, token: string, jobId: string, lastEventId?: string): Promise<Response> {
    const response = await fetch(`${url}/api/v1/image/jobs/${jobId}:streamProgress`, {
      headers: {
        authorization: `Bearer ${token}`,
        accept: 'text/event-stream',
        ...(lastEventId === undefined ? {} : { 'last-event-id': lastEventId }),
      },
      signal: this.#stop.signal,
    });
    this.status = response.status;
    this.headers = response.headers;
    return response;
  }

  async #read(response: Response): Promise<void> {
    let rest = '';
    for await (const chunk of (response.body ?? []) as AsyncIterable<Uint8Array>) {
      rest += Buffer.from(chunk).toString('utf8');
      const blocks = rest.split('\n\n');
      rest = blocks.pop() ?? '';
      for (const block of blocks) this.#take(block);
    }
  }

  #take(block: string): void {
    const fields = new Map(block.split('\n').map((line) => line.split(/: (.*)/s).slice(0, 2) as [string, string]));
    if (fields.has('')) this.comments.push(fields.get('') ?? '');
    if (fields.has('retry')) this.retryMs = Number(fields.get('retry'));
    if (!fields.has('event')) return;
    this.events.push({
      id: Number(fields.get('id')),
      event: fields.get('event') ?? '',
      data: JSON.parse(fields.get('data') ?? 'null'),
    });
  }
}
