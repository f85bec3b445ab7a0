import { beforeAll, describe, expect, test } from 'vitest';
import { type Json, useService } from './service.ts';

const service = useService();
let studyId = '';
let organId = '';
beforeAll(async () => {
  const { body: study } = await service.call('POST', '/studies', { name: 'Created by many clients at once' });
  studyId = study.studyId;
  const { body: subject } = await service.call('POST', `/studies/${studyId}/subjects`, { name: 'first' });
  const organ = { subjectId: subject.subjectId, name: 'LIVER' };
  organId = (await service.call('POST', `/studies/${studyId}/organs`, organ)).body.organId;
});

/** Sends all bodies at the same time. */
const postAll = (collection: string, bodies: Json[], to = studyId, headers: Record<string, string> = {}) =>
  Promise.all(bodies.map((body) => service.call('POST', `/studies/${to}/${collection}`, body, { headers })));

const finding = (n: number) => ({ organId, name: `Finding ${n}`, attributes: { MISEQ: n } });

/** Events of calls, by the id of the record that each made. */
async function eventsOf(ids: string[], event: string): Promise<Json[]> {
  const found = await Promise.all(
    ids.map((id) => service.call('GET', `/audit/events?resourceId=${id}&event=${event}`)),
  );
  return found.map(({ body }) => body.items);
}

describe('records that many clients create at the same time', () => {
  test('are each answered with their own, and leave one event each', async () => {
    const bodies = Array.from({ length: 100 }, (_, n) => finding(n));
    const answers = await postAll('findings', bodies);
    expect(new Set(answers.map(({ status }) => status))).toEqual(new Set([201]));
    expect(answers.map(({ body }) => [body.name, body.attributes.MISEQ, body.organId])).toEqual(
      bodies.map(({ name, attributes }) => [name, attributes.MISEQ, organId]),
    );
    const ids = answers.map(({ body }) => body.findingId);
    expect(new Set(ids).size).toBe(100);
    for (const [at, { headers }] of answers.entries()) {
      expect(headers.get('location')).toBe(`/api/v1/studies/${studyId}/findings/${ids[at]}`);
      expect(headers.get('etag')).toBe('"1"');
    }
    const events = await eventsOf(ids, 'STUDY_UPDATED');
    for (const [at, own] of events.entries()) {
      expect(own).toMatchObject([
        {
          resourceId: ids[at],
          resourceType: 'finding',
          resourceIds: null,
          studyId,
          status: 201,
          operation: 'POST /studies/{studyId}/findings',
          requestId: answers[at]?.headers.get('x-request-id') ?? expect.any(String),
          reason: null,
          changes: null,
        },
      ]);
    }
    expect(new Set(events.map(([own]) => own.sequence)).size).toBe(100);
    const { body: list } = await service.call('GET', `/studies/${studyId}/findings`);
    expect(list.paging.totalItems).toBe(100);
  });

  test('are refused each for its own fault, and the others are there', async () => {
    const names = Array.from({ length: 40 }, (_, n) => (n % 10 === 9 ? 'first' : `s${n}`));
    const subjects = await postAll(
      'subjects',
      names.map((name) => ({ name })),
    );
    expect(subjects.map(({ status }) => status)).toEqual(names.map((name) => (name === 'first' ? 409 : 201)));

    const bodies = Array.from({ length: 40 }, (_, n) =>
      n % 8 === 7 ? { ...finding(n), organId: '0'.repeat(24) } : finding(n),
    );
    const answers = await postAll('findings', bodies);
    for (const [n, { status, body }] of answers.entries()) {
      if (n % 8 !== 7) expect([status, body.attributes.MISEQ]).toEqual([201, n]);
      else expect([status, body.errors.map(({ pointer }: Json) => pointer)]).toEqual([422, ['/organId']]);
    }
    const { body: list } = await service.call('GET', `/studies/${studyId}/findings`);
    expect(list.paging.totalItems).toBe(100 + 35);
  });

  test('under one name are one, and all others are told that it is taken', async () => {
    const answers = await postAll(
      'subjects',
      Array.from({ length: 30 }, () => ({ name: 'twin' })),
    );
    expect(answers.map(({ status }) => status).sort()).toEqual([201, ...Array.from({ length: 29 }, () => 409)]);
    const { body } = await service.call('GET', `/studies/${studyId}/subjects?name=twin`);
    expect(body.paging.totalItems).toBe(1);
  });

  test('in a study that is not there are all 404', async () => {
    const answers = await postAll(
      'subjects',
      Array.from({ length: 20 }, (_, n) => ({ name: `s${n}` })),
      '0'.repeat(24),
    );
    expect(new Set(answers.map(({ status }) => status))).toEqual(new Set([404]));
  });

  test('keep the reason that each gave', async () => {
    const bodies = Array.from({ length: 20 }, (_, n) => finding(n));
    const answers = await Promise.all(
      bodies.map((body, n) =>
        service.call('POST', `/studies/${studyId}/findings`, body, {
          headers: n % 2 ? { 'x-change-reason': `reason ${n}` } : {},
        }),
      ),
    );
    const events = await eventsOf(
      answers.map(({ body }) => body.findingId),
      'STUDY_UPDATED',
    );
    expect(events.map(([own]) => own.reason)).toEqual(bodies.map((_, n) => (n % 2 ? `reason ${n}` : null)));
  });
});
