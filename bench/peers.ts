import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { promisify } from 'node:util';

const run = promisify(execFile);

/** A server in a process of its own, which says its URL on a line when it is ready. */
export interface Peer {
  url: string;
  process: ChildProcess;
  /** Milliseconds from its start to that line. */
  startMs: number;
  stop(): Promise<void>;
}

/** Starts `node` with these arguments and waits for its line. */
export async function startPeer(args: string[], env: Record<string, string> = {}): Promise<Peer> {
  const began = performance.now();
  const child = spawn(process.execPath, args, {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: { ...process.env, NODE_OPTIONS: '', ...env },
  });
  const url = await new Promise<string>((resolve, reject) => {
    child.once('exit', (code) => reject(new Error(`${args.join(' ')} ended with ${code}`)));
    createInterface({ input: child.stdout as NodeJS.ReadableStream }).on('line', (line) => {
      const [found] = /https?:\/\/\S+/.exec(line) ?? [];
      if (found) resolve(found);
    });
  });
  return {
    url,
    process: child,
    startMs: performance.now() - began,
    async stop() {
      if (child.exitCode !== null) return;
      child.kill('SIGTERM');
      await once(child, 'exit');
    },
  };
}

/** What a run of load came to. */
export interface Load {
  perSecond: number;
  p99Ms: number;
  failed: number;
}

/** Puts load on a URL from another process. */
export async function load(options: {
  url: string;
  token: string;
  method?: 'GET' | 'POST';
  body?: unknown;
  seconds?: number;
  connections?: number;
}): Promise<Load> {
  const { url, token, method = 'GET', body, seconds = 4, connections = 50 } = options;
  const { stdout } = await run(process.execPath, [
    '--import',
    'tsx',
    'bench/load.ts',
    JSON.stringify({
      url,
      method,
      connections,
      duration: seconds,
      headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    }),
  ]);
  const result = JSON.parse(stdout) as Load;
  if (result.failed > 0) throw new Error(`${result.failed} of the requests to ${url} failed`);
  return result;
}

/** Resident memory of a process in MB, from /proc. */
export async function residentMb(pid: number): Promise<number> {
  const { readFile } = await import('node:fs/promises');
  const status = await readFile(`/proc/${pid}/status`, 'utf8');
  return Number(/VmRSS:\s+(\d+)/.exec(status)?.[1] ?? 0) / 1024;
}

/** The highest resident memory of a process while `work` runs, above what it had before, in MB. */
export async function memoryGrowth<T>(pid: number, work: () => Promise<T>): Promise<{ result: T; growthMb: number }> {
  const before = await residentMb(pid);
  let highest = before;
  const timer = setInterval(() => {
    void residentMb(pid).then((now) => {
      highest = Math.max(highest, now);
    });
  }, 50);
  try {
    return { result: await work(), growthMb: highest - before };
  } finally {
    clearInterval(timer);
  }
}
