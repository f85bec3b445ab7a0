import { once } from 'node:events';
import { get, type IncomingMessage } from 'node:http';
import { text } from 'node:stream/consumers';
import { setTimeout } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { newId } from '../src/lib/id.ts';
import { createStudy } from './image-jobs.ts';
import { eventually, type Json } from './service.ts';
import { ingest, useWaitingJobs } from './waiting-jobs.ts';

const { service, given, asClient, body, eventsOf } = await useWaitingJobs();

describe('lists', () => {
  test('of jobs filter by study, state and type, oldest first, and their pages can be walked', async () => {
    const one = await createStudy(service);
    const client = await asClient();
    const made: string[] = [];
    for (let n = 0; n < 3; n++) {
      made.push((await client.post(ingest, { ...given, studyId: one, prefix: 'x' })).body.jobId);
    }
    await client.post(`/image/jobs/${made[1]}:cancel`);
    const list = async (query: string) => (await service.call('GET', `/image/jobs?studyId=${one}&${query}`)).body;
    const ids = (page: Json) => page.items.map(({ jobId }: Json) => jobId);
    expect(ids(await list('type=INGEST'))).toEqual(made);
    expect(ids(await list('type=TRANSFER'))).toEqual([]);
    expect(ids(await list('status=CREATED&sortDirection=DESC'))).toEqual([made[2], made[0]]);
    const page = await list('pageSize=2');
    expect(page.paging).toMatchObject({ totalItems: 3, pageSize: 2 });
    const next = await service.call('GET', page.paging.links.next.split('/api/v1')[1]);
    expect(ids(next.body)).toEqual([made[2]]);
    expect((await service.call('GET', '/image/jobs?status=QUEUED')).status).toBe(400);
    expect((await service.call('GET', '/image/jobs?studyId=x')).status).toBe(400);
  });

  test('of files sort by name, filter by state, and are 404 for no job', async () => {
    const client = await asClient();
    const files = ['c', 'a', 'b', 'e', 'd'].map((key) => ({ key }));
    const { body: job } = await client.post(ingest, body({ files }));
    const list = async (query: string) =>
      (await service.call('GET', `/image/jobs/${job.jobId}:listFiles?${query}`)).body;
    const names = (page: Json) => page.items.map(({ name }: Json) => name).join('');
    expect(names(await list(''))).toBe('abcde');
    expect(names(await list('sortDirection=DESC&sort=name&status=PENDING'))).toBe('edcba');
    expect((await list('status=FAILED')).paging.totalItems).toBe(0);
    const page = await list('pageSize=2&pageNumber=2');
    expect([names(page), page.paging.totalItems]).toEqual(['cd', 5]);
    expect((await service.call('GET', `/image/jobs/${newId()}:listFiles`)).status).toBe(404);
    expect((await service.call('GET', `/image/jobs/${newId()}`)).status).toBe(404);
    expect((await service.call('GET', '/image/jobs/short')).status).toBe(400);
  });

  test('are on record as reads of the job and its study', async () => {
    const client = await asClient();
    const { body: job } = await client.post(ingest, body());
    for (const path of ['', ':listFiles']) await service.call('GET', `/image/jobs/${job.jobId}${path}`);
    const reads = await eventually(async () => {
      const events = (await eventsOf(job.jobId)).filter(({ event }) => event === 'CLIENT_ACCESSED_STUDY');
      return events.length === 2 && events;
    });
    expect(reads.map((event) => event.studyId)).toEqual([given.studyId, given.studyId]);
  });
});

test('a client that reads slowly misses nothing', async () => {
  const client = await asClient();
  const { token } = await service.client('Image:Read');
  const files = Array.from({ length: 5_000 }, (_, n) => ({ key: `folder/${n}.svs` }));
  const { body: job } = await client.post(ingest, body({ files }));
  const request = get(`${service.url}/api/v1/image/jobs/${job.jobId}:streamProgress`, {
    headers: { authorization: `Bearer ${token}` },
  });
  const [response] = (await once(request, 'response')) as [IncomingMessage];
  // Nothing is read while 2 MB of events come to be.
  await client.post(`/image/jobs/${job.jobId}:cancel`);
  await client.post(`/image/jobs/${job.jobId}:retry`);
  await client.post(`/image/jobs/${job.jobId}:cancel`);
  await setTimeout(1_000);
  const stream = await text(response);
  const data = stream.split('\n\n').filter((block) => block.includes('event: file'));
  const last = new Map(
    data.map((block) => {
      const record = JSON.parse(block.split('data: ')[1] as string) as Json;
      return [record.fileId, record.status] as const;
    }),
  );
  expect(last.size).toBe(5_000);
  expect(new Set(last.values())).toEqual(new Set(['CANCELLED']));
  expect(stream).toMatch(/event: end\ndata: [^\n]+\n\n$/);
});
