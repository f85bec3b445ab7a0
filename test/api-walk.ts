import { expect } from 'vitest';
import { type Answer, type CallOptions, eventually, type Json, type TestService } from './service.ts';

/** One call of a walk: which operation it was, and what came of it. */
export interface Step {
  method: string;
  /** Pattern, as in the API document. */
  path: string;
  answer: Answer<Json>;
  /** Event that the audit log must have of it. */
  event: string;
  /** Record that the event must name; null: none. */
  resourceId: string | null;
  studyId: string | null;
}

interface Expected extends CallOptions {
  status: number;
  body?: unknown;
  query?: string;
  /** Default: CLIENT_ACCESSED_STUDY for a success of GET, else STUDY_UPDATED. */
  event?: string;
  /** The member of the answer, or the id itself, that the event names. */
  resource?: string | null;
}

const FAILURE = 'CLIENT_ACCESSED_STUDY_FAILURE';
const REJECTED = 'CLIENT_REQUEST_REJECTED';
const NOWHERE = '0'.repeat(24);

export function failureEvent(status: number): string {
  return [400, 403, 404, 422].includes(status) ? FAILURE : REJECTED;
}

/** Calls every operation on study data, exports and audit, to succeed and to fail in the ways that it can. */
export async function walkApi(service: TestService, onStep: (step: Step) => void): Promise<void> {
  const ids: Record<string, string> = {};
  const call = async (method: string, path: string, expected: Expected): Promise<Json> => {
    const { status, body, query = '', event, resource, ...options } = expected;
    const url = path.replace(/\{(\w+)\}/g, (_, name: string) => ids[name] ?? NOWHERE) + query;
    const answer = await service.call(method, url, body, options);
    expect(answer.status, `${method} ${url}: ${answer.text.slice(0, 500)}`).toBe(status);
    const failed = status >= 400;
    const own = /\{(\w+)\}(:\w+)?$/.exec(path)?.[1];
    const named = resource === undefined ? (own === undefined ? null : (ids[own] ?? NOWHERE)) : resource;
    onStep({
      method,
      path,
      answer,
      event: event ?? (failed ? failureEvent(status) : method === 'GET' ? 'CLIENT_ACCESSED_STUDY' : 'STUDY_UPDATED'),
      resourceId: (named === null ? null : (answer.body?.[named] ?? named)) as string | null,
      studyId: /\{studyId\}/.test(path)
        ? (ids.studyId ?? NOWHERE)
        : event === 'STUDY_CREATED'
          ? answer.body.studyId
          : null,
    });
    return answer.body;
  };
  const study = '/studies/{studyId}';

  await call('POST', '/studies', { body: {}, status: 400 });
  await call('POST', '/studies', { body: { name: 'short' }, status: 422 });
  const made = await call('POST', '/studies', {
    body: { name: 'A study that is walked', siteId: 'B1', attributes: { a: 1, b: true, c: null, d: 'x' } },
    status: 201,
    event: 'STUDY_CREATED',
    resource: 'studyId',
  });
  ids.studyId = made.studyId;
  await call('GET', '/studies', { status: 200 });
  await call('GET', '/studies', { query: '?pageSize=101', status: 400 });
  await call('GET', study, { status: 200 });
  await call('PUT', study, { body: { ...made, siteId: null }, status: 200 });
  await call('PUT', study, { body: made, headers: { 'if-match': '"1"' }, status: 412 });
  await call('PUT', study, { body: { name: 'short' }, status: 422 });
  await call('POST', `${study}/exports`, { body: { format: 'JSON' }, status: 422 });

  const kinds: [collection: string, id: string, body: () => Json, second: () => Json][] = [
    ['subjects', 'subjectId', () => ({ name: '1001', attributes: { SEX: 'M' } }), () => ({ name: '1002' })],
    [
      'organs',
      'organId',
      () => ({ subjectId: ids.subjectId, name: 'LIVER' }),
      () => ({ subjectId: ids.subjectId, name: 'LUNG' }),
    ],
    ['slides', 'slideId', () => ({ fileName: 'a.svs', organId: ids.organId }), () => ({ fileName: 'b.svs' })],
    [
      'findings',
      'findingId',
      () => ({ organId: ids.organId, slideId: ids.slideId, name: 'Necrosis', severity: 'MILD' }),
      () => ({ organId: ids.organId, name: 'Fibrosis' }),
    ],
    [
      'scores',
      'scoreId',
      () => ({ subjectId: ids.subjectId, organId: ids.organId, name: 'Weight', value: 1.5, unit: 'g' }),
      () => ({ subjectId: ids.subjectId, name: 'Weight', value: 'n/a' }),
    ],
  ];
  for (const [collection, id, body, second] of kinds) {
    const list = `${study}/${collection}`;
    const record = await call('POST', list, { body: body(), status: 201, resource: id });
    ids[id] = record[id];
    const one = `${list}/{${id}}`;
    await call('POST', `${list}:bulkCreate`, { body: { items: [second()] }, status: 201 });
    await call('POST', `${list}:bulkCreate`, { body: { items: [] }, status: 400 });
    await call('POST', list, { body: { nonsense: 1 }, status: 400 });
    await call('GET', list, { status: 200, query: '?pageSize=1' });
    await call('GET', one, { status: 200 });
    await call('PUT', one, { body: record, status: 200, headers: { 'x-change-reason': 'grüne Läsion' } });
    await call('PUT', one, { body: record, headers: { 'if-match': '"1"' }, status: 412 });
    if (!['findings', 'scores'].includes(collection))
      await call('POST', list, { body: body(), status: 409, resource: null });
  }
  await call('POST', `${study}/slides:bulkUpdate`, { body: { items: [{ slideId: ids.slideId }] }, status: 422 });
  await call('POST', `${study}/slides:bulkUpdate`, {
    body: { items: [{ slideId: ids.slideId, organId: ids.organId, attributes: { STAIN: 'HE' } }] },
    status: 200,
  });
  await call('POST', `${study}/slides:bulkUpdate`, { body: { items: [{ slideId: NOWHERE }] }, status: 404 });
  await call('GET', `${study}/codes`, { status: 404 });
  const codeLists = { MISEV: [{ code: 'MILD', label: 'Mild' }] };
  await call('POST', `${study}/codes`, { body: { codeLists }, status: 201, resource: 'codesId' });
  await call('POST', `${study}/codes`, { body: { codeLists }, status: 409 });
  await call('GET', `${study}/codes`, { status: 200, resource: 'codesId' });
  await call('PUT', `${study}/codes`, { body: { codeLists: {} }, status: 200, resource: 'codesId' });

  const exports = `${study}/exports`;
  const exported = 'CLIENT_STUDY_EXPORT';
  const job = await call('POST', exports, {
    body: { format: 'JSON' },
    status: 202,
    event: exported,
    resource: 'exportId',
  });
  ids.exportId = job.exportId;
  await call('GET', exports, { status: 200 });
  await eventually(async () => {
    const { exportStatus } = await call('GET', `${exports}/{exportId}`, { status: 200 });
    return exportStatus.status === 'COMPLETED';
  });
  await call('GET', `${exports}/{exportId}:download`, { status: 200, event: exported });
  await call('GET', `${exports}/{exportId}:download`, {
    status: 206,
    event: exported,
    headers: { range: 'bytes=0-9' },
  });
  await call('GET', `${exports}/{exportId}:download`, { status: 416, headers: { range: 'bytes=999999999-' } });
  await call('DELETE', `${exports}/{exportId}`, { status: 204, event: 'CLIENT_STUDY_EXPORT_DELETED' });
  await call('GET', `${exports}/{exportId}:download`, { status: 404 });
  await call('GET', `${exports}/{exportId}`, { status: 404 });
  await call('DELETE', `${exports}/{exportId}`, { status: 404 });

  const events = await call('GET', '/audit/events', { status: 200, query: `?studyId=${ids.studyId}&pageSize=3` });
  ids.eventId = events.items[0].eventId;
  await call('GET', '/audit/events', { status: 400, query: '?from=2026-02-30' });
  await call('GET', '/audit/events/{eventId}', { status: 200 });

  await call('DELETE', `${study}/subjects/{subjectId}`, { status: 422 });
  await call('DELETE', `${study}/organs/{organId}`, { status: 422 });
  for (const [collection, id] of [...kinds].reverse().slice(0, 3)) {
    await call('DELETE', `${study}/${collection}/{${id}}`, { status: 204 });
    await call('GET', `${study}/${collection}/{${id}}`, { status: 404 });
    await call('DELETE', `${study}/${collection}/{${id}}`, { status: 404 });
  }
  await call('DELETE', study, { status: 412, headers: { 'if-match': '"1"' } });
  await call('DELETE', study, { status: 204, event: 'STUDY_DELETED' });
  await call('GET', study, { status: 404 });
}
