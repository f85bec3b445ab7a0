import { readFileSync } from 'node:fs';
import type { AddressInfo } from 'node:net';
import type pg from 'pg';
import type { Logger } from 'pino';
import { buildApp } from './app.ts';
import { ReadBuffer } from './audit/read-buffer.ts';
import { eventClause, eventsClause, recordEvent } from './audit/record.ts';
import { createAuth } from './auth/auth.ts';
import { bootstrapClient, countClients } from './auth/clients.ts';
import { openDatabase } from './cli/open.ts';
import type { Settings } from './config.ts';
import { openPool } from './db/database.ts';
import type { Gate } from './http/gate.ts';
import { openMetrics } from './http/probes.ts';
import { JobFeeds } from './images/progress.ts';
import { listen } from './jobs/listen.ts';
import { WorkThread } from './jobs/thread.ts';
import { MasterKeys } from './lib/master-keys.ts';
import { openStore } from './objects/open.ts';
import type { WorkSettings } from './work.ts';

/** A running service. */
export interface Running {
  /** Where it listens: `http://HOST:PORT`. */
  url: string;
  /** Stops accepting, finishes requests in flight, hands jobs back, flushes the audit, stops the database. */
  close(): Promise<void>;
}

/** 10 s for requests in flight (decisions §10); what still runs then is cut off. */
const DRAIN_MS = 10_000;

/** Beside this file, as source or built. */
const workEntry = new URL(import.meta.url.endsWith('.ts') ? './work.ts' : './work.js', import.meta.url);

const { version } = JSON.parse(readFileSync(new URL('../package.json', import.meta.url), 'utf8')) as {
  version: string;
};

/** Opens everything in order and closes it in reverse: the composition root. */
export async function serve(settings: Settings, log: Logger, signal?: AbortSignal): Promise<Running> {
  const { config, secrets } = settings;
  const closers: (() => Promise<void>)[] = [];
  const close = async () => {
    for (const closer of closers.splice(0).reverse()) {
      await closer().catch((err: unknown) => log.error({ err }, 'a part of the service did not close in order'));
    }
  };
  try {
    const masterKey = await MasterKeys.open(secrets.masterKey);
    const database = await openDatabase(settings, {
      purpose: 'serve',
      log: (message) => log.info(message),
      ...(signal ? { signal } : {}),
    });
    closers.push(() => database.close());
    const pool = openPool({
      url: database.url,
      name: 'sds api',
      // 30 s: a request's statement takes seconds at most; a database that froze is one that is out of reach.
      queryTimeoutMs: 30_000,
      onError: (err) => log.warn({ err }, 'an idle database connection broke'),
    });
    closers.push(() => pool.end());
    const store = await openStore(config.objectStore, { idleTimeoutMs: config.cloudIdleTimeoutMs });
    closers.push(() => store.close());
    const metrics = openMetrics(pool);
    const reads = new ReadBuffer(pool, (count, err) => {
      metrics.readEventsDropped.inc(count);
      log.warn({ err, count }, 'read events were dropped');
    });
    closers.push(() => reads.flush());
    await welcome(settings, pool, log);
    const auth = createAuth({
      ...config,
      db: pool,
      masterKey,
      log,
      onTokenRequest: (outcome) => metrics.tokenRequests.inc({ outcome }),
    });
    closers.push(async () => auth.close());
    await auth.start();
    if (config.workers > 0) {
      const { workers, objectStore, filesInParallel, fileRoots, cloudEndpoints, cloudIdleTimeoutMs } = config;
      const work = {
        databaseUrl: database.url,
        objectStore,
        workers,
        filesInParallel,
        masterKey: secrets.masterKey,
        clouds: { fileRoots, cloudEndpoints, idleTimeoutMs: cloudIdleTimeoutMs },
      } satisfies WorkSettings;
      const thread = new WorkThread(workEntry, work, (report) => {
        if (report.type === 'log') log[report.level](report.fields, report.message);
        else if (report.type === 'running') metrics.jobsRunning.set(report.count);
        else metrics.jobs.observe({ kind: report.kind, outcome: report.outcome }, report.seconds);
      });
      thread.start();
      closers.push(() => thread.stop());
    }
    const gate: Gate = {
      authenticate: auth.authenticate,
      record: recordEvent,
      recordSoon: (draft) => reads.add(draft),
      recordWith: (draft) => ({ draft, clause: (first) => eventClause(draft, first), clauseOfAll: eventsClause }),
    };
    const feeds = new JobFeeds(pool);
    const listening = new AbortController();
    closers.push(async () => {
      listening.abort();
      feeds.close();
    });
    await listen(
      {
        url: database.url,
        name: 'sds api notifications',
        tell: (report) => report.type === 'log' && log[report.level](report.fields, report.message),
        signal: listening.signal,
      },
      { sds_image_jobs: (jobId) => feeds.changed(jobId) },
      () => feeds.changedAll(),
    );
    const app = buildApp({
      ...config,
      feeds,
      pool,
      gate,
      log,
      store,
      metrics,
      metricsToken: secrets.metricsToken,
      credentials: { ...config, masterKey, idleTimeoutMs: config.cloudIdleTimeoutMs },
      auth,
      version,
    });
    closers.push(async () => {
      const cutOff = setTimeout(() => app.server.closeAllConnections(), DRAIN_MS);
      await app.close();
      clearTimeout(cutOff);
    });
    await app.listen({ host: config.host, port: config.port });
    const { port } = app.server.address() as AddressInfo;
    const host = config.host.includes(':') ? `[${config.host}]` : config.host;
    return { url: `http://${host}:${port}`, close };
  } catch (error) {
    await close();
    throw error;
  }
}

/** Makes the first client where one is configured, or says how to make one. */
async function welcome({ secrets }: Settings, pool: pg.Pool, log: Logger): Promise<void> {
  if (secrets.bootstrapClient && (await bootstrapClient(pool, secrets.bootstrapClient))) {
    log.info({ clientId: secrets.bootstrapClient.clientId }, 'the first client was made of SDS_BOOTSTRAP_CLIENT');
  }
  if ((await countClients(pool)) === 0) {
    log.warn('there is no client yet; make one: npx sds clients create --name NAME --scopes "Study:Read Study:Write"');
  }
}
