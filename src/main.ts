import { readFileSync } from 'node:fs';
import { entries } from './cli/commands.ts';
import { runCommandLine } from './cli/run.ts';
import { readEnv } from './config.ts';

/** npm passes on the signal that the terminal has sent to the whole group already: that is one wish, not two. */
const repeatMs = 500;
/** How soon the end of npm's shell is noticed: well within the time that whoever stops us waits for it. */
const parentMs = 250;

const interrupt = new AbortController();
let interruptedAt = 0;
function stop(cause: string): void {
  interruptedAt = performance.now();
  interrupt.abort(new Error(`Stopped by ${cause}.`));
}
for (const name of ['SIGINT', 'SIGTERM'] as const) {
  process.on(name, () => {
    if (!interrupt.signal.aborted) stop(name);
    else if (performance.now() - interruptedAt > repeatMs) process.exit(130);
  });
}
// `npm start` and `npx sds` run us in a shell, which dies of a SIGTERM to npm without passing it on.
if (process.env.npm_command !== undefined) {
  const { ppid } = process;
  setInterval(() => {
    if (process.ppid !== ppid && !interrupt.signal.aborted) stop('the end of npm');
  }, parentMs).unref();
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
