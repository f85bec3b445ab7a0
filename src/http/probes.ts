import type { FastifyInstance } from 'fastify';
import type pg from 'pg';
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';
import { Problem } from '../lib/problem.ts';

/** What the service counts, for Prometheus. */
export interface Metrics {
  registry: Registry;
  requests: Histogram<'method' | 'operation' | 'status'>;
  readEventsDropped: Counter;
  tokenRequests: Counter<'outcome'>;
  jobs: Histogram<'kind' | 'outcome'>;
  jobsRunning: Gauge;
}

/** Metrics of one process. */
export function openMetrics(pool: pg.Pool): Metrics {
  const registry = new Registry();
  collectDefaultMetrics({ register: registry });
  new Gauge({
    name: 'sds_database_connections',
    help: 'Connections of the request pool, by what they do.',
    labelNames: ['state'],
    registers: [registry],
    collect() {
      this.set({ state: 'open' }, pool.totalCount);
      this.set({ state: 'idle' }, pool.idleCount);
      this.set({ state: 'waited_for' }, pool.waitingCount);
    },
  });
  return {
    registry,
    requests: new Histogram({
      name: 'sds_http_request_duration_seconds',
      help: 'Time from a request’s arrival to the end of its answer.',
      labelNames: ['method', 'operation', 'status'],
      // 1 ms to 10 s: reads of one record take 1 ms, the largest bulk calls some 100 ms.
      buckets: [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10],
      registers: [registry],
    }),
    readEventsDropped: new Counter({
      name: 'sds_audit_read_events_dropped_total',
      help: 'Read events that were lost because too many waited or the database was away.',
      registers: [registry],
    }),
    tokenRequests: new Counter({
      name: 'sds_token_requests_total',
      help: 'Requests for access tokens, by outcome.',
      labelNames: ['outcome'],
      registers: [registry],
    }),
    jobs: new Histogram({
      name: 'sds_job_duration_seconds',
      help: 'Time that jobs ran here, by kind and what became of them.',
      labelNames: ['kind', 'outcome'],
      // A small export takes 0.1 s, a terabyte of images hours.
      buckets: [0.1, 0.5, 1, 5, 10, 60, 300, 1_800, 7_200, 36_000],
      registers: [registry],
    }),
    jobsRunning: new Gauge({ name: 'sds_jobs_running', help: 'Jobs that run in this process.', registers: [registry] }),
  };
}

/** Health, readiness and metrics (decisions §10); none needs a token of the API. */
export function probeRoutes(
  app: FastifyInstance,
  deps: { metrics: Metrics; metricsToken: string | null; ready: () => Promise<Record<string, string>> },
): void {
  app.get('/healthz', () => ({ status: 'alive' }));

  app.get('/readyz', async (_request, reply) => {
    const checks = await deps.ready();
    const ready = Object.values(checks).every((state) => state === 'ok');
    return reply.code(ready ? 200 : 503).send({ status: ready ? 'ready' : 'not ready', checks });
  });

  app.get('/metrics', async (request, reply) => {
    const { metricsToken, metrics } = deps;
    if (metricsToken !== null && request.headers.authorization !== `Bearer ${metricsToken}`) {
      throw new Problem('unauthorized', 'The metrics need a token.', { headers: { 'WWW-Authenticate': 'Bearer' } });
    }
    return reply.type(metrics.registry.contentType).send(await metrics.registry.metrics());
  });
}
