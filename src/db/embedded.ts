import { mkdir, realpath, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { isDatabaseError, isUnavailable } from './database.ts';
import { findBinaries } from './embedded/binaries.ts';
import { chooseUser, ensureCluster, owner, socketDirectory } from './embedded/cluster.ts';
import {
  accepts,
  endOrphans,
  isServer,
  type Launched,
  launch,
  type PidFile,
  readPidFile,
  stop,
} from './embedded/postmaster.ts';
import { takeStartLock } from './embedded/start-lock.ts';

export interface EmbeddedOptions {
  /** Absolute path of the service's data directory; the cluster is made and kept in `dir/postgres`. */
  dir: string;
  /** `serve` has the directory to itself among servers; a `tool` works beside a server or alone. */
  purpose: 'serve' | 'tool';
  log?: (message: string) => void;
  /** Gives up the start. */
  signal?: AbortSignal;
}

export interface EmbeddedServer {
  /** For node-pg and libpq: through the Unix socket, as the superuser, who owns everything. */
  readonly url: string;
  /** Process id of the server; another one after it had to be started again. */
  readonly pid: number;
  /** Whether this process started it; false: it was running (for a tool, or after `kill -9` of the service). */
  readonly started: boolean;
  /** Lets go of the server, and stops it unless another process uses it. End your own connections first. */
  close(): Promise<void>;
}

/** Another `sds serve` works in the data directory. */
export class DataDirectoryInUse extends Error {
  override name = 'DataDirectoryInUse';
}

/** A start takes 50 ms, and longer only where it has to recover from a crash. */
const startTimeoutMs = 60_000;
/** A dead server's remains may take a moment to go: its processes end when they see that it is gone. */
const remainsMs = 5_000;
/** What has not gone by itself then, is helped. */
const patienceMs = 1_000;
/** A killed `sds serve` is seen by its server within milliseconds; who holds the lock longer is alive. */
const lockTimeoutMs = 2_000;
const pollMs = 5;
/** Between starts of a server that remains hinder. */
const retryMs = 100;
/** Between attempts to get a lost server back. */
const reviveMs = 1_000;

/** Advisory locks of the database `postgres`: (class, object). The class is "sds" in ASCII. */
const lock = { class: 0x736473, serve: 1, use: 2 };

interface Attached {
  file: PidFile;
  started: boolean;
  /** The connection that holds the locks. */
  client: pg.Client;
}

/**
 * Opens the PostgreSQL of the data directory: makes the cluster where there is none, starts the server or adopts the
 * running one. A server that dies while it is open is started again.
 * @throws DataDirectoryInUse for a second `serve`; an `Error` whose message says what to do for all else.
 */
export async function openEmbedded(options: EmbeddedOptions): Promise<EmbeddedServer> {
  const log = options.log ?? (() => {});
  await mkdir(options.dir, { recursive: true, mode: 0o700 });
  const dir = await realpath(options.dir);
  const attachHere = (signal?: AbortSignal) => attach(dir, options.purpose, log, signal);
  let attached: Attached | null = await attachHere(options.signal);
  let { file, started } = attached;
  let reviving = Promise.resolve();
  const closing = new AbortController();

  const revive = async () => {
    while (!closing.signal.aborted) {
      try {
        attached = await attachHere(closing.signal);
        ({ file, started } = attached);
        log(`embedded PostgreSQL is back (process ${file.pid})`);
        return watch(attached.client);
      } catch (error) {
        if (closing.signal.aborted) return;
        log(`embedded PostgreSQL is lost: ${(error as Error).message}`);
        await sleep(reviveMs, undefined, { signal: closing.signal }).catch(() => {});
      }
    }
  };
  const watch = (client: pg.Client) => {
    client.once('end', () => {
      if (closing.signal.aborted) return;
      attached = null;
      reviving = revive();
    });
  };
  watch(attached.client);

  let closed: Promise<void> | undefined;
  const close = async () => {
    closing.abort();
    await reviving;
    if (attached) await release(attached, join(dir, 'postgres'));
  };
  return {
    url: urlOf(file),
    get pid() {
      return file.pid;
    },
    get started() {
      return started;
    },
    close: () => (closed ??= close()),
  };
}

/** A running server with our locks on it, within a minute. */
async function attach(
  dir: string,
  purpose: EmbeddedOptions['purpose'],
  log: (message: string) => void,
  given?: AbortSignal,
): Promise<Attached> {
  const timeout = AbortSignal.timeout(startTimeoutMs);
  const signal = given ? AbortSignal.any([given, timeout]) : timeout;
  const data = join(dir, 'postgres');
  const progress: Progress = { launched: null, fault: null };
  let unlock = () => {};
  try {
    unlock = await takeStartLock(dir, signal);
    for (;;) {
      const file = await run(dir, data, progress, signal);
      try {
        const client = await takeLocks(file, purpose, signal);
        const started = progress.launched?.pid === file.pid;
        log(`embedded PostgreSQL ${started ? 'started' : 'adopted'} (process ${file.pid})`);
        return { file, started, client };
      } catch (error) {
        // It was stopped by the one who used it last, or is not yet, or no longer, up.
        if (!isUnavailable(error) && !isLockTimeout(error)) throw error;
        progress.fault = error as Error;
        if (progress.launched?.ended) progress.launched = null;
        await sleep(pollMs, undefined, { signal });
      }
    }
  } catch (error) {
    if (given?.aborted) {
      const { launched } = progress;
      if (launched && !launched.ended) await stop(launched.pid, data);
      throw given.reason;
    }
    if (!timeout.aborted) throw error;
    // Not stopped: recovery from a crash may need more time, and would begin anew.
    const tail = (await progress.launched?.logTail()) ?? progress.fault?.message ?? '';
    const message = `The embedded PostgreSQL in ${data} was not ready within ${startTimeoutMs / 1000} s; try again. ${tail}`;
    throw new Error(message.trim(), { cause: progress.fault ?? error });
  } finally {
    unlock();
  }
}

/** How far a start has come, for the error that may end it. */
interface Progress {
  launched: Launched | null;
  /** Why the last connection failed. */
  fault: Error | null;
}

/** Finds the server of the cluster, or starts it, and waits until it is ready. */
async function run(dir: string, data: string, progress: Progress, signal: AbortSignal): Promise<PidFile> {
  const runAs = await chooseUser(data);
  let setup: { sockets: string; binaries: Awaited<ReturnType<typeof findBinaries>> } | null = null;
  let blockedSince: number | null = null;
  for (;;) {
    signal.throwIfAborted();
    const file = await readPidFile(data);
    const up = (file && (await isServer(file.pid, data))) || (await accepts(file?.socketDir ?? data));
    if (up && file?.status === 'ready') return file;
    if (!up && (!progress.launched || progress.launched.ended)) {
      if (progress.launched) {
        blockedSince ??= Date.now();
        await clearRemains(progress.launched, data, Date.now() - blockedSince);
        await sleep(retryMs, undefined, { signal });
      }
      if (!setup) {
        const binaries = await findBinaries(dir, runAs);
        await ensureCluster(data, binaries, runAs, signal);
        setup = { binaries, sockets: await socketDirectory(data, runAs) };
      }
      progress.launched = await launch({ dir, data, ...setup, runAs, stale: file?.pid || null });
    }
    await sleep(pollMs, undefined, { signal });
  }
}

/** After a start that failed because of what a dead server left; another reason is an error. */
async function clearRemains({ ended, logTail }: Launched, data: string, blockedMs: number): Promise<void> {
  const tail = await logTail();
  const blocked = /FATAL: .*(lock file|shared memory block .* in use)/.test(tail);
  if (!blocked || blockedMs > remainsMs) {
    throw new Error(`The embedded PostgreSQL does not start (${ended}): ${tail || 'it logged nothing'}`);
  }
  if (blockedMs < patienceMs) return;
  await endOrphans(data);
  // Cut short when its server was killed; PostgreSQL leaves such a file to the administrator.
  if ((await readPidFile(data))?.pid === 0) await rm(join(data, 'postmaster.pid'), { force: true });
}

function urlOf(file: PidFile): string {
  return `postgresql://${owner}@/postgres?host=${encodeURIComponent(file.socketDir ?? '')}`;
}

/** Connects and takes the locks that tell the other processes of the data directory what this one does. */
async function takeLocks(file: PidFile, purpose: EmbeddedOptions['purpose'], signal: AbortSignal): Promise<pg.Client> {
  const client = new pg.Client({
    connectionString: urlOf(file),
    application_name: `sds ${purpose} ${process.pid}`,
    connectionTimeoutMillis: 5_000, // the server is ready; a socket that stays silent is tried again
    lock_timeout: lockTimeoutMs,
  });
  client.on('error', () => {}); // 'end' follows, and counts
  const takeAll = async () => {
    await client.connect();
    if (purpose === 'serve') {
      await client.query('SELECT pg_advisory_lock($1, $2)', [lock.class, lock.serve]).catch(async (error: unknown) => {
        throw isLockTimeout(error) ? await inUse(client) : error;
      });
    }
    // Waits while the last user stops the server.
    await client.query('SELECT pg_advisory_lock_shared($1, $2)', [lock.class, lock.use]);
  };
  let abort = () => {};
  const aborted = new Promise<never>((_, reject) => {
    abort = () => reject(signal.reason);
  });
  signal.addEventListener('abort', abort);
  try {
    signal.throwIfAborted();
    await Promise.race([takeAll(), aborted]);
    return client;
  } catch (error) {
    // Not awaited: of a connection that is being made it would never come back.
    void client.end().catch(() => {});
    throw error;
  } finally {
    signal.removeEventListener('abort', abort);
  }
}

function isLockTimeout(error: unknown): boolean {
  return isDatabaseError(error) && error.code === '55P03';
}

async function inUse(client: pg.Client): Promise<DataDirectoryInUse> {
  const { rows } = await client.query<{ name: string }>(
    `SELECT application_name AS name FROM pg_locks JOIN pg_stat_activity USING (pid)
     WHERE locktype = 'advisory' AND granted AND classid = $1 AND objid = $2`,
    [lock.class, lock.serve],
  );
  const pid = /\d+$/.exec(rows[0]?.name ?? '')?.[0];
  const holder = pid ? `process ${pid}` : 'another process';
  return new DataDirectoryInUse(`The data directory is in use by ${holder} (sds serve): stop it, or set SDS_DATA_DIR.`);
}

/** Gives the locks back. Who was the last user stops the server, while those who come meanwhile wait for the lock. */
async function release({ client, file }: Attached, data: string): Promise<void> {
  try {
    await client.query('SELECT pg_advisory_unlock_shared($1, $2)', [lock.class, lock.use]);
    const { rows } = await client.query<{ last: boolean }>('SELECT pg_try_advisory_lock($1, $2) AS last', [
      lock.class,
      lock.use,
    ]);
    if (rows[0]?.last) await stop(file.pid, data);
  } catch (error) {
    if (!isUnavailable(error)) throw error; // the server is gone already
  } finally {
    await client.end().catch(() => {});
  }
}
