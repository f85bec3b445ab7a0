import { createHash, randomBytes } from 'node:crypto';
import type { Db } from '../db/database.ts';
import { prepared } from '../db/statement.ts';
import type { EventClause, EventDraft } from '../http/gate.ts';
import { newId } from '../lib/id.ts';

/** Reason and changes of an event, kept beside it, and the hash that stands in it (decisions §7). */
interface Details {
  salt: Buffer;
  reason: string | null;
  changes: string | null;
  sha256: Buffer;
}

/**
 * Hash over the details: SHA-256 of the salt, then reason and changes as a JSON array. The salt goes when the details
 * are redacted, so that what they said cannot be found out by trying.
 */
export function detailsHash(salt: Buffer, reason: string | null, changes: string | null): Buffer {
  return createHash('sha256')
    .update(salt)
    .update(JSON.stringify([reason, changes]))
    .digest();
}

function detailsOf(draft: EventDraft): Details | null {
  const { reason } = draft;
  const changes = draft.changes === null || draft.changes === undefined ? null : JSON.stringify(draft.changes);
  if (reason === null && changes === null) return null;
  // 16 bytes: as strong as guessing a 128-bit key.
  const salt = randomBytes(16);
  return { salt, reason, changes, sha256: detailsHash(salt, reason, changes) };
}

/** Columns in the order of {@link valuesOf}; status onwards need a cast where they are parameters of a SELECT. */
const COLUMNS =
  'event_id, event, client_id, operation, method, path, request_id, status, study_id, resource_type, details_sha256';

function valuesOf(id: string, draft: EventDraft, details: Details | null): unknown[] {
  return [
    id,
    draft.event,
    draft.clientId,
    draft.operation,
    draft.method,
    draft.path,
    draft.requestId,
    draft.status,
    draft.studyId,
    draft.resourceType,
    details?.sha256 ?? null,
  ];
}

/** The parameters of {@link valuesOf}, numbered from `first` on. */
function parameters(first: number): string {
  const casts = ['text', 'text', 'text', 'text', 'text', 'text', 'text', 'smallint', 'text', 'text', 'bytea'];
  return casts.map((cast, index) => `$${first + index}::${cast}`).join(', ');
}

/** Records an event at once: in the caller's transaction, or on its own when given the pool. */
export async function recordEvent(db: Db, draft: EventDraft): Promise<void> {
  const id = newId();
  const details = detailsOf(draft);
  const values = [...valuesOf(id, draft, details), draft.resourceId, draft.resourceIds];
  const insert = `insert into audit_events (${COLUMNS}, resource_id, resource_ids) values (${parameters(1)}, $12, $13)`;
  if (!details) {
    await db.query(prepared(insert, values));
    return;
  }
  const text = `with event as (${insert} returning event_id)
    insert into audit_details (event_id, salt, reason, changes) select event_id, $14::bytea, $15, $16::json from event`;
  await db.query(prepared(text, [...values, details.salt, details.reason, details.changes]));
}

/** An event as part of the statement that writes what it tells of (see {@link EventClause}). */
export function eventClause(draft: EventDraft, firstParameter: number): EventClause {
  const id = newId();
  const details = detailsOf(draft);
  const ids = draft.resourceIds
    ? 'null::text, (select array_agg(id order by id) from written)'
    : '(select min(id) from written), null::text[]';
  // A study is its own resource: its id is known only once it is written.
  const study = draft.resourceType === 'study' ? '(select min(id) from written)' : 'study_id';
  const sql = `event as (insert into audit_events (${COLUMNS}, resource_id, resource_ids)
    select event_id, event, client_id, operation, method, path, request_id, status, ${study}, resource_type,
      details_sha256, ${ids}
    from (values (${parameters(firstParameter)})) as draft (${COLUMNS}) where exists (select from written)
    returning event_id)`;
  const values = valuesOf(id, draft, details);
  if (!details) return { sql, values };
  const next = firstParameter + values.length;
  return {
    sql: `${sql}, details as (insert into audit_details (event_id, salt, reason, changes)
      select event_id, $${next}::bytea, $${next + 1}, $${next + 2}::json from event)`,
    values: [...values, details.salt, details.reason, details.changes],
  };
}

/** Events without reason and changes as rows of a JSON parameter. */
const eventRows = (parameter: number) => `json_to_recordset($${parameter}::json) as e (id text, age float8, event text,
  "clientId" text, operation text, method text, path text, status smallint, "resourceType" text, "resourceId" text,
  "studyId" text, "requestId" text)`;

/** The events of several calls as part of the one statement that does the work of all (see {@link EventClause}). */
export function eventsClause(drafts: EventDraft[], firstParameter: number): EventClause {
  const rows = drafts.map((draft) => ({ id: newId(), ...draft }));
  const sql = `event as (insert into audit_events (event_id, event, client_id, operation, method, path, request_id, status,
      study_id, resource_type, resource_id)
    select id, event, "clientId", operation, method, path, "requestId", status, "studyId", "resourceType", "resourceId"
    from ${eventRows(firstParameter)} where exists (select from written) order by id)`;
  return { sql, values: [JSON.stringify(rows)] };
}

/** Records many events in one statement; `ages` are the milliseconds since each happened. */
export async function recordAll(db: Db, drafts: EventDraft[], ages: number[]): Promise<void> {
  const rows = drafts.map((draft, index) => ({ id: newId(), age: ages[index], ...draft }));
  const text = `insert into audit_events (event_id, recorded_date, event, client_id, operation, method, path, status,
      resource_type, resource_id, study_id, request_id)
    select id, clock_timestamp() - age * interval '1 millisecond', event, "clientId", operation, method, path, status,
      "resourceType", "resourceId", "studyId", "requestId"
    from ${eventRows(1)}`;
  await db.query(prepared(text, [JSON.stringify(rows)]));
}
