import { copyFile, mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { newId } from '../src/lib/id.ts';
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

/** A credential of a file root. */
export async function createCredential(service: TestService, root: string): Promise<string> {
  const credentialId = newId();
  await service.pool.query(
    `insert into credentials (credential_id, name, provider, settings) values ($1, 'root', 'FILE', $2)`,
    [credentialId, JSON.stringify({ root })],
  );
  return credentialId;
}

/** A small image that is unlike every other one of another `seed`. */
export function png(seed: number, sizeBytes = 200): Buffer {
  const head = Buffer.from('89504e470d0a1a0a0000000d494844520000001000000010080200000090916836', 'hex');
  const rest = Buffer.alloc(sizeBytes - head.length);
  for (let i = 0, state = seed + 1; i < rest.length; i++) {
    state = (Math.imul(state, 1_103_515_245) + 12_345) >>> 0;
    rest[i] = state >>> 24;
  }
  return Buffer.concat([head, rest]);
}

/** Starts a job and waits for its end. */
export async function runJob(service: TestService, action: 'ingest' | 'transfer', body: Json): Promise<Json> {
  const started = await service.call('POST', `/image/jobs:${action}`, body);
  if (started.status !== 202) throw new Error(started.text);
  return ended(service, started.body.jobId);
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
