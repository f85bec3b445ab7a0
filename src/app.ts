import apiReference from '@scalar/fastify-api-reference';
import Fastify, {
  type FastifyBaseLogger,
  type FastifyInstance,
  type FastifyReply,
  type FastifyRequest,
  LogController,
} from 'fastify';
import type pg from 'pg';
import { auditRoutes } from './audit/routes.ts';
import type { Auth } from './auth/auth.ts';
import { scopes } from './auth/scopes.ts';
import { exportRoutes } from './exports/routes.ts';
import type { Gate } from './http/gate.ts';
import { openapiDocument } from './http/openapi.ts';
import type { AnyOperation, Api } from './http/operation.ts';
import { routePath } from './http/operation.ts';
import { type Metrics, probeRoutes } from './http/probes.ts';
import { errorHandler, problemBody, problemOf, problemPage } from './http/problems.ts';
import type { JobFeeds } from './images/progress.ts';
import { imageRoutes } from './images/routes.ts';
import { newId } from './lib/id.ts';
import { Problem } from './lib/problem.ts';
import type { ObjectStore } from './objects/store.ts';
import { studyRoutes } from './studies/routes.ts';

/** What the HTTP side of the service is made of; serve.ts opens and closes all of it. */
export interface Services {
  pool: pg.Pool;
  gate: Gate;
  log: FastifyBaseLogger;
  store: ObjectStore;
  auth: Pick<Auth, 'routes'>;
  metrics: Metrics;
  metricsToken: string | null;
  /** Of the package. */
  version: string;
  bodyLimitBytes: number;
  retiredVersions: string[];
  requireChangeReason: boolean;
  publicUrl: string | null;
  /** Whether downloads redirect to where the store can sign a URL. */
  downloadRedirect: boolean;
  /** Streams of image jobs. */
  feeds: JobFeeds;
  imageJobsPerClient: number;
}

/** Every method that the server reads, so that a path answers 405 to those it does not have. */
const METHODS = ['GET', 'HEAD', 'POST', 'PUT', 'DELETE', 'PATCH', 'OPTIONS'] as const;

/** The whole HTTP server: every routes.ts by name. */
export function buildApp(services: Services): FastifyInstance {
  const { pool, gate, log, metrics } = services;
  const app = Fastify({
    loggerInstance: log,
    logController: new LogController({ disableRequestLogging: true }),
    genReqId: () => newId(),
    bodyLimit: services.bodyLimitBytes,
    // Long ids are malformed ones, which is for us to tell (400) and not for the router (404).
    routerOptions: { maxParamLength: 4_096, ignoreTrailingSlash: false },
    // A URL that cannot be decoded is told like everything else: 401 first, under /api/v1.
    frameworkErrors: (error, request, reply) => {
      void refuseUrl(error, request as FastifyRequest, reply as unknown as FastifyReply);
    },
  });
  const onError = errorHandler(gate, pool);
  const refuseUrl = async (error: Error, request: FastifyRequest, reply: FastifyReply): Promise<void> => {
    try {
      if (request.url.startsWith('/api/v1')) await authenticated(gate)(request);
      await onError(error, request, reply);
    } catch (problem) {
      await onError(problem, request, reply);
    }
  };
  app.decorateRequest('caller', null);
  app.decorateRequest('operation', null);
  app.setErrorHandler(onError);
  jsonBodies(app);
  app.addHook('onSend', (request, reply, payload, done) => {
    reply.header('X-Request-Id', request.id);
    done(null, payload);
  });
  app.addHook('onResponse', (request, reply, done) => {
    const { method, id: requestId } = request;
    const [path] = request.url.split('?', 1);
    const clientId = request.caller?.clientId;
    request.log.info(
      { method, path, status: reply.statusCode, ms: Math.round(reply.elapsedTime * 10) / 10, clientId, requestId },
      'request',
    );
    const operation = request.operation?.path ?? request.routeOptions.url ?? 'none';
    metrics.requests.observe({ method, operation, status: reply.statusCode }, reply.elapsedTime / 1_000);
    done();
  });

  const operations: AnyOperation[] = [];
  void app.register(
    async (scope) => {
      const { requireChangeReason, publicUrl } = services;
      const api: Api = { app: scope, pool, gate, operations, requireChangeReason, publicUrl };
      studyRoutes(api);
      exportRoutes(api, services);
      imageRoutes(api, services);
      auditRoutes(api);
      refuseOtherMethods(scope, operations, gate);
      const document = JSON.stringify(openapiDocument(operations, { version: services.version, scopes }));
      scope.get('/openapi.json', (_request, reply) => reply.type('application/json').send(document));
      scope.setNotFoundHandler({ preHandler: authenticated(gate) }, () => {
        throw new Problem('not-found', 'There is no such path.');
      });
    },
    { prefix: '/api/v1' },
  );
  void app.register(services.auth.routes);
  probeRoutes(app, { metrics, metricsToken: services.metricsToken, ready: () => readiness(services) });
  void app.register(apiReference, { routePrefix: '/docs', configuration: { url: '/api/v1/openapi.json' } });
  for (const version of services.retiredVersions) {
    for (const url of [`/api/${version}`, `/api/${version}/*`]) {
      app.all(
        url,
        {
          onRequest: () =>
            Promise.reject(new Problem('gone', `Version ${version} of the API is retired; use /api/v1.`)),
        },
        () => {},
      );
    }
  }
  app.get('/errors/:name', (request, reply) => {
    const page = problemPage((request.params as { name: string }).name);
    if (!page) throw new Problem('not-found', 'There is no such kind of problem.');
    return reply.type('text/html; charset=utf-8').send(page);
  });
  app.setNotFoundHandler(() => {
    throw new Problem('not-found', 'There is no such path.');
  });
  return app;
}

/** Whether the database and the object store answer. */
async function readiness({ pool, store, log }: Services): Promise<Record<string, string>> {
  const state = async (name: string, check: Promise<unknown>) => {
    const answered = await check.then(
      () => 'ok',
      (err: unknown) => {
        log.warn({ err }, `the ${name} does not answer`);
        return 'does not answer';
      },
    );
    return [name, answered];
  };
  // 5 s: a probe that waits longer has failed.
  const signal = AbortSignal.timeout(5_000);
  return Object.fromEntries(
    await Promise.all([state('database', pool.query('select 1')), state('objectStore', store.check({ signal }))]),
  );
}

/** A hook that lets only authenticated calls pass. */
function authenticated(gate: Gate) {
  return async (request: FastifyRequest): Promise<void> => {
    request.caller = await gate.authenticate(request.headers.authorization);
  };
}

/** 405 with Allow for the methods that a path does not have, before its body is looked at (decisions §8). */
function refuseOtherMethods(app: FastifyInstance, operations: AnyOperation[], gate: Gate): void {
  const methods = new Map<string, Set<string>>();
  for (const { method, path } of operations) {
    const known = methods.get(path) ?? new Set();
    known.add(method);
    if (method === 'GET') known.add('HEAD');
    methods.set(path, known);
  }
  for (const [path, known] of methods) {
    const allow = [...known].join(', ');
    const operation = operations.find((one) => one.path === path) as AnyOperation;
    app.route({
      method: METHODS.filter((method) => !known.has(method)),
      url: routePath(path),
      onRequest: async (request) => {
        request.operation = operation;
        await authenticated(gate)(request);
        throw new Problem('method-not-allowed', `This path has the methods ${allow}.`, { headers: { Allow: allow } });
      },
      handler: () => {},
    });
  }
}

const utf8 = new TextDecoder('utf-8', { fatal: true });

/**
 * Bodies are JSON in UTF-8 and nothing else; an empty one is none. Parsed here and not by Fastify, as `__proto__` is an
 * attribute key like any other (decisions §1).
 */
function jsonBodies(app: FastifyInstance): void {
  app.removeAllContentTypeParsers();
  app.addContentTypeParser('application/json', { parseAs: 'buffer' }, (_request, body, done) => {
    if (body.length === 0) return done(null, undefined);
    try {
      done(null, JSON.parse(utf8.decode(body as Buffer)));
    } catch (error) {
      // Only the place of the fault: the parser's own message quotes the body, which may hold a secret.
      const at = error instanceof SyntaxError ? /position \d+/.exec(error.message)?.[0] : undefined;
      const detail = error instanceof SyntaxError ? `is not valid JSON${at ? ` (${at})` : ''}` : 'is not UTF-8';
      done(new Problem('bad-request', `The body ${detail}.`, { faults: [{ pointer: '', detail }] }));
    }
  });
}
