import { stat } from 'node:fs/promises';
import { createServer } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';

/** How often a taken lock is tried again: a start takes 50 ms and more. */
const retryMs = 10;

/**
 * Lets one process at a time look after the cluster in `dir` (make, start, adopt), so that two starts at the same moment
 * do not race. It spares work and noise; what keeps two postmasters apart is PostgreSQL's own lock file and shared memory.
 * A name in Linux' abstract socket namespace: taken atomically, freed by the kernel when the process dies.
 * Other systems have none, and go without. Resolves with the function that frees it.
 */
export async function takeStartLock(dir: string, signal: AbortSignal): Promise<() => void> {
  if (process.platform !== 'linux') return () => {};
  // By device and inode: the same directory under another path (a bind mount, a link) is the same lock.
  const { dev, ino } = await stat(dir);
  const name = `\0study-data-service/${dev}/${ino}`;
  for (;;) {
    const server = createServer();
    const outcome = await new Promise<'taken' | 'busy' | 'impossible'>((resolve) => {
      server.once('error', (error: NodeJS.ErrnoException) => {
        resolve(error.code === 'EADDRINUSE' ? 'busy' : 'impossible');
      });
      server.listen({ path: name, exclusive: true }, () => resolve('taken'));
    });
    if (outcome === 'taken') return () => void server.close();
    if (outcome === 'impossible') return () => {};
    await sleep(retryMs, undefined, { signal });
  }
}
