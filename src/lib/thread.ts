import { Worker, type WorkerOptions } from 'node:worker_threads';

/** Starts a thread from a module, which may be a source file. */
export function startThread({ href }: URL, options: WorkerOptions): Worker {
  return href.endsWith('.ts')
    ? new Worker(fromSource(href), { ...options, eval: true })
    : new Worker(new URL(href), options);
}

/** A thread does not take over how its process reads TypeScript, so one that runs from source loads that itself. */
function fromSource(entry: string): string {
  const tsx = import.meta.resolve('tsx/esm/api');
  return `import(${JSON.stringify(tsx)}).then(({ register }) => (register(), import(${JSON.stringify(entry)})))`;
}
