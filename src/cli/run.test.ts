import { mkdtemp, rm, symlink } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import { expect, test } from 'vitest';
import { ConfigError } from '../config.ts';
import { type Command, command, type Entry, UsageError } from './command.ts';
import { entries as realEntries } from './commands.ts';
import { runCommandLine } from './run.ts';

const greet = command({
  arguments: ['WHO', '[HOW]'],
  options: {
    times: { type: 'string', value: 'N', required: true, help: 'How often.' },
    loud: { type: 'boolean', help: 'In capitals.' },
  },
  async run({ arguments: [who, how = 'hello'], options: { times, loud } }) {
    const text = `${how} ${who} ${times}`;
    return { value: { who, how, times, loud }, text: loud ? text.toUpperCase() : text };
  },
});

function fails(error: unknown): Command {
  return command({
    async run() {
      throw error;
    },
  });
}

function entry(name: string, loaded: Command): Entry {
  return { name, summary: `Summary of ${name}.`, load: async () => loaded };
}

const entries = [
  entry('greet', greet),
  entry('things list', command({ run: async () => ({ value: [], text: '' }) })),
  entry('things check', command({ run: async () => ({ value: { ok: false }, text: 'bad', failed: true }) })),
  entry('things break', fails(new Error('It broke.', { cause: new Error('connect ECONNREFUSED') }))),
  entry('things misuse', fails(new UsageError('Not so.'))),
  entry('things configured', command({ run: async (call) => ({ value: call.settings(), text: '' }) })),
];

const sds = (...argv: string[]) => run(argv, entries);

async function run(argv: string[], entries: Entry[]) {
  const stdout = new PassThrough();
  const stderr = new PassThrough();
  const code = await runCommandLine(argv, entries, {
    settings: () => {
      throw new ConfigError(['SDS_PORT must be a port.', 'SDS_HOST must be a host.']);
    },
    signal: new AbortController().signal,
    stdout,
    stderr,
    version: '1.2.3',
  });
  return { code, out: String(stdout.read() ?? ''), err: String(stderr.read() ?? '') };
}

test('a result goes to standard output as text, or as JSON where it is asked for, and the exit code is 0', async () => {
  expect(await sds('greet', 'you', '--times', '3', '--loud')).toEqual({ code: 0, out: 'HELLO YOU 3\n', err: '' });
  const { code, out } = await sds('greet', '--times=3', 'you', 'bye', '--json');
  expect(code).toBe(0);
  expect(JSON.parse(out)).toEqual({ who: 'you', how: 'bye', times: '3', loud: false });
});

test('an empty result prints nothing, unless it is JSON', async () => {
  expect(await sds('things', 'list')).toEqual({ code: 0, out: '', err: '' });
  expect(await sds('things', 'list', '--json')).toEqual({ code: 0, out: '[]\n', err: '' });
});

test('a command that finds something bad prints its result and exits with 1', async () => {
  expect(await sds('things', 'check')).toEqual({ code: 1, out: 'bad\n', err: '' });
});

test('a command that fails exits with 1 and says why on standard error', async () => {
  expect(await sds('things', 'break')).toEqual({
    code: 1,
    out: '',
    err: 'It broke.\n  because: connect ECONNREFUSED\n',
  });
});

test('a faulty configuration exits with 1 and all faults', async () => {
  const { code, err } = await sds('things', 'configured');
  expect(code).toBe(1);
  expect(err).toMatch(/SDS_PORT must.*SDS_HOST must/s);
});

test.each([
  ['no command', [], /A command is needed/],
  ['an unknown command', ['gret'], /no command sds gret; did you mean sds greet\?/],
  ['a group without its command', ['things'], /needs to be told what to do/],
  ['an unknown command of a group', ['things', 'lst'], /did you mean sds things list\?/],
  ['an unknown option', ['greet', 'you', '--tmes', '3'], /no option --tmes; did you mean --times\?/],
  ['an option without its value', ['greet', 'you', '--times'], /--times/],
  ['a missing option', ['greet', 'you'], /--times is missing/],
  ['a missing argument', ['greet', '--times', '3'], /WHO is missing/],
  ['one argument too many', ['greet', 'a', 'b', 'c', '--times', '3'], /c is one argument too many/],
  ['what the command calls wrong usage', ['things', 'misuse'], /Not so/],
])('%s is wrong usage: exit code 2, a hint, nothing on standard output', async (_, argv, hint) => {
  const { code, out, err } = await sds(...argv);
  expect({ code, out }).toEqual({ code: 2, out: '' });
  expect(err).toMatch(hint);
});

test.each([[['--help']], [['-h']], [['help']]])('%j shows all commands', async (argv) => {
  const { code, out } = await sds(...argv);
  expect(code).toBe(0);
  for (const { name, summary } of entries) expect(out).toMatch(new RegExp(`^  ${name} +${summary}$`, 'm'));
});

test('the help of a group shows its commands alone', async () => {
  const { code, out } = await sds('things', '--help');
  expect(code).toBe(0);
  expect(out).toContain('things check');
  expect(out).not.toContain('greet');
});

test.each([[['greet', '--help']], [['help', 'greet']], [['greet', '-h', 'you']]])(
  '%j shows how the command is used, whatever else is missing',
  async (argv) => {
    const { code, out } = await sds(...argv);
    expect(code).toBe(0);
    expect(out).toContain('Usage: sds greet WHO [HOW] --times N [--loud] [--json]');
    expect(out).toContain('In capitals.');
  },
);

test('--version prints the version of the package', async () => {
  expect(await sds('--version')).toEqual({ code: 0, out: '1.2.3\n', err: '' });
});

test('every command of the table loads, and says what it and its options do', async () => {
  expect(realEntries.length).toBeGreaterThan(8);
  for (const { name, summary, load } of realEntries) {
    const { options = {} } = await load();
    expect(summary, name).toMatch(/^[A-Z].*\.$/);
    for (const [option, { help }] of Object.entries(options))
      expect(help, `${name} --${option}`).toMatch(/^[A-Z].*\.$/);
  }
});

test('why a study cannot be imported is told once', async () => {
  const dir = await mkdtemp(join(tmpdir(), 'sds-import-'));
  try {
    const missing = join(dir, 'missing');
    expect(await run(['import', 'send', missing], realEntries)).toEqual({
      code: 1,
      out: '',
      err: `${missing}: no such file or directory\n`,
    });
    const loop = join(dir, 'loop.zip');
    await symlink(loop, loop);
    const { err } = await run(['import', 'send', loop], realEntries);
    expect(err.split('\n')).toEqual([expect.stringMatching(/loop\.zip: neither .* \(ELOOP/), '']);
  } finally {
    await rm(dir, { recursive: true });
  }
});
