import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import pg from 'pg';
import { afterAll, afterEach, beforeAll, expect } from 'vitest';
import { isServer, readPidFile } from '../src/db/embedded/postmaster.ts';
import { type EmbeddedServer, openEmbedded } from '../src/db/embedded.ts';

/** The project's directory, with a slash at its end. */
export const project = fileURLToPath(new URL('..', import.meta.url));
export const isRoot = process.getuid?.() === 0;
export const isLinux = process.platform === 'linux';

/** What a test opened, closed in reverse; each must bear that the test has closed it already. */
export const cleanup: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  const faults: unknown[] = [];
  // All of them, come what may: what one leaves running outlives the tests.
  for (const undo of cleanup.splice(0).reverse()) await undo().catch((error: unknown) => faults.push(error));
  expect(faults).toEqual([]);
});

/** A data directory with a cluster, stopped, to be copied. */
let made = '';
beforeAll(async () => {
  made = await mkdtemp(join(tmpdir(), 'embedded-'));
  await (await openEmbedded({ dir: made, purpose: 'tool' })).close();
});
afterAll(() => rm(made, { recursive: true, force: true }));

/** A data directory with a cluster, copied, which is quicker than making one. */
export async function dirWithCluster(name?: string): Promise<string> {
  const dir = await dataDir(name);
  await promisify(execFile)('cp', ['-a', join(made, 'postgres'), join(dir, 'postgres')]);
  return dir;
}

/** An empty data directory; whatever still runs in it is killed in the end. */
export async function dataDir(name = 'data', parent?: string): Promise<string> {
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

export async function kill(pid: number, data: string): Promise<void> {
  process.kill(pid, 'SIGKILL');
  while (await isServer(pid, data)) await sleep(5);
}

export async function open(dir: string, purpose: 'serve' | 'tool' = 'serve'): Promise<EmbeddedServer> {
  const server = await openEmbedded({ dir, purpose });
  cleanup.push(() => server.close());
  return server;
}

export async function query(server: { url: string }, sql: string): Promise<Record<string, unknown>[]> {
  const client = new pg.Client({ connectionString: server.url });
  await client.connect();
  try {
    return (await client.query(sql)).rows as Record<string, unknown>[];
  } finally {
    await client.end();
  }
}

export interface Child {
  process: ChildProcess;
  /** The next line it says. */
  next(): Promise<{ url: string; pid: number; started: boolean; error?: string; message?: string; closed?: boolean }>;
  close(): Promise<void>;
  kill(): Promise<void>;
}

/** Another process that opens the data directory, and closes it when told. */
export function openElsewhere(
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
export async function until(condition: () => Promise<boolean>): Promise<void> {
  while (!(await condition())) await sleep(10);
}
