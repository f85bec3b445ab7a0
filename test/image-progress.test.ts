import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { newId } from '../src/lib/id.ts';
import { createS3Credential, createStudy, ended, filesOf, ProgressClient, png, s3Keys } from './image-jobs.ts';
import { startS3Server } from './peers/s3-server.ts';
import { eventually, type Json, startService, useService } from './service.ts';

const s3 = await startS3Server({ ...s3Keys, buckets: ['scans'] });
afterAll(() => s3.close());
const service = useService({ SDS_CLOUD_ENDPOINTS: s3.url, SDS_WORKERS: '4' });
let credentialId = '';
let token = '';
beforeAll(async () => {
  credentialId = await createS3Credential(service, s3.url, 'scans');
  ({ token } = await service.client());
});

/** Puts an object into the bucket as a client of it would. */
async function put(key: string, content: Buffer): Promise<void> {
  const { openS3Store } = await import('../src/objects/s3.ts');
  const store = openS3Store({ bucket: 'scans', endpoint: s3.url, forcePathStyle: true, credentials: s3Keys });
  const { Readable } = await import('node:stream');
  await store.write(key, Readable.from([content]), { sizeBytes: content.length });
  await store.close();
}

let count = 0;
/** Starts an ingest of `n` files: the last waits for `letGo`, the others for `letRun` where `watched` (otherwise for nothing). */
async function startHeld(n: number, { watched = false } = {}) {
  const folder = `job-${++count}/`;
  const names = Array.from({ length: n }, (_, i) => `${folder}${String(i).padStart(4, '0')}.png`);
  for (const [i, name] of names.entries()) await put(name, png(1000 * count + i));
  const hold = (held: string[]) =>
    s3.faults.add({ on: 'get', does: 'hang', key: (key) => held.includes(key), times: Number.POSITIVE_INFINITY });
  const others = hold(watched ? names.slice(0, -1) : []);
  const last = hold(names.slice(-1));
  const studyId = await createStudy(service);
  const { body: job } = await service.call('POST', '/image/jobs:ingest', { studyId, credentialId, prefix: folder });
  return { jobId: job.jobId as string, letRun: () => others.remove(), letGo: () => last.remove() };
}

const done = (jobId: string, n: number) =>
  eventually(async () => {
    const { body } = await service.call('GET', `/image/jobs/${jobId}`);
    return body.files.completed >= n && body;
  });

const watch = (jobId: string, lastEventId?: string) => new ProgressClient(service, token, jobId, lastEventId);

describe('the stream of a running job', () => {
  test('tells first how far it is, then every file, and ends with the final record', async () => {
    const { jobId, letGo } = await startHeld(3);
    await done(jobId, 2);
    await eventually(async () => (await filesOf(service, jobId)).some(({ status }) => status === 'RUNNING'));
    const client = watch(jobId);
    await eventually(async () => client.events.length > 0);
    expect(client.status).toBe(200);
    expect(client.headers.get('content-type')).toBe('text/event-stream; charset=utf-8');
    expect(client.headers.get('cache-control')).toBe('no-store, no-transform');
    expect(client.headers.get('x-accel-buffering')).toBe('no');
    expect(client.retryMs).toBe(2000);
    expect(client.events[0]).toMatchObject({
      event: 'progress',
      data: { jobId, status: 'RUNNING', files: { total: 3, completed: 2 } },
    });
    expect(client.events[0]?.data).toHaveProperty('bytesPerSecond');
    expect(client.events[0]?.data).toHaveProperty('etaSeconds');
    letGo();
    await client.closed;
    expect(client.named('file').map(({ data }) => data.status)).toEqual(['COMPLETED']);
    const { body: job } = await service.call('GET', `/image/jobs/${jobId}`);
    expect(client.last).toMatchObject({ event: 'end', data: job });
    expect(client.named('end').length).toBe(1);
    const ids = client.events.map(({ id }) => id);
    expect(ids).toEqual([...new Set(ids)].sort((a, b) => a - b));
  });

  test('resumes after any event without a gap and without a repetition', async () => {
    const { jobId, letRun, letGo } = await startHeld(40, { watched: true });
    const first = watch(jobId);
    await eventually(async () => first.events.length > 0);
    letRun();
    await eventually(async () => first.events.length > 2);
    first.disconnect();
    await done(jobId, 39);
    for (const from of [0, 1, first.events.length - 1]) {
      const seen = new Map<string, Json>();
      const before = first.events.slice(0, from + 1);
      const resumed = watch(jobId, String(before.at(-1)?.id));
      await resumed.opened;
      if (from === 0) setTimeout(letGo, 50);
      await resumed.closed;
      for (const { event, data } of [...before, ...resumed.events]) if (event === 'file') seen.set(data.fileId, data);
      expect(resumed.events.every(({ id }) => id > (before.at(-1)?.id ?? 0))).toBe(true);
      const after = new Set(resumed.named('file').map(({ data }) => data.fileId));
      // Files of which the stream told before it was left have their last state, too.
      const files = (await filesOf(service, jobId)).filter(({ fileId }) => seen.has(fileId) || after.has(fileId));
      expect([...seen.values()].sort((a, b) => (a.name < b.name ? -1 : 1))).toEqual(files);
      expect(resumed.last).toMatchObject({ event: 'end', data: { status: 'COMPLETED' } });
    }
    // From the very beginning: every file.
    const all = watch(jobId, '0');
    await all.closed;
    expect(
      all
        .named('file')
        .map(({ data }) => data.name)
        .sort(),
    ).toEqual((await filesOf(service, jobId)).map(({ name }) => name));
  });

  test('tells at most 4 progress events a second', async () => {
    const { jobId, letRun, letGo } = await startHeld(60, { watched: true });
    const from = performance.now();
    const client = watch(jobId);
    await eventually(async () => client.events.length > 0);
    letRun();
    letGo();
    await client.closed;
    // The whole time of the stream, so that a slow way of the events to here proves nothing.
    const seconds = (performance.now() - from) / 1000;
    expect(client.named('file').filter(({ data }) => data.status === 'COMPLETED')).toHaveLength(60);
    expect(client.named('progress').length).toBeLessThanOrEqual(1 + 4 * seconds);
  });

  test('comes to watchers on every node', async () => {
    const { jobId, letGo } = await startHeld(2);
    const other = await startService({ SDS_DATABASE_URL: service.databaseUrl, SDS_WORKERS: '0' });
    try {
      const client = new ProgressClient(other, token, jobId);
      await client.opened;
      await done(jobId, 1);
      letGo();
      await client.closed;
      expect(client.last).toMatchObject({ event: 'end', data: { status: 'COMPLETED' } });
    } finally {
      await other.close();
    }
  });

  test('comes to hundreds of watchers at once', async () => {
    const { jobId, letGo } = await startHeld(2);
    const clients = Array.from({ length: 200 }, () => watch(jobId));
    await Promise.all(clients.map(({ opened }) => opened));
    await eventually(async () => clients.every(({ events }) => events.length > 0));
    letGo();
    await Promise.all(clients.map(({ closed }) => closed));
    expect(clients.every(({ last }) => last?.event === 'end')).toBe(true);
  });

  test('is on record once as a read of the job', async () => {
    const { jobId, letGo } = await startHeld(1);
    const client = watch(jobId);
    await client.opened;
    letGo();
    await client.closed;
    await eventually(async () => {
      const { body } = await service.call('GET', `/audit/events?resourceId=${jobId}&event=CLIENT_ACCESSED_STUDY`);
      return body.items.filter(({ path }: Json) => path.endsWith(':streamProgress')).length === 1;
    });
  });
});

describe('the stream of a job that has ended', () => {
  test('is its end alone; with the id of that end 204, until a retry makes new events', async () => {
    const { jobId, letGo } = await startHeld(1);
    await service.call('POST', `/image/jobs/${jobId}:cancel`);
    const job = await ended(service, jobId);
    expect(job).toMatchObject({ status: 'FAILED', errorMessage: 'The job was cancelled.' });
    letGo();
    const client = watch(jobId);
    await client.closed;
    expect(client.events.map(({ event, data }) => [event, data])).toEqual([['end', job]]);
    const id = String(client.last?.id);
    const again = watch(jobId, id);
    await again.closed;
    expect(again.status).toBe(204);
    const path = `/image/jobs/${jobId}:streamProgress`;
    const head = await service.call('HEAD', path, undefined, { headers: { 'last-event-id': id } });
    expect([head.status, head.headers.get('content-length')]).toEqual([204, null]);

    await service.call('POST', `/image/jobs/${jobId}:retry`);
    const retried = watch(jobId, id);
    await retried.closed;
    expect(retried.status).toBe(200);
    expect(retried.named('file').at(-1)?.data.status).toBe('COMPLETED');
    expect(retried.last).toMatchObject({ event: 'end', data: { status: 'COMPLETED', attempt: 2 } });
  });
});

describe('a stream', () => {
  test('of no job is 404, with a malformed Last-Event-ID 400, without the scope 403', async () => {
    expect((await service.call('GET', `/image/jobs/${newId()}:streamProgress`)).status).toBe(404);
    const { jobId, letGo } = await startHeld(1);
    letGo();
    const path = `/image/jobs/${jobId}:streamProgress`;
    const malformed = await service.call('GET', path, undefined, { headers: { 'last-event-id': 'x' } });
    expect([malformed.status, malformed.body.errors[0].header]).toEqual([400, 'Last-Event-ID']);
    // Whatever is wrong is told at once, and before the job is looked for.
    const nowhere = path.replace(jobId, newId());
    const both = await service.call('GET', `${nowhere}?after=1`, undefined, { headers: { 'last-event-id': 'x' } });
    expect(both.status).toBe(400);
    expect(both.body.errors).toEqual([
      { parameter: 'after', detail: expect.any(String) },
      { header: 'Last-Event-ID', detail: expect.any(String) },
    ]);
    const { token: other } = await service.client('Study:Read');
    expect((await service.call('GET', path, undefined, { token: other })).status).toBe(403);
  });

  test('has no Content-Length, to HEAD neither', async () => {
    const { jobId, letGo } = await startHeld(1);
    const { status, headers } = await service.call('HEAD', `/image/jobs/${jobId}:streamProgress`);
    letGo();
    expect([status, headers.get('content-type')]).toEqual([200, 'text/event-stream; charset=utf-8']);
    expect(headers.get('content-length')).toBeNull();
  });

  test('ends when its client is disabled', async () => {
    const { jobId, letGo } = await startHeld(1);
    const { clientId, token: other } = await service.client('Image:Read');
    const client = new ProgressClient(service, other, jobId);
    await client.opened;
    await service.pool.query('update clients set disabled = true where client_id = $1', [clientId]);
    await client.closed;
    expect(client.named('end')).toEqual([]);
    letGo();
  });

  test('ends when its token expires', async () => {
    const brief = await startService({ SDS_DATABASE_URL: service.databaseUrl, SDS_WORKERS: '0', SDS_TOKEN_TTL_S: '2' });
    const { jobId, letGo } = await startHeld(1);
    try {
      const { clientId, clientSecret } = await service.client('Image:Read');
      const response = await fetch(`${brief.url}/oauth/token`, {
        method: 'POST',
        body: new URLSearchParams({
          grant_type: 'client_credentials',
          client_id: clientId,
          client_secret: clientSecret,
        }),
      });
      const { access_token } = (await response.json()) as { access_token: string };
      const client = new ProgressClient(brief, access_token, jobId);
      await client.opened;
      await client.closed;
      expect([client.status, client.named('end')]).toEqual([200, []]);
    } finally {
      letGo();
      await brief.close();
    }
  });
});
