import { describe, expect, test } from 'vitest';
import { transaction } from '../src/db/database.ts';
import {
  claimExport,
  completeExport,
  deleteExport,
  failExport,
  giveUpExports,
  handBackExport,
} from '../src/exports/job-queries.ts';
import { type ExportStatus, exportStatuses, type Step, transitions } from '../src/exports/states.ts';
import { newId } from '../src/lib/id.ts';
import { fetchFile } from './exports-study.ts';
import { eventually, type Json, useService } from './service.ts';

// Without workers, jobs stay as they are.
const service = useService({ SDS_WORKERS: '0' });

async function newStudy(): Promise<string> {
  const { body } = await service.call('POST', '/studies', { name: 'A study to be exported' });
  await service.call('POST', `/studies/${body.studyId}/subjects`, { name: '1001' });
  return body.studyId;
}

const start = (studyId: string, format = 'JSON') => service.call('POST', `/studies/${studyId}/exports`, { format });

/** Puts a job into a state, as work would; `more` are columns and their SQL. */
async function put(exportId: string, status: ExportStatus, more: Record<string, string> = {}): Promise<void> {
  const isActive = status === 'QUEUED' || status === 'IN_PROGRESS';
  const isDone = status === 'COMPLETED';
  const columns: Record<string, string> = {
    status: `'${status}'`,
    worker_id: status === 'IN_PROGRESS' ? `'w'` : 'null',
    lease_until: status === 'IN_PROGRESS' ? `now() + interval '1 hour'` : 'null',
    completed_date: isActive ? 'null' : 'now()',
    object_key: status === 'QUEUED' ? 'null' : `'exports/${exportId}/1'`,
    file_size_bytes: isDone ? '3' : 'null',
    sha256: isDone ? `repeat('a', 64)` : 'null',
    records_written: isDone ? '2' : '0',
    total_records: isDone ? '2' : 'null',
    ...more,
  };
  const sets = Object.entries(columns).map(([column, sql]) => `${column} = ${sql}`);
  await service.pool.query(`update export_jobs set ${sets.join(', ')} where export_id = $1`, [exportId]);
}

/** Files of these exports that are to be removed. */
async function purgedKeys(...exportIds: string[]): Promise<string[]> {
  const text = `select object_key from object_purges where split_part(object_key, '/', 2) = any($1)`;
  const { rows } = await service.pool.query<{ object_key: string }>(text, [exportIds]);
  return rows.map((row) => row.object_key);
}

describe('POST exports', () => {
  test('starts a job, whose record has exactly the members of the interface', async () => {
    const studyId = await newStudy();
    const { status, body, headers } = await start(studyId, 'XLSX');
    expect(status).toBe(202);
    expect(body).toEqual({
      exportId: expect.stringMatching(/^[0-9A-Za-z]{24}$/),
      studyId,
      format: 'XLSX',
      exportStatus: { status: 'QUEUED', recordsWritten: 0, totalRecords: null },
      download: { downloadUrl: null },
      fileSizeBytes: null,
      sha256: null,
      errorMessage: null,
      createdDate: expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/),
      startedDate: null,
      completedDate: null,
    });
    expect(headers.get('location')).toBe(`/api/v1/studies/${studyId}/exports/${body.exportId}`);
    expect(Number(headers.get('retry-after'))).toBeGreaterThan(0);
    expect((await service.call('GET', `/studies/${studyId}/exports/${body.exportId}`)).body).toEqual(body);
  });

  test.each(['QUEUED', 'IN_PROGRESS'] as const)(
    'answers with the job that is %s, whatever the format',
    async (state) => {
      const studyId = await newStudy();
      const { body: first } = await start(studyId);
      await put(first.exportId, state);
      const second = await start(studyId, 'XLSX');
      expect([second.status, second.body.exportId, second.body.format]).toEqual([202, first.exportId, 'JSON']);
      expect(second.headers.get('location')).toContain(first.exportId);
      expect((await service.call('GET', `/studies/${studyId}/exports`)).body.paging.totalItems).toBe(1);
    },
  );

  test('an active job is the answer even where a start would be refused', async () => {
    const studyId = await newStudy();
    const { body: failed } = await start(studyId);
    await put(failed.exportId, 'FAILED');
    await service.pool.query(
      `insert into export_jobs (export_id, study_id, format, client_id) values ($1, $2, 'JSON', 'c')`,
      [newId(), studyId],
    );
    await service.pool.query('delete from subjects where study_id = $1', [studyId]);
    expect((await start(studyId)).status).toBe(202);
  });

  test('is 409 while a FAILED job is there, and starts one after it was deleted', async () => {
    const studyId = await newStudy();
    const { body } = await start(studyId);
    await put(body.exportId, 'FAILED');
    const refused = await start(studyId);
    expect([refused.status, refused.body.type]).toEqual([409, '/errors/conflict']);
    await service.call('DELETE', `/studies/${studyId}/exports/${body.exportId}`);
    expect((await start(studyId)).status).toBe(202);
  });

  test('is 409 at 5 jobs, and starts one after one was deleted', async () => {
    const studyId = await newStudy();
    const ids: string[] = [];
    for (let i = 0; i < 5; i++) {
      const { status, body } = await start(studyId);
      expect(status).toBe(202);
      await put(body.exportId, 'COMPLETED');
      ids.push(body.exportId);
    }
    expect(new Set(ids).size).toBe(5);
    expect((await start(studyId)).status).toBe(409);
    const { body: list } = await service.call('GET', `/studies/${studyId}/exports`);
    expect(list.items.map(({ exportId }: Json) => exportId)).toEqual(ids);
    await service.call('DELETE', `/studies/${studyId}/exports/${ids[2]}`);
    expect((await start(studyId)).status).toBe(202);
  });

  test('is 422 for a study without subjects and slides, before any 409', async () => {
    const studyId = await newStudy();
    const { body } = await start(studyId);
    await put(body.exportId, 'FAILED');
    await service.pool.query('delete from subjects where study_id = $1', [studyId]);
    const answer = await start(studyId);
    expect([answer.status, answer.body.type, answer.body.errors]).toEqual([
      422,
      '/errors/validation-failed',
      undefined,
    ]);
  });

  test.each([
    ['an unknown format', { format: 'CSV' }, '/format'],
    ['a format in small letters', { format: 'json' }, '/format'],
    ['no format', {}, '/format'],
    ['an unknown member', { format: 'JSON', formt: 'JSON' }, '/formt'],
  ])('is 400 for %s', async (_, body, pointer) => {
    const answer = await service.call('POST', `/studies/${await newStudy()}/exports`, body);
    expect([answer.status, answer.body.errors[0].pointer]).toEqual([400, pointer]);
  });

  test('50 at once make one job', async () => {
    const studyId = await newStudy();
    const answers = await Promise.all(Array.from({ length: 50 }, (_, i) => start(studyId, i % 2 ? 'XLSX' : 'JSON')));
    expect(new Set(answers.map(({ status }) => status))).toEqual(new Set([202]));
    expect(new Set(answers.map(({ body }) => body.exportId)).size).toBe(1);
    expect((await service.call('GET', `/studies/${studyId}/exports`)).body.paging.totalItems).toBe(1);
  });
});

describe('exports of what is not there', () => {
  test('are 404, and 400 where an id is malformed', async () => {
    const studyId = await newStudy();
    const other = await newStudy();
    const { body } = await start(other);
    const none = newId();
    for (const [method, path, status] of [
      ['POST', `/studies/${none}/exports`, 404],
      ['GET', `/studies/${none}/exports`, 404],
      ['GET', `/studies/${studyId}/exports/${none}`, 404],
      ['GET', `/studies/${studyId}/exports/${body.exportId}`, 404],
      ['GET', `/studies/${studyId}/exports/${none}:download`, 404],
      ['DELETE', `/studies/${studyId}/exports/${body.exportId}`, 404],
      ['GET', `/studies/${studyId}/exports/short`, 400],
      ['GET', `/studies/${studyId}/exports/short:download`, 400],
      ['DELETE', `/studies/x/exports/${none}`, 400],
    ] as const) {
      const answer = await service.call(method, path, method === 'POST' ? { format: 'JSON' } : undefined);
      expect([answer.status, method, path]).toEqual([status, method, path]);
    }
  });

  test('a deleted study takes its exports with it, the active one too', async () => {
    const studyId = await newStudy();
    const { body: done } = await start(studyId);
    await put(done.exportId, 'COMPLETED');
    const { body: active } = await start(studyId);
    await put(active.exportId, 'IN_PROGRESS');
    expect((await service.call('DELETE', `/studies/${studyId}`)).status).toBe(204);
    for (const path of ['', `/${done.exportId}`, `/${active.exportId}`, `/${done.exportId}:download`]) {
      expect((await service.call('GET', `/studies/${studyId}/exports${path}`)).status).toBe(404);
    }
    expect(await purgedKeys(done.exportId, active.exportId)).toHaveLength(2);
  });
});

describe('the list', () => {
  test('is oldest first, in the paging envelope, and takes the parameters of every list', async () => {
    const studyId = await newStudy();
    const ids: string[] = [];
    for (let i = 0; i < 3; i++) {
      const { body } = await start(studyId);
      await put(body.exportId, 'COMPLETED');
      ids.push(body.exportId);
    }
    const list = (query: string) => service.call('GET', `/studies/${studyId}/exports${query}`);
    const idsOf = ({ body }: Json) => body.items.map(({ exportId }: Json) => exportId);
    expect(idsOf(await list(''))).toEqual(ids);
    expect(idsOf(await list('?sortDirection=DESC'))).toEqual([...ids].reverse());
    const page = await list('?pageSize=2&sort=createdDate');
    expect(idsOf(page)).toEqual(ids.slice(0, 2));
    expect(page.body.paging).toMatchObject({ pageNumber: 1, pageSize: 2, totalItems: 3, links: { prev: null } });
    const next = new URL(page.body.paging.links.next);
    expect(idsOf(await list(next.search))).toEqual(ids.slice(2));
    for (const query of ['?pageSize=101', '?sort=format', '?format=JSON']) expect((await list(query)).status).toBe(400);
  });
});

describe('scopes and events', () => {
  test('starting needs Study:Write, reading and downloading Study:Read, deleting Study:Delete', async () => {
    const studyId = await newStudy();
    const { body } = await start(studyId);
    const path = `/studies/${studyId}/exports/${body.exportId}`;
    const write = await service.client('Study:Write');
    const read = await service.client('Study:Read');
    const remove = await service.client('Study:Delete');
    const status = async (token: string, method: string, at: string) =>
      (await service.call(method, at, method === 'POST' ? { format: 'JSON' } : undefined, { token })).status;
    expect(await status(write.token, 'POST', `/studies/${studyId}/exports`)).toBe(202);
    for (const token of [read.token, remove.token]) {
      expect(await status(token, 'POST', `/studies/${studyId}/exports`)).toBe(403);
    }
    for (const at of [`/studies/${studyId}/exports`, path, `${path}:download`]) {
      expect(await status(read.token, 'GET', at)).toBe(at.endsWith(':download') ? 409 : 200);
      for (const token of [write.token, remove.token]) expect(await status(token, 'GET', at)).toBe(403);
    }
    for (const token of [read.token, write.token]) expect(await status(token, 'DELETE', path)).toBe(403);
    expect(await status(remove.token, 'DELETE', path)).toBe(204);
  });

  test('every call leaves its event, with the export it concerns', async () => {
    const studyId = await newStudy();
    const { body } = await start(studyId);
    const path = `/studies/${studyId}/exports`;
    await start(studyId);
    await service.call('GET', path);
    await service.call('GET', `${path}/${body.exportId}`);
    await service.call('GET', `${path}/${body.exportId}:download`);
    await service.call('DELETE', `${path}/${body.exportId}`);
    await service.call('GET', `${path}/${body.exportId}`);
    const events = await eventually(async () => {
      const { body: list } = await service.call('GET', `/audit/events?studyId=${studyId}&pageSize=100`);
      const found = list.items.filter(({ resourceType }: Json) => resourceType === 'export');
      return found.length >= 7 && found;
    });
    const told = events.map(({ event, status, resourceId }: Json) => `${event} ${status} ${resourceId ?? '-'}`);
    const id = body.exportId;
    expect(told.sort()).toEqual(
      [
        `CLIENT_STUDY_EXPORT 202 ${id}`,
        `CLIENT_STUDY_EXPORT 202 ${id}`,
        'CLIENT_ACCESSED_STUDY 200 -',
        `CLIENT_ACCESSED_STUDY 200 ${id}`,
        `CLIENT_REQUEST_REJECTED 409 ${id}`,
        `CLIENT_STUDY_EXPORT_DELETED 204 ${id}`,
        `CLIENT_ACCESSED_STUDY_FAILURE 404 ${id}`,
      ].sort(),
    );
  });
});

describe('the states of a job', () => {
  /** Every step as the work takes it, on the job's attempt 1. */
  const steps: Record<Step, (id: string) => Promise<unknown>> = {
    claim: () => claimExport(service.pool, 'another', 60_000),
    takeOver: () => claimExport(service.pool, 'another', 60_000),
    handBack: (id) => handBackExport(service.pool, { id, attempt: 1 }),
    complete: (id) => completeExport(service.pool, { id, attempt: 1 }, { records: 2, sizeBytes: 3, sha256: 'a' }),
    fail: (id) => failExport(service.pool, { id, attempt: 1 }, 'why'),
    giveUp: () => giveUpExports(service.pool, 'why'),
  };
  /** What must hold for a step besides the state. */
  const condition: Partial<Record<Step, Record<string, string>>> = {
    takeOver: { lease_until: `now() - interval '1 s'` },
    giveUp: { lease_until: `now() - interval '1 s'`, takeovers: '3' },
  };
  const cases = Object.keys(transitions).flatMap((step) => exportStatuses.map((from) => [step as Step, from] as const));

  test.each(cases)('%s from %s leads where the table says, or nowhere', async (step, from) => {
    await service.pool.query('delete from export_jobs');
    const { body } = await start(await newStudy());
    const id = body.exportId;
    await put(id, from, { attempt: '1', ...(from === 'IN_PROGRESS' ? condition[step] : {}) });
    await steps[step](id);
    const { rows } = await service.pool.query('select status from export_jobs where export_id = $1', [id]);
    // A claim takes both: jobs that wait, and those whose lease ran out.
    const applies = transitions[step].from === from || (step === 'takeOver' && from === 'QUEUED');
    expect(rows[0].status).toBe(applies && !(step === 'claim' && from !== 'QUEUED') ? transitions[step].to : from);
  });

  test('what a worker writes that lost its job changes nothing', async () => {
    await service.pool.query('delete from export_jobs');
    const { body } = await start(await newStudy());
    const first = await claimExport(service.pool, 'first', 0);
    const second = await claimExport(service.pool, 'second', 60_000);
    expect([first?.attempt, second?.attempt]).toEqual([1, 2]);
    const stale = { id: body.exportId, attempt: 1 };
    expect(await completeExport(service.pool, stale, { records: 2, sizeBytes: 3, sha256: 'a' })).toBe(false);
    expect(await failExport(service.pool, stale, 'why')).toBe(false);
    expect(await handBackExport(service.pool, stale)).toBe(false);
    const { rows } = await service.pool.query('select * from export_jobs');
    expect(rows).toMatchObject([{ status: 'IN_PROGRESS', worker_id: 'second', takeovers: 1, error_message: null }]);
    // The file of the attempt before is to be removed.
    expect(await purgedKeys(body.exportId)).toEqual([first?.objectKey]);
  });

  test('a job that was handed back is as new, and that counts as no takeover', async () => {
    await service.pool.query('delete from export_jobs');
    const { body } = await start(await newStudy());
    for (let i = 0; i < 6; i++) {
      const claim = await claimExport(service.pool, 'w', 60_000);
      expect(claim?.id).toBe(body.exportId);
      expect(await handBackExport(service.pool, { id: body.exportId, attempt: claim?.attempt as number })).toBe(true);
    }
    const { body: job } = await service.call('GET', `/studies/${body.studyId}/exports/${body.exportId}`);
    expect(job).toEqual(body);
  });

  test('a job that would have to be taken over a fourth time is FAILED and says so', async () => {
    await service.pool.query('delete from export_jobs');
    const { body } = await start(await newStudy());
    for (let i = 0; i < 4; i++) expect(await claimExport(service.pool, 'w', 0)).toMatchObject({ attempt: i + 1 });
    expect(await claimExport(service.pool, 'w', 0)).toBeNull();
    expect(await giveUpExports(service.pool, 'given up')).toEqual([body.exportId]);
    const { body: job } = await service.call('GET', `/studies/${body.studyId}/exports/${body.exportId}`);
    expect(job).toMatchObject({ exportStatus: { status: 'FAILED' }, errorMessage: 'given up' });
    expect(job.completedDate).not.toBeNull();
  });

  test('deleting a job hands its file to the purge, whatever its state', async () => {
    for (const status of exportStatuses) {
      const { body } = await start(await newStudy());
      await put(body.exportId, status, { object_key: `'exports/${body.exportId}/1'` });
      expect(await transaction(service.pool, (tx) => deleteExport(tx, body.studyId, body.exportId))).toBe(true);
      expect(await purgedKeys(body.exportId)).toEqual([`exports/${body.exportId}/1`]);
    }
  });
});

test('a COMPLETED job whose file is gone from the store is told as a fault of the server', async () => {
  const studyId = await newStudy();
  const { body } = await start(studyId);
  await put(body.exportId, 'COMPLETED');
  const answer = await fetchFile(service, `/api/v1/studies/${studyId}/exports/${body.exportId}:download`);
  expect(answer.status).toBe(500);
  expect(await answer.json()).toMatchObject({ type: '/errors/internal', detail: expect.stringContaining('gone') });
});
