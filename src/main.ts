import { readFileSync } from 'node:fs';
import { entries } from './cli/commands.ts';
import { runCommandLine } from './cli/run.ts';
import { readEnv } from './config.ts';

/** npm passes on the signal that the terminal has sent to the whole group already: that is one wish, not two. */
const repeatMs = 500;

const interrupt = new AbortController();
let interruptedAt = 0;
for (const name of ['SIGINT', 'SIGTERM'] as const) {
  process.on(name, () => {
    if (!interrupt.signal.aborted) {
      interruptedAt = performance.now();
      interrupt.abort(new Error(`Stopped by ${name}.`));
    } else if (performance.now() - interruptedAt > repeatMs) {
      process.exit(130);
    }
  });
}
// The reader of a pipe may leave before the end (`sds … | head`), which is no fault.
process.stdout.on('error', (error: NodeJS.ErrnoException) => process.exit(error.code === 'EPIPE' ? 0 : 1));

const { version } = JSON.parse(readFileSync(new URL('../package.json', import.meta.url), 'utf8')) as {
  version: string;
};
const code = await runCommandLine(process.argv.slice(2), entries, {
  settings: () => readEnv(process.env, process.cwd()),
  signal: interrupt.signal,
  stdout: process.stdout,
  stderr: process.stderr,
  version,
});
process.exit(code);
