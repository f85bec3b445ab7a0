import { type SpawnOptions, spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  chmod,
  chown,
  lchown,
  lstat,
  mkdir,
  mkdtemp,
  open,
  readdir,
  readFile,
  rename,
  rm,
  stat,
} from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Binaries, canSearch, type RunAs, wayOut } from './binaries.ts';

/** Name of the superuser, who owns the database. */
export const owner = 'sds';

/** A sibling older than this was left by a process that died: initdb takes a second, and is given a minute. */
const abandonedMs = 5 * 60_000;

/** The user to run the server as. PostgreSQL refuses to run as root: there it is the cluster's owner, at first `nobody`. */
export async function chooseUser(data: string): Promise<RunAs> {
  const info = await stat(data).catch(() => null);
  const self = process.getuid?.();
  if (self !== 0) {
    if (info && info.uid !== self)
      throw new Error(`${data} belongs to another user (uid ${info.uid}): work as that one.`);
    return null;
  }
  if (info && info.uid !== 0) return { uid: info.uid, gid: info.gid };
  const nobody = (await readFile('/etc/passwd', 'utf8')).split('\n').find((line) => line.startsWith('nobody:'));
  if (!nobody) throw new Error(`PostgreSQL does not run as root, and there is no user "nobody": ${wayOut}.`);
  const [, , uid, gid] = nobody.split(':').map(Number);
  if (!uid || !gid) throw new Error('The entry of user "nobody" in /etc/passwd cannot be read.');
  return { uid, gid };
}

/**
 * How the server's programs name the directory `data`, and how they are spawned. Where a directory above is closed to
 * `runAs` (root's own home), an absolute path leads nowhere; a working directory does, since it is entered before root
 * is given up, and Linux has an absolute name for it.
 */
export async function entrance(data: string, runAs: RunAs): Promise<{ path: string; options: SpawnOptions }> {
  const options: SpawnOptions = {
    cwd: data,
    // Nothing of this process' environment (PGDATA, PGOPTIONS, LD_PRELOAD …) may change what the server does.
    env: { PATH: '/usr/local/bin:/usr/bin:/bin', LC_ALL: 'C', TZ: 'UTC' },
    ...runAs,
  };
  if (await canSearch(data, runAs)) return { path: data, options };
  if (process.platform === 'linux') return { path: '/proc/self/cwd', options };
  throw new Error(`${data} lies below a directory that user ${runAs?.uid} may not enter: move it, or ${wayOut}.`);
}

/** Makes the cluster `data` unless there is one, whole or not at all; a cluster that this server cannot use is refused. */
export async function ensureCluster(
  data: string,
  binaries: Binaries,
  runAs: RunAs,
  signal: AbortSignal,
): Promise<void> {
  await removeAbandoned(data);
  if ((await readdir(data).catch(() => [])).length === 0) await makeCluster(data, binaries, runAs, signal);
  const version = await readFile(join(data, 'PG_VERSION'), 'utf8').catch((cause) => {
    throw new Error(`${data} holds something else than a PostgreSQL cluster.`, { cause });
  });
  if (Number(version) !== binaries.major) {
    throw new Error(
      `${data} was made by PostgreSQL ${version.trim()}, and this is PostgreSQL ${binaries.major}: ` +
        'restore a dump of it into a new data directory, or go back to the release that made it.',
    );
  }
  // A cluster copied back from a backup: perhaps by root, perhaps open to others, which PostgreSQL refuses.
  const { uid, mode } = await stat(data);
  if (runAs && uid !== runAs.uid) await giveTo(data, runAs);
  if (mode & 0o077) await chmod(data, 0o700);
}

async function makeCluster(data: string, binaries: Binaries, runAs: RunAs, signal: AbortSignal): Promise<void> {
  const sibling = await mkdtemp(`${data}.new-${process.pid}-`);
  try {
    if (runAs) await chown(sibling, runAs.uid, runAs.gid);
    const { path, options } = await entrance(sibling, runAs);
    // Built-in C.UTF-8: order by code point, upper and lower case of all scripts, the same on every system for ever.
    const locale = ['--encoding=UTF8', '--locale=C', '--locale-provider=builtin', '--builtin-locale=C.UTF-8'];
    const access = ['--auth-local=trust', '--auth-host=reject', `--username=${owner}`];
    const { code, errors } = await run(
      binaries.initdb,
      ['-D', path, ...locale, ...access, '--no-instructions'],
      options,
      signal,
    );
    if (code !== 0) throw new Error(`The embedded PostgreSQL cannot make its cluster (${code}): ${errors.trim()}`);
    await rename(sibling, data).catch((error: NodeJS.ErrnoException) => {
      if (error.code !== 'ENOTEMPTY' && error.code !== 'EEXIST') throw error; // else another process was faster
    });
    await syncDirectory(join(data, '..'));
  } finally {
    await rm(sibling, { recursive: true, force: true });
  }
}

async function run(file: string, args: string[], options: SpawnOptions, signal: AbortSignal) {
  const child = spawn(file, args, { ...options, signal, stdio: ['ignore', 'ignore', 'pipe'] });
  let errors = '';
  child.stderr?.on('data', (chunk: Buffer) => {
    errors += chunk;
  });
  let fault: Error | null = null;
  child.once('error', (error) => {
    fault = error;
  });
  // Only "close" says that the programs it started have ended too, and write no more.
  const code = await new Promise<number | string | null>((resolve) => {
    child.once('close', (code, killed) => resolve(code ?? killed));
  });
  signal.throwIfAborted();
  if (fault) throw cannotRun(file, fault);
  return { code, errors };
}

/** A program that is there and does not start: another C library, a mount without exec, a user that cannot be taken. */
export function cannotRun(file: string, cause: Error): Error {
  return new Error(`${file} does not run on this system (${cause.message}): ${wayOut}.`, { cause });
}

async function removeAbandoned(data: string): Promise<void> {
  const parent = join(data, '..');
  const prefix = /^postgres\.new-(\d+)-/;
  for (const name of await readdir(parent)) {
    const pid = Number(prefix.exec(name)?.[1]);
    if (!pid) continue;
    const info = await lstat(join(parent, name)).catch(() => null);
    if (!info || (isAlive(pid) && Date.now() - info.mtimeMs < abandonedMs)) continue;
    // Its initdb may still be at work and write behind us: the next start then finds the rest.
    await rm(join(parent, name), { recursive: true, force: true }).catch(() => {});
  }
}

/** Whether there is a process of this id (a zombie and a foreign one are processes too). */
export function isAlive(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}

async function giveTo(path: string, { uid, gid }: { uid: number; gid: number }): Promise<void> {
  for (const name of await readdir(path, { recursive: true })) await lchown(join(path, name), uid, gid);
  await chown(path, uid, gid);
}

async function syncDirectory(path: string): Promise<void> {
  const handle = await open(path);
  await handle.sync().finally(() => handle.close());
}

/**
 * The directory of the socket, as the server is told it. In the cluster itself, which its owner alone may enter, named
 * by a relative path, of whatever length; but a client must name it in full, in at most 103 bytes (macOS; Linux: 107).
 * A longer one goes into a private directory named after it.
 */
export async function socketDirectory(data: string, runAs: RunAs): Promise<string> {
  if (Buffer.byteLength(join(data, socketName)) <= 103) return '.';
  const name = `sds-${createHash('sha256').update(data).digest('hex').slice(0, 16)}`;
  const uid = runAs?.uid ?? process.getuid?.();
  for (const place of [tmpdir(), '/tmp']) {
    const path = join(place, name);
    if (Buffer.byteLength(join(path, socketName)) > 103 || !(await canSearch(place, runAs))) continue;
    const made = await mkdir(path, { mode: 0o700 }).then(
      () => true,
      () => false,
    );
    if (made && runAs) await chown(path, runAs.uid, runAs.gid);
    const info = await lstat(path);
    if (!info.isDirectory() || info.uid !== uid) throw new Error(`${path} belongs to another user (uid ${info.uid}).`);
    await chmod(path, 0o700);
    return path;
  }
  throw new Error(`The path of ${data} is too long for a Unix socket: use a shorter one, or ${wayOut}.`);
}

/** PostgreSQL's name for the socket of port 5432; the directory makes it unique. */
export const socketName = '.s.PGSQL.5432';
