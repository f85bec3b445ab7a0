import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import { openEmbedded } from '../src/db/embedded.ts';
import { type Ask, asker, expectBody } from './faults-client.ts';
import { type Subject, serve, tokenOf } from './service.ts';

/** The service on one data directory, to be killed and started again; its address and the client's token stay. */
export interface Mortal extends Subject {
  ask: Ask;
  /** Jobs that the process which runs now, or was killed last, has or had under way. */
  underWay(): Promise<{ exports: number; images: number }>;
  /** `kill -9`; resolves when the process is gone. */
  kill(): Promise<void>;
  /** `sds serve` again. */
  revive(): Promise<void>;
}

/**
 * A free port. Not of those that the system gives to connections: a client that tries again and again to reach a server
 * that is down may be given that very port as its own.
 */
async function freePort(): Promise<number> {
  for (;;) {
    const port = 20_000 + Math.floor(Math.random() * 10_000);
    const server = createServer();
    const free = await new Promise<boolean>((resolve) => {
      server.once('error', () => resolve(false)).listen(port, '127.0.0.1', () => resolve(true));
    });
    if (!free) continue;
    server.close();
    await once(server, 'close');
    return port;
  }
}

export async function startMortal(env: Record<string, string>): Promise<Mortal> {
  const dir = await mkdtemp(join(tmpdir(), 'sds-bench-'));
  const port = String(await freePort());
  const start = () => serve(dir, { SDS_PORT: port, SDS_LOG_LEVEL: 'error', ...env });
  let peer = await start();
  const token = await tokenOf(peer.url);
  const embedded = await openEmbedded({ dir, purpose: 'tool' });
  const db = new pg.Client({ connectionString: embedded.url });
  await db.connect();
  const url = `${peer.url}/api/v1`;
  const ask = asker(url, token);
  return {
    get peer() {
      return peer;
    },
    url,
    token,
    dir,
    databaseUrl: embedded.url,
    db,
    ask,
    async call<T>(method: string, path: string, body?: unknown) {
      return expectBody<T>(method === 'POST' ? 201 : 200, ask(method, path, body));
    },
    async underWay() {
      const { rows } = await db.query(
        `select (select count(*)::int from export_jobs where status = 'IN_PROGRESS' and worker_id like $1) as exports,
          (select count(*)::int from image_jobs where status = 'RUNNING' and worker_id like $1) as images`,
        [`%/${peer.process.pid}/%`],
      );
      return rows[0];
    },
    async kill() {
      peer.process.kill('SIGKILL');
      if (peer.process.signalCode === null) await once(peer.process, 'exit');
    },
    async revive() {
      peer = await start();
    },
    async stop() {
      await db.end();
      if (peer.process.signalCode === null) await peer.stop();
      await embedded.close();
      await rm(dir, { recursive: true, force: true });
    },
  };
}
