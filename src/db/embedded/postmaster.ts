import { execFile, spawn } from 'node:child_process';
import { open, readdir, readFile, rename, rm, stat } from 'node:fs/promises';
import { connect } from 'node:net';
import { join, resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import type { Binaries, RunAs } from './binaries.ts';
import { cannotRun, entrance, isAlive, socketName } from './cluster.ts';

/** What `postmaster.pid` says (its lines 1, 5 and 8). */
export interface PidFile {
  pid: number;
  /** Absolute directory of the socket; null before it is there. */
  socketDir: string | null;
  /** `starting`, `ready`, `stopping`, or empty at first. */
  status: string;
}

/** A log larger than this is put aside at the next start, so that two of them bound the disk space. */
const logBytes = 10 * 1024 * 1024;

/** What is looked up again while a server starts or stops: starting takes about 50 ms. */
const pollMs = 5;

/** Stopping takes 20 ms, and longer only where much waits to be written. */
const stopTimeoutMs = 60_000;

export async function readPidFile(data: string): Promise<PidFile | null> {
  const text = await readFile(join(data, 'postmaster.pid'), 'utf8').catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return null;
    throw error;
  });
  if (text === null) return null;
  const lines = text.split('\n');
  const socketDir = lines[4] ? resolve(data, lines[4]) : null;
  return { pid: Number(lines[0]) || 0, socketDir, status: lines[7]?.trim() ?? '' };
}

/**
 * Whether process `pid` is a server at work in `data`: not a zombie, nor a foreign process that got the id of a dead one.
 * A server's working directory is its cluster; Linux tells it to the same user, and to root unless it lacks
 * CAP_SYS_PTRACE (in a container). Its command line, which anybody may read, names the cluster too.
 */
export async function isServer(pid: number, data: string): Promise<boolean> {
  if (pid <= 0 || !isAlive(pid)) return false;
  if (process.platform === 'linux') {
    if (!(await commandLine(pid)).includes('postgres')) return false;
    try {
      const [cwd, cluster] = await Promise.all([stat(`/proc/${pid}/cwd`), stat(data)]);
      return cwd.ino === cluster.ino && cwd.dev === cluster.dev;
    } catch (error) {
      const denied = (error as NodeJS.ErrnoException).code === 'EACCES';
      return denied && (await commandLine(pid)).includes(await clusterName(data));
    }
  }
  const ps = await promisify(execFile)('ps', ['-o', 'stat=,comm=', '-p', String(pid)]).catch(() => ({ stdout: '' }));
  return /^[^Z\s]\S*\s.*postgres/.test(ps.stdout);
}

/** Empty for a zombie. */
function commandLine(pid: number): Promise<string> {
  return readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => '');
}

/** Shown in the command line of the server and the titles of its processes; the numbers stand for the directory. */
async function clusterName(data: string): Promise<string> {
  const { dev, ino } = await stat(data);
  return `sds/${dev}/${ino}`;
}

/** Whether something listens at the socket, be it in another container, where no process id tells. */
export async function accepts(socketDir: string): Promise<boolean> {
  return new Promise<boolean>((resolve) => {
    const socket = connect(join(socketDir, socketName));
    socket.once('error', () => resolve(false));
    socket.once('connect', () => {
      socket.destroy();
      resolve(true);
    });
  });
}

/** A server process that this process started. */
export interface Launched {
  pid: number;
  /** Set once it has ended. */
  ended: string | null;
  /** The end of what it has logged. */
  logTail(): Promise<string>;
}

export interface LaunchOptions {
  dir: string;
  data: string;
  /** As {@link socketDirectory} names it. */
  sockets: string;
  binaries: Binaries;
  runAs: RunAs;
  /** The process id in a stale `postmaster.pid`, known to be no server. */
  stale: number | null;
}

/** Starts the server; it is up when its `postmaster.pid` says `ready`. Only where nobody listens at the socket. */
export async function launch({ dir, data, sockets, binaries, runAs, stale }: LaunchOptions): Promise<Launched> {
  const { path, options } = await entrance(data, runAs);
  // A foreign process with the id in it would stop the start for ever.
  await rm(join(resolve(data, sockets), `${socketName}.lock`), { force: true });
  const logPath = join(dir, 'postgres.log');
  const size = await stat(logPath).then(
    (info) => info.size,
    () => 0,
  );
  if (size > logBytes) await rename(logPath, `${logPath}.old`);
  const log = await open(logPath, 'a', 0o600);
  try {
    if (runAs) await log.chown(runAs.uid, runAs.gid);
    const start = (await log.stat()).size;
    // Its own session: Ctrl-C in the terminal is for this process, which stops the server when it is done with it.
    const child = spawn(binaries.postgres, ['-D', path, ...settings(sockets, await clusterName(data))], {
      ...options,
      // Of a process id in this variable PostgreSQL knows that it is no server, without our removing any lock of its.
      env: { ...options.env, ...(stale && { PG_GRANDPARENT_PID: String(stale) }) },
      detached: true,
      stdio: ['ignore', log.fd, log.fd],
    });
    await new Promise<void>((resolve, reject) => {
      child.once('spawn', resolve);
      child.once('error', (cause) => reject(cannotRun(binaries.postgres, cause)));
    });
    child.unref();
    const launched: Launched = { pid: child.pid ?? 0, ended: null, logTail: () => readTail(logPath, start) };
    child.once('exit', (code, killed) => {
      launched.ended = killed ?? `exit code ${code}`;
    });
    return launched;
  } finally {
    await log.close();
  }
}

function settings(sockets: string, name: string): string[] {
  const values: Record<string, string> = {
    cluster_name: name,
    listen_addresses: '',
    unix_socket_directories: `"${sockets}"`, // a list: quoted, a comma in the path is one
    unix_socket_permissions: '0700',
    port: '5432',
    max_connections: '100',
    shared_buffers: '128MB',
    // Twice the default: bulk imports and exports then wait less for checkpoints.
    max_wal_size: '2GB',
    // Regulated data: what was answered is on the disk.
    fsync: 'on',
    synchronous_commit: 'on',
    full_page_writes: 'on',
    // After a crash of one of its processes it ends, and who uses it starts it anew. Left to restart by itself, it waits
    // for ever when its recovery is killed (seen in 18.4), and nobody could tell that from a long recovery.
    restart_after_crash: 'off',
    timezone: 'UTC',
    log_timezone: 'UTC',
    logging_collector: 'off',
    log_destination: 'stderr',
    // The life of the server and no statement: their errors are the client's to log, and hold personal data.
    log_min_messages: 'log',
    log_min_error_statement: 'panic',
    log_checkpoints: 'off',
  };
  return Object.entries(values).flatMap(([name, value]) => ['-c', `${name}=${value}`]);
}

/** The last 2,000 bytes of the log from `start` on: enough for every message of a failed start. */
async function readTail(path: string, start: number): Promise<string> {
  const log = await open(path);
  try {
    const { size } = await log.stat();
    const from = Math.max(start, size - 2_000);
    const { buffer, bytesRead } = await log.read(Buffer.alloc(Math.max(0, size - from)), 0, null, from);
    return buffer.toString('utf8', 0, bytesRead).trim();
  } finally {
    await log.close();
  }
}

/** Stops the server in an orderly way (a "fast shutdown", with a checkpoint) and waits until it is gone. */
export async function stop(pid: number, data: string): Promise<void> {
  if (!(await isServer(pid, data))) return;
  process.kill(pid, 'SIGINT');
  const start = Date.now();
  while (await isServer(pid, data)) {
    if (Date.now() - start > stopTimeoutMs) {
      throw new Error(
        `The embedded PostgreSQL (process ${pid}) is not down after ${stopTimeoutMs / 1000} s, and goes on stopping.`,
      );
    }
    await sleep(pollMs);
  }
}

/** Ends what a killed server left behind: its processes, busy with a query, keep the next from starting. */
export async function endOrphans(data: string): Promise<void> {
  if (process.platform !== 'linux') return;
  const pids = (await readdir('/proc')).map(Number).filter((pid) => pid > 0);
  const orphans: number[] = [];
  for (const pid of pids) {
    if (!(await isServer(pid, data))) continue;
    // The server itself has its command line, its children have a title; while it lives they are no orphans.
    if (!(await commandLine(pid)).startsWith('postgres: ')) return;
    orphans.push(pid);
  }
  for (const pid of orphans) {
    try {
      process.kill(pid, 'SIGKILL');
    } catch {
      // it has ended by itself
    }
  }
}
