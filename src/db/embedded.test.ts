import { execFile } from 'node:child_process';
import { mkdir, readdir, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';
import { cleanup, dataDir, dirWithCluster, isLinux, kill, open, query, until } from '../../test/embedded-fixture.ts';
import { isServer, readPidFile } from './embedded/postmaster.ts';
import { DataDirectoryInUse, type EmbeddedServer, openEmbedded } from './embedded.ts';

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

test('a server of which one process was killed is started again, with the data', async () => {
  const dir = await dirWithCluster();
  const server = await open(dir);
  const first = server.pid;
  await query(server, 'CREATE TABLE kept AS SELECT 42 AS answer');
  const [row] = await query(server, `SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'`);
  process.kill(Number(row?.pid), 'SIGKILL');
  await until(async () => server.pid !== first);
  expect(await query(server, 'SELECT answer FROM kept')).toEqual([{ answer: 42 }]);
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

test('a start that is given up, at whatever moment, leaves nothing running', async () => {
  const dir = await dirWithCluster();
  let givenUp = 0;
  for (let afterMs = 0; afterMs < 80; afterMs += 5) {
    const giveUp = new AbortController();
    setTimeout(() => giveUp.abort(new Error('given up')), afterMs);
    const outcome = await openEmbedded({ dir, purpose: 'serve', signal: giveUp.signal }).catch(
      (error: unknown) => error,
    );
    if (outcome instanceof Error) {
      expect(outcome.message).toBe('given up');
      givenUp++;
    } else {
      await (outcome as EmbeddedServer).close();
    }
    expect(await readPidFile(join(dir, 'postgres'))).toBeNull();
  }
  expect(givenUp).toBeGreaterThan(0);
});

test('making a cluster that is given up leaves nothing of it', async () => {
  const dir = await dataDir();
  const giveUp = new AbortController();
  const starting = openEmbedded({ dir, purpose: 'serve', signal: giveUp.signal });
  await until(async () => (await readdir(dir)).some((name) => name.startsWith('postgres.new-')));
  giveUp.abort(new Error('given up'));
  await expect(starting).rejects.toThrow('given up');
  expect(await readdir(dir)).toEqual([]);
});

test('a cluster of another major version is refused', async () => {
  const dir = await dirWithCluster();
  await writeFile(join(dir, 'postgres/PG_VERSION'), '15\n');
  await expect(open(dir)).rejects.toThrow(/was made by PostgreSQL 15, and this is PostgreSQL 18/);
});

test('a directory that holds something else is refused, and left as it is', async () => {
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
