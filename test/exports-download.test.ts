import { createHash } from 'node:crypto';
import { mkdtemp, readdir, readlink, rm, truncate, writeFile } from 'node:fs/promises';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { exportStudy, fetchFile, makeStudy } from './exports-study.ts';
import { eventually, type Json, useService } from './service.ts';

const objects = await mkdtemp(join(tmpdir(), 'sds-objects-'));
afterAll(() => rm(objects, { recursive: true, force: true }));
const service = useService({ SDS_OBJECT_STORE: `file:${objects}` });

let job: Json;
let token: string;
let whole: Buffer;
let url: string;
beforeAll(async () => {
  const { studyId } = await makeStudy(service);
  await service.call('PUT', `/studies/${studyId}`, { name: 'Größe: 50 % of "A/B" → 😀' });
  job = await exportStudy(service, studyId, 'JSON');
  ({ token } = await service.client('Study:Read'));
  url = job.download.downloadUrl;
  whole = Buffer.from(await (await get()).arrayBuffer());
});

const get = (headers: Record<string, string> = {}, method = 'GET') =>
  fetchFile(service, url, { method, headers, token });
const bytesOf = async (response: Response) => Buffer.from(await response.arrayBuffer());

test('is the file, with its size, type, tag and a name that a person recognises', async () => {
  const response = await get();
  expect(response.status).toBe(200);
  expect(Object.fromEntries(response.headers)).toMatchObject({
    'content-length': String(job.fileSizeBytes),
    'content-type': 'application/json',
    etag: `"${job.sha256}"`,
    'accept-ranges': 'bytes',
    'last-modified': new Date(job.completedDate).toUTCString(),
    'cache-control': 'private, no-cache',
    'x-content-type-options': 'nosniff',
  });
  const day = job.completedDate.slice(0, 10);
  expect(response.headers.get('content-disposition')).toBe(
    `attachment; filename="Gr__e 50 _ of A B _ _ ${day}.json"; ` +
      `filename*=UTF-8''Gr%C3%B6%C3%9Fe%2050%20%25%20of%20A%20B%20%E2%86%92%20%F0%9F%98%80%20${day}.json`,
  );
  const bytes = await bytesOf(response);
  expect(createHash('sha256').update(bytes).digest('hex')).toBe(job.sha256);
});

test('XLSX has its media type', async () => {
  const xlsx = await exportStudy(service, job.studyId, 'XLSX');
  const response = await fetchFile(service, xlsx.download.downloadUrl, { token });
  expect(response.headers.get('content-type')).toBe(
    'application/vnd.openxmlformats-officedocument.spreadsheetml.sheet',
  );
  expect(response.headers.get('content-disposition')).toMatch(/\.xlsx"; filename\*=.*\.xlsx$/);
  expect((await bytesOf(response)).length).toBe(xlsx.fileSizeBytes);
});

describe('a range', () => {
  test.each([
    ['bytes=0-9', 0, 9],
    ['bytes=100-', 100, -1],
    ['bytes=-100', -100, -1],
    ['bytes=5-999999999999', 5, -1],
  ])('%s is answered with 206 and those bytes alone', async (range, first, last) => {
    const response = await get({ range });
    const start = first < 0 ? whole.length + first : first;
    const end = last < 0 ? whole.length - 1 : last;
    expect(response.status).toBe(206);
    expect(response.headers.get('content-range')).toBe(`bytes ${start}-${end}/${whole.length}`);
    expect(response.headers.get('content-length')).toBe(String(end - start + 1));
    expect((await bytesOf(response)).equals(whole.subarray(start, end + 1))).toBe(true);
  });

  test('past the end is 416 with the size', async () => {
    const response = await get({ range: `bytes=${whole.length}-` });
    expect(response.status).toBe(416);
    expect(response.headers.get('content-range')).toBe(`bytes */${whole.length}`);
    expect(response.headers.get('content-type')).toContain('application/problem+json');
    expect(await response.json()).toMatchObject({ type: '/errors/range-not-satisfiable', status: 416 });
  });

  test('several at once, or none that can be read, get the whole', async () => {
    for (const range of ['bytes=0-1,5-6', 'bytes=9-2', 'chapters=1-2']) {
      const response = await get({ range });
      expect(response.status).toBe(200);
      expect((await bytesOf(response)).length).toBe(whole.length);
    }
  });

  test('holds under If-Range for this file only: otherwise the whole is sent', async () => {
    const range = 'bytes=0-9';
    const status = async (ifRange: string) => (await get({ range, 'if-range': ifRange })).status;
    expect(await status(`"${job.sha256}"`)).toBe(206);
    expect(await status(new Date(job.completedDate).toUTCString())).toBe(206);
    expect(await status('"another"')).toBe(200);
    expect(await status(`W/"${job.sha256}"`)).toBe(200);
    expect(await status('Thu, 01 Jan 2026 00:00:00 GMT')).toBe(200);
  });

  test('a download that broke off goes on where it was', async () => {
    const half = Math.floor(whole.length / 2);
    const rest = await get({ range: `bytes=${half}-`, 'if-range': `"${job.sha256}"` });
    expect(Buffer.concat([whole.subarray(0, half), await bytesOf(rest)]).equals(whole)).toBe(true);
  });
});

describe('conditions', () => {
  test('If-None-Match of this file is 304 without a body', async () => {
    for (const tag of [`"${job.sha256}"`, `W/"${job.sha256}"`, `"x", "${job.sha256}"`, '*']) {
      const response = await get({ 'if-none-match': tag });
      expect([response.status, await response.text(), response.headers.get('etag')]).toEqual([
        304,
        '',
        `"${job.sha256}"`,
      ]);
    }
    expect((await get({ 'if-none-match': '"another"' })).status).toBe(200);
  });

  test('304 has no Content-Length other than that of the file, to GET and to HEAD', async () => {
    const since = { 'if-modified-since': new Date(job.completedDate).toUTCString() };
    for (const headers of [{ 'if-none-match': '*' }, since]) {
      for (const method of ['GET', 'HEAD']) {
        const response = await get(headers, method);
        expect([response.status, response.headers.get('etag')]).toEqual([304, `"${job.sha256}"`]);
        expect([null, String(whole.length)], method).toContain(response.headers.get('content-length'));
      }
    }
  });

  test('If-Modified-Since counts only without If-None-Match', async () => {
    const since = { 'if-modified-since': new Date(job.completedDate).toUTCString() };
    expect((await get(since)).status).toBe(304);
    expect((await get({ ...since, 'if-none-match': '"another"' })).status).toBe(200);
    expect((await get({ 'if-modified-since': 'Thu, 01 Jan 2026 00:00:00 GMT' })).status).toBe(200);
  });

  test('If-Match of another file is 412', async () => {
    expect((await get({ 'if-match': `"${job.sha256}"` })).status).toBe(200);
    expect((await get({ 'if-match': '"another"' })).status).toBe(412);
    expect((await get({ 'if-match': `W/"${job.sha256}"` })).status).toBe(412);
  });
});

test('HEAD tells what GET would, without a byte of it', async () => {
  const response = await get({ range: 'bytes=0-9' }, 'HEAD');
  expect(response.status).toBe(200);
  expect(response.headers.get('content-length')).toBe(String(whole.length));
  expect(response.headers.get('etag')).toBe(`"${job.sha256}"`);
  expect(await response.text()).toBe('');
});

test('several downloads at once are all whole', async () => {
  const all = await Promise.all(Array.from({ length: 20 }, async () => bytesOf(await get())));
  expect(all.every((bytes) => bytes.equals(whole))).toBe(true);
});

test('every download leaves one event, before its first byte', async () => {
  const count = async () => {
    const { body } = await service.call('GET', `/audit/events?resourceId=${job.exportId}&event=CLIENT_STUDY_EXPORT`);
    return body.paging.totalItems as number;
  };
  const before = await count();
  const response = await get({ range: 'bytes=0-0' });
  expect(await count()).toBe(before + 1);
  await response.arrayBuffer();
  await get({}, 'HEAD');
  expect(await count()).toBe(before + 2);
});

describe('a file that is large', () => {
  /** 64 MiB: more than all buffers on the way hold. */
  const size = 64 * 2 ** 20;
  let path: string;
  let large: Json;
  beforeAll(async () => {
    large = await exportStudy(service, job.studyId, 'JSON');
    path = await storedFile(large.exportId);
    const content = Buffer.alloc(size, 'x');
    await writeFile(path, content);
    await service.pool.query('update export_jobs set file_size_bytes = $2, sha256 = $3 where export_id = $1', [
      large.exportId,
      size,
      createHash('sha256').update(content).digest('hex'),
    ]);
  });

  test('is sent whole to a slow reader, while others are served', async () => {
    const response = await fetchFile(service, large.download.downloadUrl, { token });
    const reader = response.body?.getReader() as ReadableStreamDefaultReader<Uint8Array>;
    let read = (await reader.read()).value?.length ?? 0;
    expect((await bytesOf(await get())).equals(whole)).toBe(true);
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      read += value.length;
    }
    expect(read).toBe(size);
  });

  test('is closed when the client goes away', async () => {
    const openFiles = async () => {
      const fds = await readdir('/proc/self/fd');
      const targets = await Promise.all(fds.map((fd) => readlink(`/proc/self/fd/${fd}`).catch(() => '')));
      return targets.filter((target) => target.startsWith(path)).length;
    };
    const abort = new AbortController();
    const response = await fetchFile(service, large.download.downloadUrl, { token, signal: abort.signal });
    await response.body?.getReader().read();
    expect(await openFiles()).toBe(1);
    abort.abort();
    await eventually(async () => (await openFiles()) === 0);
  });

  test('whose bytes run out is broken off, never ended as if it were whole', async () => {
    const { port, hostname } = new URL(service.url);
    const socket = connect(Number(port), hostname);
    let received = 0;
    const closed = new Promise<boolean>((resolve) => socket.on('close', resolve));
    socket.write(`GET ${large.download.downloadUrl} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${token}\r\n\r\n`);
    await new Promise((resolve) => socket.once('data', resolve));
    socket.pause();
    await truncate(path, size / 2);
    socket.on('data', (chunk) => {
      received += chunk.length;
    });
    socket.on('error', () => {});
    socket.resume();
    await closed;
    expect(received).toBeLessThan(size);
  });

  test('that is not the one that was written is a fault of the server', async () => {
    const response = await fetchFile(service, large.download.downloadUrl, { token });
    expect([response.status, ((await response.json()) as Json).type]).toEqual([500, '/errors/internal']);
    await rm(path);
    const gone = await fetchFile(service, large.download.downloadUrl, { token });
    expect([gone.status, ((await gone.json()) as Json).detail]).toEqual([
      500,
      'The file is gone from the object store.',
    ]);
  });
});

/** Where the object store of the test keeps the file. */
async function storedFile(exportId: string): Promise<string> {
  const { rows } = await service.pool.query('select object_key from export_jobs where export_id = $1', [exportId]);
  return join(objects, rows[0].object_key);
}
