import { type ChildProcess, spawn } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { afterAll } from 'vitest';
import { MASTER_KEY, type TestService } from './service.ts';

const main = fileURLToPath(new URL('../src/main.ts', import.meta.url));

/** `sds serve` as a process of its own, which can be killed, stopped and hung. */
export interface Node {
  process: ChildProcess;
  /** Its exit code; null once a signal has ended it. Rejects where it could not be started. */
  exit: Promise<number | null>;
}

/** The environment of this process without settings of the service, and with these. */
export function environment(settings: Record<string, string>): NodeJS.ProcessEnv {
  const own = Object.entries(process.env).filter(([name]) => !name.startsWith('SDS_'));
  return { ...Object.fromEntries(own), ...settings };
}

/** How a process ends, as {@link Node.exit} has it. */
export function exitOf(child: ChildProcess): Promise<number | null> {
  const exit = new Promise<number | null>((resolve, reject) => child.once('exit', resolve).once('error', reject));
  // Who is concerned will wait for it.
  exit.catch(() => {});
  return exit;
}

/** The URL that a starting `sds serve` tells once it is ready; rejects where it ends before, or never began. */
export function listening({ stdout, ...child }: Pick<ChildProcess, 'stdout'> & Pick<Node, 'exit'>): Promise<string> {
  return new Promise((resolve, reject) => {
    if (stdout) {
      createInterface({ input: stdout }).once('line', (line) => {
        const url = /^listening on (http:\/\/127\.0\.0\.1:\d+)$/.exec(line)?.[1];
        if (url) resolve(url);
        else reject(new Error(`unexpected: ${line}`));
      });
    }
    child.exit.then((code) => reject(new Error(`the server ended with ${code}`)), reject);
  });
}

/**
 * What starts further nodes beside the service: each works on one job at a time, on the same database and with these
 * settings. They are killed after the file's tests.
 */
export function useNodes(service: TestService, settings: Record<string, string>): () => Promise<Node> {
  const nodes: Node[] = [];
  const homes: string[] = [];
  afterAll(async () => {
    for (const node of nodes) node.process.kill('SIGKILL');
    await Promise.allSettled(nodes.map(({ exit }) => exit));
    for (const home of homes) await rm(home, { recursive: true, force: true });
  });
  return async () => {
    const home = await mkdtemp(join(tmpdir(), 'sds-node-'));
    homes.push(home);
    const child = spawn(process.execPath, ['--import', 'tsx', main, 'serve'], {
      env: environment({
        SDS_PORT: '0',
        SDS_DATA_DIR: home,
        SDS_DATABASE_URL: service.databaseUrl,
        SDS_MASTER_KEY: MASTER_KEY,
        SDS_WORKERS: '1',
        SDS_LOG_LEVEL: 'error',
        ...settings,
      }),
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const exit = exitOf(child);
    const node = { process: child, exit };
    nodes.push(node);
    await listening({ stdout: child.stdout, exit });
    return node;
  };
}
