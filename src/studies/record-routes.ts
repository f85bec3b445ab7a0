import { type TSchema, Type } from 'typebox';
import { pageParameters, pageRequest } from '../db/paging.ts';
import { etagOf } from '../http/headers.ts';
import { type Api, operation, type Result } from '../http/operation.ts';
import { pageBody, pageSchema } from '../http/page.ts';
import { type Fault, notFound } from '../lib/problem.ts';
import { insertTogether } from './create-together.ts';
import { childKinds, type Kind, kinds } from './kinds.ts';
import { findRecord, type Insert, insertRecords, listRecords, type StoredRecord } from './queries.ts';
import { createRecords, missing, removeRecord, updateAll, updateRecord } from './rules.ts';
import { idOf, SlideUpdate } from './schemas.ts';

type Body = Record<string, unknown>;

/** interface.md §8 for slides:bulkUpdate, decisions §3 for :bulkCreate. */
const MAX_BULK_UPDATE = 100;
const MAX_BULK_CREATE = 1_000;
/** 64 KiB: a body that large is written by itself, so that a statement does not hold many of them. */
const LARGE_BYTES = 65_536;

/** A record as an answer. */
export function recordResult({ record, version }: StoredRecord, extra: Partial<Result> = {}): Result {
  return { ...extra, body: record, headers: { ETag: etagOf(version), ...extra.headers } };
}

/** The 201 of a record, with the Location it can be read at. */
export function created(record: StoredRecord, location: string): Result {
  return recordResult(record, { status: 201, headers: { Location: location } });
}

export function article(name: string): string {
  return /^[aeiou]/.test(name) ? `an ${name}` : `a ${name}`;
}

function pascal(name: string): string {
  return name.charAt(0).toUpperCase() + name.slice(1);
}

/** Query parameters of a kind's list. */
export function listQuery(kind: Kind) {
  const filters = Object.entries(kind.filters).map(([name, { id, what }]) => [
    name,
    Type.Optional(id ? { ...idOf(name.replace(/Id$/, '')), description: what } : Type.String({ description: what })),
  ]);
  return Type.Object({ ...Object.fromEntries(filters), ...pageParameters(Object.keys(kind.sorts)) });
}

/** A page of a kind's records, for whatever study (null: the studies themselves). */
export async function listResult(
  api: Api,
  kind: Kind,
  studyId: string | null,
  query: Body,
  request: Parameters<typeof pageBody>[1],
): Promise<Result> {
  const filters = Object.fromEntries(
    Object.entries(query).filter(([name]) => Object.hasOwn(kind.filters, name)),
  ) as Record<string, string>;
  const page = await listRecords(api.pool, kind, studyId, {
    filters,
    page: pageRequest(query, Object.keys(kind.sorts)[0] as string),
  });
  if (!page) throw notFound('study');
  return { body: pageBody(page, request, api.publicUrl) };
}

/** The routes of one collection below a study; all five are the same but for their description in kinds.ts. */
function childRoutes(api: Api, kind: Kind, insertOne: Insert): void {
  const { name, collection, idMember } = kind;
  const base = `/studies/{studyId}/${collection}` as const;
  const one = `${base}/{${idMember}}` as '/studies/{studyId}/subjects/{subjectId}';
  const idOfParams = (params: object) => (params as Record<string, string>)[idMember] as string;
  const common = { tag: collection, resource: { type: name, id: idMember as 'subjectId' } } as const;
  const listed = { tag: collection, resource: { type: name } } as const;
  const title = pascal(name);
  const recordResponse = { description: `The ${name}.`, schema: kind.record, headers: ['ETag'] };

  operation(api, {
    ...listed,
    method: 'GET',
    path: base,
    operationId: `list${pascal(collection)}`,
    summary: `Lists the ${collection} of a study`,
    scope: 'Study:Read',
    event: 'CLIENT_ACCESSED_STUDY',
    query: listQuery(kind),
    responses: { 200: { description: `A page of ${collection}.`, schema: pageSchema(kind.record) } },
    problems: [404],
    read: (_db, { params, query, request }) => listResult(api, kind, params.studyId, query as Body, request),
  });

  operation(api, {
    ...common,
    method: 'GET',
    path: one,
    operationId: `get${title}`,
    summary: `Reads ${article(name)}`,
    scope: 'Study:Read',
    event: 'CLIENT_ACCESSED_STUDY',
    responses: { 200: recordResponse },
    problems: [404],
    read: async (db, { params }) => {
      const found = await findRecord(db, kind, params.studyId, idOfParams(params));
      if (!found) throw await missing(db, kind, params.studyId);
      return recordResult(found);
    },
  });

  operation(api, {
    ...listed,
    method: 'POST',
    path: base,
    operationId: `create${title}`,
    summary: `Creates ${article(name)}`,
    scope: 'Study:Write',
    event: 'STUDY_UPDATED',
    body: kind.create,
    responses: { 201: { ...recordResponse, headers: ['ETag', 'Location'] } },
    problems: [404, 409, 422],
    create: async (db, { params, body, faults, request }, event) => {
      const bodies = [{ pointer: '', body: body as Body }];
      const insert = Number(request.headers['content-length'] ?? LARGE_BYTES) < LARGE_BYTES ? insertOne : insertRecords;
      const { records, ids } = await createRecords(db, kind, params.studyId, bodies, faults, event, insert);
      return created(records[0] as StoredRecord, `${request.url.split('?', 1)[0]}/${ids[0]}`);
    },
  });

  operation(api, {
    ...listed,
    method: 'POST',
    path: `${base}:bulkCreate`,
    operationId: `bulkCreate${pascal(collection)}`,
    summary: `Creates up to ${MAX_BULK_CREATE} ${collection}, all or none`,
    scope: 'Study:Write',
    event: 'STUDY_UPDATED',
    bulk: true,
    body: Type.Object({ items: Type.Array(kind.create, { minItems: 1, maxItems: MAX_BULK_CREATE }) }),
    responses: { 201: { description: 'The records, in the order of the request.', schema: itemsOf(kind.record) } },
    problems: [404, 409, 422],
    create: async (db, { params, body, faults }, event) => {
      const bodies = body.items.map((item, index) => ({ pointer: `/items/${index}`, body: item as Body }));
      const { records } = await createRecords(db, kind, params.studyId, bodies, faults, event);
      return { status: 201, body: `{"items":[${records.map(({ record }) => record).join(',')}]}` };
    },
  });

  operation(api, {
    ...common,
    method: 'PUT',
    path: one,
    operationId: `update${title}`,
    summary: `Updates ${article(name)} in full`,
    scope: 'Study:Write',
    event: 'STUDY_UPDATED',
    body: kind.update,
    ifMatch: true,
    responses: { 200: recordResponse },
    problems: [404, 409, 412, 422],
    write: async (tx, { params, body, ...call }) => {
      const { event, ...record } = await updateRecord(tx, kind, params.studyId, idOfParams(params), {
        ...call,
        body: () => body as Body,
      });
      return recordResult(record, { event: event ?? {} });
    },
  });

  operation(api, {
    ...common,
    method: 'DELETE',
    path: one,
    operationId: `delete${title}`,
    summary: `Deletes ${article(name)}`,
    scope: 'Study:Delete',
    event: 'STUDY_UPDATED',
    ifMatch: true,
    responses: { 204: { description: 'Deleted.', schema: null } },
    problems: [404, 412, 422],
    write: async (tx, { params, ...call }) => ({
      status: 204,
      ...(await removeRecord(tx, kind, params.studyId, idOfParams(params), call)),
    }),
  });
}

function itemsOf<T extends TSchema>(record: T) {
  return Type.Object({ items: Type.Array(record) }, { title: `${(record as { title?: string }).title}List` });
}

/** A slide that is named twice is a 400 (decisions §3): which of the two updates is meant, nobody knows. */
function namedTwice({ body }: { body: unknown }): Fault[] {
  const items = (body as { items?: unknown } | null | undefined)?.items;
  if (!Array.isArray(items) || items.length > MAX_BULK_UPDATE) return [];
  const seen = new Set<unknown>();
  return items.flatMap((item: { slideId?: unknown } | null, index) => {
    const slideId = item?.slideId;
    if (typeof slideId !== 'string') return [];
    if (seen.has(slideId)) return [{ pointer: `/items/${index}/slideId`, detail: 'is named twice' }];
    seen.add(slideId);
    return [];
  });
}

/** slides:bulkUpdate: up to 100 full updates, all or none (decisions §3). */
function bulkUpdateRoute(api: Api): void {
  const kind = kinds.slide as Kind;
  operation(api, {
    method: 'POST',
    path: '/studies/{studyId}/slides:bulkUpdate',
    operationId: 'bulkUpdateSlides',
    summary: `Updates up to ${MAX_BULK_UPDATE} slides in full, all or none`,
    tag: 'slides',
    resource: { type: 'slide' },
    scope: 'Study:Write',
    event: 'STUDY_UPDATED',
    bulk: true,
    body: Type.Object({ items: Type.Array(SlideUpdate, { minItems: 1, maxItems: MAX_BULK_UPDATE }) }),
    check: namedTwice,
    responses: { 200: { description: 'The slides, in the order of the request.', schema: itemsOf(kind.record) } },
    problems: [404, 409, 422],
    write: async (tx, { params, body, faults }) => {
      const { records, ids, changes } = await updateAll(tx, kind, params.studyId, body.items as Body[], faults);
      return { body: `{"items":[${records.join(',')}]}`, event: { resourceIds: ids, changes } };
    },
  });
}

export function recordRoutes(api: Api): void {
  const insertOne = insertTogether();
  for (const kind of childKinds) childRoutes(api, kind, insertOne);
  bulkUpdateRoute(api);
}
