import { type Api, operation } from '../http/operation.ts';
import { notFound } from '../lib/problem.ts';
import { createCodes, updateCodes } from './codes.ts';
import { findCodes } from './codes-queries.ts';
import { created, recordResult } from './record-routes.ts';
import { bodies, Codes } from './schemas.ts';

type Body = Record<string, unknown>;

/** The codes object of a study: at most one, never deleted (interface.md §4, decisions §3). */
export function codesRoutes(api: Api): void {
  const common = { path: '/studies/{studyId}/codes', tag: 'codes', resource: { type: 'codes' } } as const;
  const recordResponse = { description: 'The codes object.', schema: Codes, headers: ['ETag'] };

  operation(api, {
    ...common,
    method: 'GET',
    operationId: 'getCodes',
    summary: 'Reads the codes object of a study',
    scope: 'Study:Read',
    event: 'CLIENT_ACCESSED_STUDY',
    responses: { 200: recordResponse },
    problems: [404],
    read: async (db, { params }) => {
      const found = await findCodes(db, params.studyId);
      if (!found) throw notFound('codes object');
      return recordResult(found, { event: { resourceId: found.codesId } });
    },
  });

  operation(api, {
    ...common,
    method: 'POST',
    operationId: 'createCodes',
    summary: 'Creates the codes object of a study',
    scope: 'Study:Write',
    event: 'STUDY_UPDATED',
    body: bodies.codes,
    responses: { 201: { ...recordResponse, headers: ['ETag', 'Location'] } },
    problems: [404, 409, 422],
    write: async (tx, { params, body, faults }) => {
      const record = await createCodes(tx, params.studyId, body as Body, faults);
      return { ...created(record, `/api/v1/studies/${params.studyId}/codes`), event: { resourceId: record.codesId } };
    },
  });

  operation(api, {
    ...common,
    method: 'PUT',
    operationId: 'updateCodes',
    summary: 'Updates the codes object of a study in full',
    scope: 'Study:Write',
    event: 'STUDY_UPDATED',
    body: bodies.codes,
    ifMatch: true,
    responses: { 200: recordResponse },
    problems: [404, 412, 422],
    write: async (tx, { params, body, ifMatch, faults }) => {
      const { changes, ...record } = await updateCodes(tx, params.studyId, body as Body, ifMatch, faults);
      return recordResult(record, { event: { resourceId: record.codesId, changes } });
    },
  });
}
