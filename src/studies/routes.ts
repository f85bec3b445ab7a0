import type { Api } from '../http/operation.ts';
import { operation } from '../http/operation.ts';
import { pageSchema } from '../http/page.ts';
import { type Fault, notFound } from '../lib/problem.ts';
import { codesRoutes } from './codes-routes.ts';
import { type Kind, kinds } from './kinds.ts';
import { findRecord, type StoredRecord } from './queries.ts';
import { created, listQuery, listResult, recordResult, recordRoutes } from './record-routes.ts';
import { createRecords, removeStudy, updateRecord } from './rules.ts';

type Body = Record<string, unknown>;

const kind: Kind = kinds.study;
const one = '/studies/{studyId}';
const common = { tag: 'studies', resource: { type: 'study', id: 'studyId' } } as const;
const recordResponse = { description: 'The study.', schema: kind.record, headers: ['ETag'] };

/** A study's body needs its name under either of its two names (decisions §1). */
function requireName({ body }: { body: unknown }): Fault[] {
  if (body === null || typeof body !== 'object' || Array.isArray(body)) return [];
  if (Object.hasOwn(body, 'name') || Object.hasOwn(body, 'studyName')) return [];
  return [{ pointer: '/name', detail: 'is required' }];
}

/**
 * `name` and `studyName` are one value under two names (decisions §1). Where they differ, a PUT means the one that
 * differs from the stored name; otherwise it is a fault. The faults of a length tell the member as sent, and call it
 * `name`.
 */
function oneName(body: Body, stored: string | null, faults: Fault[]): Body {
  for (const fault of faults) {
    if (fault.pointer === '/studyName') fault.detail = `name ${fault.detail}`;
  }
  const { name, studyName } = body;
  if (name === undefined) return { ...body, name: studyName };
  if (studyName === undefined || studyName === name) return body;
  if (stored !== null && name === stored) return { ...body, name: studyName };
  if (stored === null || studyName !== stored) {
    faults.push({ pointer: '/studyName', detail: 'name and studyName are one value and differ here; send one' });
  }
  return body;
}

export function studyRoutes(api: Api): void {
  operation(api, {
    tag: 'studies',
    resource: { type: 'study' },
    method: 'GET',
    path: '/studies',
    operationId: 'listStudies',
    summary: 'Lists studies',
    scope: 'Study:Read',
    event: 'CLIENT_ACCESSED_STUDY',
    query: listQuery(kind),
    responses: { 200: { description: 'A page of studies.', schema: pageSchema(kind.record) } },
    read: (_db, { query, request }) => listResult(api, kind, null, query as Body, request),
  });

  operation(api, {
    tag: 'studies',
    resource: { type: 'study' },
    method: 'POST',
    path: '/studies',
    operationId: 'createStudy',
    summary: 'Creates a study',
    scope: 'Study:Write',
    event: 'STUDY_CREATED',
    body: kind.create,
    check: requireName,
    responses: { 201: { ...recordResponse, headers: ['ETag', 'Location'] } },
    problems: [422],
    create: async (db, { body, faults }, event) => {
      const bodies = [{ pointer: '', body: oneName(body as Body, null, faults) }];
      const { records, ids } = await createRecords(db, kind, null, bodies, faults, event);
      return created(records[0] as StoredRecord, `/api/v1/studies/${ids[0]}`);
    },
  });

  operation(api, {
    ...common,
    method: 'GET',
    path: one,
    operationId: 'getStudy',
    summary: 'Reads a study',
    scope: 'Study:Read',
    event: 'CLIENT_ACCESSED_STUDY',
    responses: { 200: recordResponse },
    problems: [404],
    read: async (db, { params }) => {
      const found = await findRecord(db, kind, params.studyId, params.studyId);
      if (!found) throw notFound('study');
      return recordResult(found);
    },
  });

  operation(api, {
    ...common,
    method: 'PUT',
    path: one,
    operationId: 'updateStudy',
    summary: 'Updates a study in full',
    scope: 'Study:Write',
    event: 'STUDY_UPDATED',
    body: kind.update,
    check: requireName,
    ifMatch: true,
    responses: { 200: recordResponse },
    problems: [404, 412, 422],
    write: async (tx, { params, body, ifMatch, faults }) => {
      const { event, ...record } = await updateRecord(tx, kind, params.studyId, params.studyId, {
        ifMatch,
        faults,
        body: (stored) => oneName(body as Body, stored.name as string, faults),
      });
      return recordResult(record, { event: event ?? {} });
    },
  });

  operation(api, {
    ...common,
    method: 'DELETE',
    path: one,
    operationId: 'deleteStudy',
    summary: 'Deletes a study and everything below it',
    scope: 'Study:Delete',
    event: 'STUDY_DELETED',
    ifMatch: true,
    responses: { 204: { description: 'Deleted.', schema: null } },
    problems: [404, 412, 422],
    write: async (tx, { params, ...call }) => ({ status: 204, ...(await removeStudy(tx, params.studyId, call)) }),
  });

  recordRoutes(api);
  codesRoutes(api);
}
