import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { promisify } from 'node:util';
import pg from 'pg';
import { describe, expect, test } from 'vitest';
import {
  cleanup,
  dataDir,
  dirWithCluster,
  isLinux,
  isRoot,
  kill,
  open,
  openElsewhere,
  query,
  until,
} from '../../../test/embedded-fixture.ts';
import { DataDirectoryInUse, openEmbedded } from '../embedded.ts';
import { isServer, readPidFile } from './postmaster.ts';

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
    const parent = spawn('sh', ['-c', 'sleep 0.2 & echo $!; exec sleep 600'], { cwd: '/', ...(uid && { uid }) });
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
