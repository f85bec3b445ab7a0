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
import type { CredentialDeps } from './credentials/open.ts';
import { credentialRoutes } from './credentials/routes.ts';
import { exportRoutes } from './exports/routes.ts';
import { answerClientError } from './http/client-error.ts';
import { docsRoutes } from './http/docs.ts';
import type { Gate } from './http/gate.ts';
import { jsonBodies } from './http/json-body.ts';
import { refuseOtherMethods, routeEveryMethod } from './http/methods.ts';
import { openapiDocument } from './http/openapi.ts';
import type { AnyOperation, Api } from './http/operation.ts';
import { routePath } from './http/operation.ts';
import { type Metrics, probeRoutes } from './http/probes.ts';
import { errorHandler, problemPage } from './http/problems.ts';
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
  credentials: CredentialDeps;
  /** Streams of image jobs. */
  feeds: JobFeeds;
  imageJobsPerClient: number;
}

/** What reads nothing and writes nothing of the API: a page, a probe, a document. */
const READ_ONLY = ['GET', 'HEAD'];

const HEAD_BYTES = 32_768;

/** The whole HTTP server: every routes.ts by name. */
export function buildApp(services: Services): FastifyInstance {
  const { pool, gate, log, metrics } = services;
  const app = Fastify({
    loggerInstance: log,
    logController: new LogController({ disableRequestLogging: true }),
    genReqId: () => newId(),
    bodyLimit: services.bodyLimitBytes,
    // 32 KiB: a FILE NAME of 1,024 characters is a filter of 12 KiB, percent-encoded, and again in the cursor of a link.
    http: { maxHeaderSize: HEAD_BYTES },
    // 5 minutes: a body of 8 MiB by a line of 0.25 Mbit/s; who takes longer only holds the connection.
    requestTimeout: 300_000,
    // Requests that still come in by open connections are answered like the others, to the last.
    return503OnClosing: false,
    // Long ids are malformed ones, which is for us to tell (400) and not for the router (404).
    routerOptions: { maxParamLength: HEAD_BYTES, ignoreTrailingSlash: false },
    // The absolute form of a URL, which a client of a proxy sends (RFC 9112 §3.2.2).
    rewriteUrl: ({ url = '/' }) => url.replace(/^https?:\/\/[^/?]*/i, ''),
    clientErrorHandler: answerClientError,
    // A URL that cannot be decoded is told like everything else: 401 first, under /api/v1.
    frameworkErrors: (error, request, reply) => {
      void refuseUrl(error, request as FastifyRequest, reply as unknown as FastifyReply);
    },
  });
  const onError = errorHandler(gate, pool);
  const refuseUrl = async (error: Error, request: FastifyRequest, reply: FastifyReply): Promise<void> => {
    try {
      if (needsToken(request)) await authenticated(gate)(request);
      await onError(error, request, reply);
    } catch (problem) {
      await onError(problem, request, reply);
    }
  };
  app.decorateRequest('caller', null);
  app.decorateRequest('operation', null);
  app.decorateRequest('recorded', false);
  app.setErrorHandler(onError);
  routeEveryMethod(app);
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
      const { requireChangeReason, publicUrl, version } = services;
      const api: Api = { app: scope, pool, gate, operations, requireChangeReason, publicUrl };
      studyRoutes(api);
      exportRoutes(api, services);
      imageRoutes(api, services);
      credentialRoutes(api, services.credentials);
      auditRoutes(api);
      for (const path of new Set(operations.map((one) => one.path))) {
        const group = operations.filter((one) => one.path === path);
        const allowed = group.flatMap(({ method }) => (method === 'GET' ? READ_ONLY : [method]));
        refuseOtherMethods(scope, routePath(path), allowed, async (request) => {
          request.operation = group[0] as AnyOperation;
          await authenticated(gate)(request);
        });
      }
      const document = JSON.stringify(openapiDocument(operations, { version, scopes, requireChangeReason }));
      scope.get('/openapi.json', (_request, reply) => reply.type('application/json').send(document));
      refuseOtherMethods(scope, '/openapi.json', READ_ONLY);
    },
    { prefix: '/api/v1' },
  );
  void app.register(services.auth.routes);
  probeRoutes(app, { metrics, metricsToken: services.metricsToken, ready: () => readiness(services) });
  docsRoutes(app);
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
  for (const url of ['/healthz', '/readyz', '/metrics', '/docs', '/docs/', '/errors/:name'])
    refuseOtherMethods(app, url, READ_ONLY);
  app.get('/errors/:name', (request, reply) => {
    const page = problemPage((request.params as { name: string }).name);
    if (!page) throw new Problem('not-found', 'There is no such kind of problem.');
    return reply.type('text/html; charset=utf-8').send(page);
  });
  refuseUnknownPaths(app, gate);
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

/** Whether a URL needs a token, also one that is not there or cannot be decoded (decisions §8). */
function needsToken({ url }: FastifyRequest): boolean {
  return /^\/api\/v1(?![^/?])/.test(url);
}

/** 404 for all paths that are not there, before anything of the body is read. */
function refuseUnknownPaths(app: FastifyInstance, gate: Gate): void {
  app.addHook('onRequest', async (request) => {
    if (!request.is404) return;
    if (needsToken(request)) await authenticated(gate)(request);
    throw new Problem('not-found', 'There is no such path.');
  });
  app.setNotFoundHandler(() => {});
}
