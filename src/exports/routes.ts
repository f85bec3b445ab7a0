import { Type } from 'typebox';
import type { Db } from '../db/database.ts';
import { pageParameters, pageRequest } from '../db/paging.ts';
import { download } from '../http/download.ts';
import { type Api, operation, type Result } from '../http/operation.ts';
import { pageBody, pageSchema } from '../http/page.ts';
import { newId } from '../lib/id.ts';
import { conflict, notFound, Problem } from '../lib/problem.ts';
import type { ObjectStore } from '../objects/store.ts';
import { studyExists } from '../studies/queries.ts';
import { exportFileName, mediaTypes } from './files.ts';
import {
  deleteExport,
  findExport,
  findExportFile,
  insertExport,
  listExports,
  lockStudyExports,
  type StoredExport,
} from './job-queries.ts';
import { ExportJob, StartExport } from './schemas.ts';

/** interface.md §8. */
const MAX_JOBS = 5;
/** 1 s: interface.md §4 asks clients to poll at an interval of seconds; a small study is done by then. */
const RETRY_AFTER_S = 1;

export interface ExportServices {
  store: ObjectStore;
  /** Whether downloads redirect to the object store where it can sign URLs (SDS_DOWNLOAD_REDIRECT). */
  downloadRedirect: boolean;
}

/** The 404 of a job that was not found: told apart from that of its study. */
async function missing(db: Db, studyId: string): Promise<Problem> {
  return notFound((await studyExists(db, studyId)) ? 'export' : 'study');
}

function accepted({ record, exportId }: StoredExport, studyId: string): Result {
  return {
    status: 202,
    body: record,
    headers: {
      Location: `/api/v1/studies/${studyId}/exports/${exportId}`,
      'Retry-After': String(RETRY_AFTER_S),
    },
    event: { resourceId: exportId },
  };
}

/** Export jobs of a study (interface.md §4, decisions §4). */
export function exportRoutes(api: Api, { store, downloadRedirect }: ExportServices): void {
  const collection = '/studies/{studyId}/exports';
  const one = '/studies/{studyId}/exports/{exportId}';
  const listed = { tag: 'exports', resource: { type: 'export' } } as const;
  const common = { tag: 'exports', resource: { type: 'export', id: 'exportId' } } as const;

  operation(api, {
    ...listed,
    method: 'GET',
    path: collection,
    operationId: 'listExports',
    summary: 'Lists the exports of a study, oldest first',
    scope: 'Study:Read',
    event: 'CLIENT_ACCESSED_STUDY',
    query: Type.Object(pageParameters(['createdDate'])),
    responses: { 200: { description: 'A page of export jobs.', schema: pageSchema(ExportJob) } },
    problems: [404],
    read: async (db, { params, query, request }) => {
      const page = await listExports(db, params.studyId, pageRequest(query, 'createdDate'));
      if (!page) throw notFound('study');
      return { body: pageBody(page, request, api.publicUrl) };
    },
  });

  operation(api, {
    ...listed,
    method: 'POST',
    path: collection,
    operationId: 'startExport',
    summary: 'Starts an export of a study, or tells of the one that is active',
    scope: 'Study:Write',
    event: 'CLIENT_STUDY_EXPORT',
    body: StartExport,
    responses: {
      202: {
        description: 'The job: a new one, or the one that is active already, whatever its format.',
        schema: ExportJob,
        headers: ['Location', 'Retry-After'],
      },
    },
    problems: [404, 409, 422],
    write: async (tx, { params: { studyId }, body, caller }) => {
      const jobs = await lockStudyExports(tx, studyId);
      if (!jobs) throw notFound('study');
      if (jobs.active) return accepted(jobs.active, studyId);
      if (!jobs.hasHierarchy) {
        throw new Problem('validation-failed', 'The study has no subjects and no slides: there is nothing to export.');
      }
      if (jobs.failed) throw conflict('An export of this study FAILED; delete it first.');
      if (jobs.count >= MAX_JOBS) throw conflict(`The study has ${MAX_JOBS} exports already; delete one first.`);
      const { clientId } = caller;
      return accepted(await insertExport(tx, { exportId: newId(), studyId, format: body.format, clientId }), studyId);
    },
  });

  operation(api, {
    ...common,
    method: 'GET',
    path: one,
    operationId: 'getExport',
    summary: 'Reads an export job; poll it until COMPLETED or FAILED',
    scope: 'Study:Read',
    event: 'CLIENT_ACCESSED_STUDY',
    responses: { 200: { description: 'The export job.', schema: ExportJob } },
    problems: [404],
    read: async (db, { params: { studyId, exportId } }) => {
      const found = await findExport(db, studyId, exportId);
      if (!found) throw await missing(db, studyId);
      return { body: found.record };
    },
  });

  operation(api, {
    ...common,
    method: 'GET',
    path: `${one}:download`,
    operationId: 'downloadExport',
    summary: 'Downloads the file of an export',
    scope: 'Study:Read',
    event: 'CLIENT_STUDY_EXPORT',
    headers: {
      Range: { description: 'One range of bytes; the answer is then 206 (RFC 9110 §14).' },
      'If-Range': { description: 'The ETag of the part that the client has; another file is sent whole.' },
    },
    responses: {
      200: {
        description: 'The file.',
        schema: null,
        mediaType: Object.values(mediaTypes),
        headers: ['ETag', 'Content-Length', 'Content-Disposition', 'Accept-Ranges'],
      },
    },
    problems: [404, 409, 412, 416],
    disclose: async (db, { params: { studyId, exportId }, request }) => {
      const file = await findExportFile(db, studyId, exportId);
      if (!file) throw await missing(db, studyId);
      const { status, objectKey, format, sizeBytes, sha256, completedDate } = file;
      if (status !== 'COMPLETED' || objectKey === null) {
        throw conflict(`The export is ${status}; only a COMPLETED one has a file.`);
      }
      const fileName = exportFileName(file.studyName, completedDate, format);
      const stored = { key: objectKey, sizeBytes, sha256, mediaType: mediaTypes[format], fileName };
      const options = { redirect: downloadRedirect };
      return download(request, store, { ...stored, lastModified: completedDate }, options).catch(async (error) => {
        // Deleted meanwhile, with its file.
        throw (await findExport(db, studyId, exportId)) ? error : await missing(db, studyId);
      });
    },
  });

  operation(api, {
    ...common,
    method: 'DELETE',
    path: one,
    operationId: 'deleteExport',
    summary: 'Deletes an export and its file; an active one is cancelled',
    scope: 'Study:Delete',
    event: 'CLIENT_STUDY_EXPORT_DELETED',
    responses: { 204: { description: 'Deleted.', schema: null } },
    problems: [404],
    write: async (tx, { params: { studyId, exportId } }) => {
      if (!(await deleteExport(tx, studyId, exportId))) throw await missing(tx, studyId);
      return { status: 204 };
    },
  });
}
