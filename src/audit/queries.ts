import type { Db } from '../db/database.ts';
import { type Page, type PageRequest, pageOf, pageSql } from '../db/paging.ts';

const MEMBERS = `r.event_id as "eventId", r.sequence,
  to_char(r.recorded_date, 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') as "recordedDate", r.event, r.client_id as "clientId",
  r.operation, r.method, r.path, r.status, r.resource_type as "resourceType", r.resource_id as "resourceId",
  r.resource_ids as "resourceIds", r.study_id as "studyId", r.request_id as "requestId", d.reason, d.changes`;
const DETAILS =
  'left join lateral (select reason, changes from audit_details where event_id = r.event_id offset 0) d on true';

/** Filters of the list, each with its condition over the parameter `$n` (decisions §3). */
const CONDITIONS: Record<string, (at: string) => string> = {
  clientId: (at) => `r.client_id = ${at}`,
  event: (at) => `r.event = ${at}`,
  studyId: (at) => `r.study_id = ${at}`,
  resourceId: (at) => `(r.resource_id = ${at} or r.resource_ids @> array[${at}])`,
  from: (at) => `r.recorded_date >= ${at}::timestamptz`,
  to: (at) => `r.recorded_date <= ${at}::timestamptz`,
};

/** One event as JSON text, or null. */
export async function findEvent(db: Db, eventId: string): Promise<string | null> {
  const text = `select row_to_json(q)::text as record from (select ${MEMBERS} from audit_events r ${DETAILS} where r.event_id = $1) q`;
  const { rows } = await db.query<{ record: string }>({ name: 'audit-find', text, values: [eventId] });
  return rows[0]?.record ?? null;
}

/** A page of events, oldest first unless asked otherwise. */
export async function listEvents(db: Db, filters: Record<string, string>, page: PageRequest): Promise<Page> {
  const values: unknown[] = [];
  const conditions = Object.entries(filters).map(([name, value]) => {
    values.push(value);
    return CONDITIONS[name]?.(`$${values.length}`) ?? 'true';
  });
  const where = conditions.join(' and ') || 'true';
  const { text } = pageSql({
    members: MEMBERS,
    table: 'audit_events',
    joins: DETAILS,
    where,
    total: `select count(*) from audit_events r where ${where}`,
    sort: ['r.recorded_date'],
    keyMember: 'recordedDate',
    idColumn: 'r.event_id',
    idMember: 'eventId',
    request: page,
    values,
  });
  const { rows } = await db.query<Parameters<typeof pageOf>[0]>({ text: `select ${text}`, values });
  return pageOf(rows[0] as Parameters<typeof pageOf>[0], page);
}
