import type { IncomingHttpHeaders } from 'node:http';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import type pg from 'pg';
import type { Static, TObject, TSchema } from 'typebox';
import { type Db, isWorthRetry, type Tx, transaction } from '../db/database.ts';
import { isId } from '../lib/id.ts';
import { type Fault, Problem, rejected } from '../lib/problem.ts';
import type { Caller, EventDraft, EventName, EventWriter, Gate, ResourceType } from './gate.ts';
import { changeReason, type IfMatch, parseIfMatch } from './headers.ts';
import { MalformedBody } from './json-body.ts';
import { sendNothing } from './send-nothing.ts';
import { Inspection } from './validate.ts';

/** Names in braces of a path: `/studies/{studyId}` → `studyId`. */
type ParamsOf<Path extends string> = Path extends `${string}{${infer Name}}${infer Rest}`
  ? { [K in Name]: string } & ParamsOf<Rest>
  : unknown;

/** One checked request, as its handler sees it. */
export interface Call<Params = unknown, Query = unknown, Body = unknown> {
  params: Params;
  query: Query;
  body: Body;
  /** The versions that the client's If-Match asks for; null without the header. */
  ifMatch: IfMatch | null;
  /**
   * Well-formed values that break a rule. They are a 422, but a record that does not exist (404) and a version that
   * does not match (412) come first (decisions §8): the handler checks those, then rejects.
   */
  faults: Fault[];
  caller: Caller;
  request: FastifyRequest;
}

/** What a handler answers. */
export interface Result {
  /** Default 200. */
  status?: 200 | 201 | 202 | 204 | 206 | 304 | 307;
  /** JSON text; absent for 204. */
  body?: string;
  headers?: Record<string, string>;
  /** What the handler knows of the event beyond the request. */
  event?: Partial<Pick<EventDraft, 'event' | 'resourceId' | 'resourceIds' | 'studyId' | 'changes'>>;
  /** Sends anything but JSON (a file, a stream) once the event is recorded. */
  send?: (reply: FastifyReply) => unknown;
}

/** What OpenAPI and the audit log tell of an operation, beyond what it does. */
interface Description<Path extends string, Q extends TObject, B extends TSchema> {
  method: 'GET' | 'POST' | 'PUT' | 'DELETE';
  /** OpenAPI form, below `/api/v1`: `/studies/{studyId}/exports/{exportId}:download`. */
  path: Path;
  operationId: string;
  summary: string;
  tag: string;
  scope: string;
  event: EventName;
  resource: { type: ResourceType; id?: keyof ParamsOf<Path> & string };
  query?: Q;
  body?: B;
  /** An action that takes no members accepts `{}` or no body at all (decisions §3). */
  bodyOptional?: boolean;
  /** Whether it writes several records: its event has `resourceIds`. */
  bulk?: boolean;
  /** PUT and DELETE of a record with a version. */
  ifMatch?: boolean;
  /** What its schemas cannot say: further faults that make a request malformed, told along with all others. */
  check?: (request: { headers: IncomingHttpHeaders; query: Record<string, unknown>; body: unknown }) => Fault[];
  /** Further request headers, for the API document. */
  headers?: Record<string, { description: string }>;
  /** Schema of each successful answer; null for one without a JSON body. */
  responses: Record<
    number,
    { description: string; schema: TSchema | null; mediaType?: string | readonly string[]; headers?: readonly string[] }
  >;
  /** Statuses of problems besides those every operation can answer. */
  problems?: readonly number[];
}

type CallOf<Path extends string, Q extends TObject, B extends TSchema> = Call<ParamsOf<Path>, Static<Q>, Static<B>>;

/** How it runs: what it may touch, and when its event is recorded. */
type Handling<C> =
  /** Reads; its event is recorded soon. */
  | { read: (db: Db, call: C) => Promise<Result> }
  /** Reads something whose event must be on record before the first byte leaves (a download). */
  | { disclose: (db: Db, call: C) => Promise<Result> }
  /** Writes in a transaction, in which the event is recorded too. */
  | { write: (tx: Tx, call: C) => Promise<Result> }
  /** Writes by one statement that contains the event. */
  | { create: (db: Db, call: C, event: EventWriter) => Promise<Result> };

export type Operation<
  Path extends string = string,
  Q extends TObject = TObject,
  B extends TSchema = TSchema,
> = Description<Path, Q, B> & Handling<CallOf<Path, Q, B>>;

/** An operation without its handler's types: what the API document and the tests walk. */
export type AnyOperation = Description<string, TObject, TSchema> & {
  [K in 'read' | 'disclose' | 'write' | 'create']?: (...args: never) => Promise<Result>;
};

/** What every routes.ts is given. */
export interface Api {
  /** The server, with `/api/v1` before every path. */
  app: FastifyInstance;
  pool: pg.Pool;
  gate: Gate;
  /** Every operation so far, for the API document and for the test that walks them. */
  operations: AnyOperation[];
  /** Whether PUT and DELETE of study data need an X-Change-Reason (SDS_REQUIRE_CHANGE_REASON). */
  requireChangeReason: boolean;
  /** Base of absolute links (SDS_PUBLIC_URL); null: as the request came in. */
  publicUrl: string | null;
}

declare module 'fastify' {
  interface FastifyRequest {
    /** Set once the token is verified: from then on the call leaves an event, whatever becomes of it. */
    caller: Caller | null;
    /** What the event of this call says whatever happens. */
    operation: AnyOperation | null;
    /** Whether the event of this call is on record: whatever fails after that leaves no second one. */
    recorded: boolean;
  }
}

/** Fastify's form of an OpenAPI path: a literal colon is doubled, and an id ends at a slash or colon. */
export function routePath(path: string): string {
  return path.replaceAll(':', '::').replace(/\{(\w+)\}/g, ':$1([^:/]+)');
}

/** The event of a request as far as it is known before, and without, its handler. */
export function draftEvent(request: FastifyRequest, event: EventName, status: number | null): EventDraft {
  const { operation } = request;
  const params = (request.params ?? {}) as Record<string, string | undefined>;
  const id = (name: string | undefined) => {
    const value = name ? params[name] : undefined;
    return value && isId(value) ? value : null;
  };
  const [path = ''] = request.url.split('?', 1);
  return {
    event,
    clientId: request.caller?.clientId ?? '',
    operation: `${request.method} ${operation?.path ?? '(unknown path)'}`,
    method: request.method,
    path,
    status,
    resourceType: operation?.resource.type ?? null,
    resourceId: id(operation?.resource.id),
    resourceIds: null,
    studyId: id('studyId'),
    requestId: request.id,
    reason: changeReason(request.headers).reason,
    changes: null,
  };
}

/** Checks everything of a request that can be checked without the database; throws the 400 with all its faults. */
function inspect(api: Api, op: AnyOperation, request: FastifyRequest): Call {
  const inspection = new Inspection();
  const params = request.params as Record<string, string>;
  for (const [name, value] of Object.entries(params)) {
    if (!isId(value)) inspection.malformed.push({ parameter: name, detail: 'is not a well-formed identifier' });
  }
  const query = request.query as Record<string, unknown>;
  inspection.parameters(op.query ?? NO_PARAMETERS, query);
  const { reason, fault } = changeReason(request.headers);
  if (fault) inspection.malformed.push(fault);
  const ifMatch = op.ifMatch ? parseIfMatch(request.headers['if-match'], inspection.malformed) : null;
  const broken = request.body instanceof MalformedBody ? request.body.fault : null;
  const body = broken ? undefined : request.body;
  if (broken) inspection.malformed.push(broken);
  else if (op.body && body !== undefined) inspection.body(op.body, body);
  else if (op.body && !op.bodyOptional) {
    inspection.malformed.push({ pointer: '', detail: 'a JSON body is required' });
  }
  inspection.malformed.push(...(op.check?.({ headers: request.headers, query, body }) ?? []));
  if (inspection.malformed.length > 0) {
    throw rejected('bad-request', [...inspection.malformed, ...inspection.broken]);
  }
  const faults = inspection.broken;
  if (api.requireChangeReason && changesStudyData(op) && reason === null) {
    faults.push({ header: 'X-Change-Reason', detail: 'a reason is required for changing study data' });
  }
  return { params, query, body, ifMatch, faults, caller: request.caller as Caller, request };
}

/** Whether an operation changes or deletes what SDS_REQUIRE_CHANGE_REASON speaks of: an export is none (decisions §7). */
export function changesStudyData({ method, scope, resource }: AnyOperation): boolean {
  return /^(PUT|DELETE)$/.test(method) && scope.startsWith('Study:') && resource.type !== 'export';
}

const NO_PARAMETERS = { type: 'object', properties: {} } as unknown as TSchema;

function respond(reply: FastifyReply, result: Result): unknown {
  reply.code(result.status ?? 200);
  if (result.headers) reply.headers(result.headers);
  if (result.send) return result.send(reply);
  if (result.body === undefined) return sendNothing(reply);
  return reply.header('content-type', 'application/json; charset=utf-8').send(result.body);
}

/** A deadlock is broken at the cost of one of its requests, which then finds its way free: 3 tries end any real one. */
const TRIES = 3;

/** Runs `work` again where the database gave it up for another's sake; each try has its own list of faults. */
async function insisting(call: Call, work: (call: Call) => Promise<Result>): Promise<Result> {
  for (let tries = 1; ; tries++) {
    try {
      return await work({ ...call, faults: call.faults.map((fault) => ({ ...fault })) });
    } catch (error) {
      if (tries === TRIES || !isWorthRetry(error)) throw error;
    }
  }
}

/** Runs the handler and records its event, in the order that its kind asks for. */
async function run(api: Api, op: AnyOperation, call: Call): Promise<Result> {
  const { pool, gate } = api;
  const op_ = op as unknown as Handling<Call>;
  const draft = (result: Result): EventDraft => ({
    ...draftEvent(call.request, op.event, result.status ?? 200),
    ...result.event,
  });
  if ('read' in op_) {
    const result = await op_.read(pool, call);
    gate.recordSoon(draft(result));
    return result;
  }
  if ('disclose' in op_) {
    const result = await op_.disclose(pool, call);
    await gate.record(pool, draft(result));
    return result;
  }
  if ('create' in op_) {
    // Written before the handler has an answer, so its event tells the operation's own status.
    const status = Number(Object.keys(op.responses)[0]) as 200 | 201;
    const event = gate.recordWith({ ...draft({ status }), resourceIds: op.bulk ? [] : null });
    return insisting(call, (one) => op_.create(pool, one, event));
  }
  return insisting(call, (one) =>
    transaction(pool, async (tx) => {
      const result = await op_.write(tx, one);
      if (one.faults.length > 0) throw rejected('validation-failed', one.faults);
      await gate.record(tx, draft(result));
      return result;
    }),
  );
}

/**
 * Adds one operation to the API: the one place that knows the order of checks (decisions §8: 401, 404 and 405 of path
 * and method, 403, 415 and 413, 400, then the handler's 404, 412, 422, 409), records the event and renders the result.
 */
export function operation<Path extends string, Q extends TObject, B extends TSchema>(
  api: Api,
  spec: Operation<Path, Q, B>,
): void {
  const op = spec as unknown as AnyOperation;
  api.operations.push(op);
  api.app.route({
    method: op.method,
    url: routePath(op.path),
    onRequest: (request, _reply, done) => {
      request.operation = op;
      const admit = (caller: Caller) => {
        request.caller = caller;
        done(caller.scopes.has(op.scope) ? undefined : missingScope(op.scope));
      };
      try {
        const caller = api.gate.authenticate(request.headers.authorization);
        if (caller instanceof Promise) caller.then(admit, done);
        else admit(caller);
      } catch (problem) {
        done(problem as Error);
      }
    },
    handler: async (request, reply) => {
      const result = await run(api, op, inspect(api, op, request));
      request.recorded = true;
      return respond(reply, result);
    },
  });
}

/** `Study:Write` is told as `STUDY_WRITE` (interface.md §5, decisions §6). */
function missingScope(scope: string): Problem {
  return new Problem('forbidden', `Missing scope ${scope.replace(':', '_').toUpperCase()}.`, {
    headers: { 'WWW-Authenticate': `Bearer error="insufficient_scope", scope="${scope}"` },
  });
}
