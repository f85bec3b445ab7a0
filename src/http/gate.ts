import type { Db } from '../db/database.ts';

/** Who calls: a client with a verified token. */
export interface Caller {
  clientId: string;
  /** Scopes that the token and the client both have at this moment. */
  scopes: ReadonlySet<string>;
  /** When the token ends, in milliseconds since 1970. */
  expiresAt: number;
}

/** What a record of study data, a job or a credential is called in an audit event (decisions §7). */
export type ResourceType =
  | 'study'
  | 'subject'
  | 'organ'
  | 'slide'
  | 'finding'
  | 'score'
  | 'codes'
  | 'export'
  | 'imageJob'
  | 'credential'
  | 'auditEvent';

/** Names of audit events (interface.md §6, decisions §7). */
export const eventNames = [
  'STUDY_CREATED',
  'STUDY_UPDATED',
  'STUDY_DELETED',
  'CLIENT_STUDY_EXPORT',
  'CLIENT_STUDY_EXPORT_DELETED',
  'CLIENT_ACCESSED_STUDY',
  'CLIENT_ACCESSED_STUDY_FAILURE',
  'CLIENT_REQUEST_REJECTED',
  'IMAGE_JOB_CREATED',
  'IMAGE_JOB_RETRIED',
  'IMAGE_JOB_CANCELLED',
  'IMAGE_JOB_COMPLETED',
  'CLOUD_CREDENTIAL_CREATED',
  'CLOUD_CREDENTIAL_UPDATED',
  'CLOUD_CREDENTIAL_DELETED',
  'CLOUD_CREDENTIAL_VALIDATED',
] as const;
export type EventName = (typeof eventNames)[number];

/** An audit event before it has its id, sequence and date (decisions §7). */
export interface EventDraft {
  event: EventName;
  clientId: string;
  /** Method and path pattern: `POST /studies/{studyId}/subjects`. */
  operation: string;
  method: string;
  /** The path as called, without its query. */
  path: string;
  status: number | null;
  resourceType: ResourceType | null;
  resourceId: string | null;
  /** Ids of a bulk action, in its order. */
  resourceIds: string[] | null;
  studyId: string | null;
  requestId: string;
  /** The client's X-Change-Reason. */
  reason: string | null;
  /** What an update or delete changed: `{before, after}`, or a list of them with ids. */
  changes: unknown;
}

/**
 * An audit event as part of somebody else's statement, so that a write and its event are one round trip. The statement
 * names the rows it wrote `written`, with their ids in the column `id`, from which the event takes its `resourceIds`
 * (where the draft has a list of them) or its `resourceId`; without rows there is no event.
 */
export interface EventClause {
  /** Common table expressions, to be put after that of `written`, without a leading comma. */
  sql: string;
  /** Values of its parameters, which are numbered from `firstParameter` on. */
  values: unknown[];
}

/** The event of a call whose one statement writes all that it tells of. */
export interface EventWriter {
  draft: EventDraft;
  /** The event in that statement. */
  clause(firstParameter: number): EventClause;
  /** The events of several calls in one statement that does the work of all; each draft names its `resourceId`. */
  clauseOfAll(drafts: EventDraft[], firstParameter: number): EventClause;
}

/** What a request has to pass and leave behind. HTTP declares it; authentication and audit supply it. */
export interface Gate {
  /** The caller of a bearer token; throws the 401 problem. Answers at once where the token is known already. */
  authenticate(authorization: string | undefined): Caller | Promise<Caller>;
  /** Records an event in the caller's transaction, or at once when given the pool. */
  record(db: Db, event: EventDraft): Promise<void>;
  /** Records a read event soon, without waiting; dropped and counted when too many wait. */
  recordSoon(event: EventDraft): void;
  /** An event to be written by the statement that writes what it tells of. */
  recordWith(event: EventDraft): EventWriter;
}
