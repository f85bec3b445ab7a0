import { Type } from 'typebox';
import { pageParameters, pageRequest } from '../db/paging.ts';
import { eventNames } from '../http/gate.ts';
import { type Api, operation } from '../http/operation.ts';
import { pageBody, pageSchema } from '../http/page.ts';
import { ID_PATTERN } from '../lib/id.ts';
import { type Fault, notFound } from '../lib/problem.ts';
import { findEvent, listEvents } from './queries.ts';

const Id = (description: string) => Type.String({ pattern: ID_PATTERN, description });
const Nullable = <T extends Parameters<typeof Type.Union>[0][number]>(schema: T) => Type.Union([schema, Type.Null()]);

/** An audit event as it is read (decisions §7). */
export const AuditEvent = Type.Object(
  {
    eventId: Id('Identifier of the event.'),
    sequence: Type.Integer({ description: 'Grows from event to event; may have gaps.' }),
    recordedDate: Type.String({
      format: 'date-time',
      description: 'When it was recorded, UTC.',
      examples: ['2026-03-02T08:15:30.123Z'],
    }),
    // No enum: another version of the service may write to the same database, and knows other names.
    event: Type.String({
      description: `Name of the event: ${eventNames.join(', ')}, or one that a later version adds.`,
      examples: [...eventNames],
    }),
    clientId: Type.String({ description: 'The client that called.' }),
    operation: Type.String({ description: 'Method and path pattern.', examples: ['POST /studies/{studyId}/subjects'] }),
    method: Type.String({ description: 'HTTP method.' }),
    path: Type.String({ description: 'The path as called, without its query.' }),
    status: Nullable(Type.Integer({ description: 'HTTP status of the answer; null for what a job leaves.' })),
    resourceType: Nullable(
      Type.String({ description: 'study, subject, organ, slide, finding, score, codes, export, …' }),
    ),
    resourceId: Nullable(Id('The record concerned.')),
    resourceIds: Nullable(Type.Array(Type.String(), { description: 'The records of a bulk action.' })),
    studyId: Nullable(Id('The study concerned.')),
    requestId: Type.String({ description: 'Of the answer’s X-Request-Id and of the log.' }),
    reason: Nullable(Type.String({ description: 'The client’s X-Change-Reason.' })),
    changes: Type.Unknown({
      description:
        'What an update or delete changed: {before, after} with only the members that changed; of a delete, after is null; of a bulk update a list of them with ids.',
      examples: [{ before: { name: '1001' }, after: { name: '1002' } }],
    }),
  },
  { title: 'AuditEvent', description: 'One event of the audit log.' },
);

const DATE = /^(\d{4})-(\d{2})-(\d{2})(T\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?(Z|[+-]\d{2}:\d{2}))?$/;

/**
 * The moment that a filter names, as the database reads it: a timestamp with its zone, or a date in UTC (as the end of a
 * period its last millisecond). Null for what is no date of the calendar.
 */
function moment(value: string, end: boolean): string | null {
  const [, year = '', month = '', day = '', time] = DATE.exec(value) ?? [];
  const date = new Date(`${year}-${month}-${day}T00:00:00Z`);
  // The 30th of February is the 2nd of March for JavaScript.
  if (year === '' || Number.isNaN(date.getTime()) || date.getUTCDate() !== Number(day)) return null;
  const at = new Date(time === undefined && end ? `${value}T23:59:59.999Z` : value);
  if (Number.isNaN(at.getTime())) return null;
  const text = at.toISOString();
  return /^(?!0000)\d{4}-/.test(text) ? text : null;
}

function checkDates({ query }: { query: Record<string, unknown> }): Fault[] {
  const wrong = ['from', 'to'].filter((name) => {
    const value = query[name];
    return typeof value === 'string' && moment(value, name === 'to') === null;
  });
  return wrong.map((parameter) => ({ parameter, detail: 'must be an ISO 8601 date, or date and time with its zone' }));
}

export function auditRoutes(api: Api): void {
  const common = { method: 'GET', tag: 'audit', scope: 'Audit:Read', event: 'CLIENT_ACCESSED_STUDY' } as const;

  operation(api, {
    ...common,
    path: '/audit/events',
    operationId: 'listAuditEvents',
    summary: 'Lists audit events, oldest first',
    resource: { type: 'auditEvent' },
    query: Type.Object({
      clientId: Type.Optional(Type.String({ description: 'Only events of this client.' })),
      event: Type.Optional(Type.Enum([...eventNames], { description: 'Only events of this name.' })),
      studyId: Type.Optional(Id('Only events of this study.')),
      resourceId: Type.Optional(Id('Only events of this record, bulk actions included.')),
      from: Type.Optional(Type.String({ description: 'Only events recorded then or later (ISO 8601).' })),
      to: Type.Optional(
        Type.String({
          description: 'Only events recorded then or earlier (ISO 8601); a date is the whole day, in UTC.',
        }),
      ),
      ...pageParameters(['recordedDate']),
    }),
    check: checkDates,
    responses: { 200: { description: 'A page of events.', schema: pageSchema(AuditEvent) } },
    read: async (db, { query, request }) => {
      const { pageNumber, pageSize, sort, sortDirection, cursor, ...filters } = query as Record<string, string>;
      for (const name of ['from', 'to']) {
        const value = filters[name] === undefined ? null : moment(filters[name], name === 'to');
        if (value !== null) filters[name] = value;
      }
      const page = await listEvents(db, filters, pageRequest(query, 'recordedDate'));
      return { body: pageBody(page, request, api.publicUrl) };
    },
  });

  operation(api, {
    ...common,
    path: '/audit/events/{eventId}',
    operationId: 'getAuditEvent',
    summary: 'Reads an audit event',
    resource: { type: 'auditEvent', id: 'eventId' },
    responses: { 200: { description: 'The event.', schema: AuditEvent } },
    problems: [404],
    read: async (db, { params }) => {
      const record = await findEvent(db, params.eventId);
      if (!record) throw notFound('audit event');
      return { body: record };
    },
  });
}
