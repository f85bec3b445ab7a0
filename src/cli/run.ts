import type { Writable } from 'node:stream';
import { type ParseArgsConfig, parseArgs } from 'node:util';
import type { Settings } from '../config.ts';
import { nearest } from '../lib/nearest.ts';
import { type Call, type Command, type Entry, UsageError } from './command.ts';
import { commandHelp, overview } from './help.ts';

/** What the process is to a command. */
export interface Surroundings {
  settings(): Settings;
  signal: AbortSignal;
  stdout: Writable;
  stderr: Writable;
  /** Of the package. */
  version: string;
}

/** Exit codes that scripts can rely on (decisions §10). */
export const exitCodes = { done: 0, failed: 1, wrongUsage: 2 } as const;

/** Runs one command line and answers its exit code; never rejects. */
export async function runCommandLine(argv: string[], entries: Entry[], around: Surroundings): Promise<number> {
  const say = (message: string) => void around.stderr.write(`${message}\n`);
  const print = (text: string) => void around.stdout.write(`${text}\n`);
  try {
    if (argv[0] === 'help') argv = [...argv.slice(1), '--help'];
    const found = findEntry(argv, entries);
    if ('entry' in found) return await runEntry(found.entry, found.rest, around, print, say);
    if (argv[0] === '--version') print(around.version);
    else if (found.help) print(overview(entries, found.group));
    else throw new UsageError(`${unknownCommand(argv, entries)}\n\n${overview(entries, found.group)}`);
    return exitCodes.done;
  } catch (error) {
    say(describe(error));
    return error instanceof UsageError ? exitCodes.wrongUsage : exitCodes.failed;
  }
}

type Found = { entry: Entry; rest: string[] } | { group: string | null; help: boolean };

/** The command that the first one or two words name, else the group that they name. */
function findEntry(argv: string[], entries: Entry[]): Found {
  for (const words of [2, 1]) {
    const entry = entries.find(({ name }) => name === argv.slice(0, words).join(' '));
    if (entry) return { entry, rest: argv.slice(words) };
  }
  const [first = '', second = ''] = argv;
  const group = entries.some(({ name }) => name.startsWith(`${first} `)) ? first : null;
  return { group, help: isHelp(group === null ? first : second) };
}

function isHelp(word: string): boolean {
  return word === '--help' || word === '-h';
}

function unknownCommand(argv: string[], entries: Entry[]): string {
  const words = argv.slice(0, argv[1]?.startsWith('-') === false ? 2 : 1).join(' ');
  if (words === '' || words.startsWith('-')) return 'A command is needed.';
  if (entries.some(({ name }) => name.startsWith(`${words} `))) return `sds ${words} needs to be told what to do.`;
  const meant =
    nearest(
      words,
      entries.map(({ name }) => name),
    ) ??
    nearest(
      argv[0] as string,
      entries.map(({ name }) => name),
    );
  return `There is no command sds ${words}${meant ? `; did you mean sds ${meant}?` : '.'}`;
}

async function runEntry(
  entry: Entry,
  rest: string[],
  around: Surroundings,
  print: (text: string) => void,
  say: (message: string) => void,
): Promise<number> {
  const command = await entry.load();
  const { values, positionals } = parse(entry, command, rest);
  if (values.help) {
    print(commandHelp(entry, command));
    return exitCodes.done;
  }
  checkComplete(entry, command, values, positionals);
  const { json = false, help: _, ...options } = values;
  let settings: Settings | undefined;
  const call: Call = {
    arguments: positionals,
    options,
    json: json === true,
    settings: () => (settings ??= around.settings()),
    signal: around.signal,
    stdout: around.stdout,
    say,
  };
  const outcome = await command.run(call);
  if (outcome) {
    const text = call.json ? JSON.stringify(outcome.value) : outcome.text;
    if (text !== '') print(text);
  }
  return outcome?.failed ? exitCodes.failed : exitCodes.done;
}

type Values = Record<string, string | boolean | undefined>;

function parse(entry: Entry, command: Command, args: string[]): { values: Values; positionals: string[] } {
  const options: NonNullable<ParseArgsConfig['options']> = {
    help: { type: 'boolean', short: 'h' },
    json: { type: 'boolean' },
  };
  const values: Values = {};
  for (const [name, { type }] of Object.entries(command.options ?? {})) {
    options[name] = { type };
    if (type === 'boolean') values[name] = false;
  }
  try {
    const parsed = parseArgs({ args, options, allowPositionals: true });
    return { values: Object.assign(values, parsed.values), positionals: parsed.positionals };
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    if (!code?.startsWith('ERR_PARSE_ARGS')) throw error;
    const unknown = code === 'ERR_PARSE_ARGS_UNKNOWN_OPTION' ? /'(--?[^']*)'/.exec(message)?.[1] : undefined;
    if (unknown === undefined) throw misuse(entry, message);
    const meant = nearest(
      unknown,
      Object.keys(options).map((name) => `--${name}`),
    );
    throw misuse(entry, `There is no option ${unknown}${meant ? `; did you mean ${meant}?` : '.'}`);
  }
}

function checkComplete(entry: Entry, command: Command, values: Values, positionals: string[]): void {
  const names = command.arguments ?? [];
  const lacking = names.slice(positionals.length).find((name) => !name.startsWith('['));
  if (lacking) throw misuse(entry, `${lacking} is missing.`);
  if (positionals.length > names.length) throw misuse(entry, `${positionals[names.length]} is one argument too many.`);
  for (const [name, option] of Object.entries(command.options ?? {})) {
    if (option.required && values[name] === undefined) throw misuse(entry, `--${name} is missing.`);
  }
}

function misuse(entry: Entry, message: string): UsageError {
  return new UsageError(`${message}\nSee: sds ${entry.name} --help`);
}

/** An error for a person: its message, and those of its causes that say more. */
function describe(error: unknown): string {
  const parts: string[] = [];
  for (let at = error; at !== undefined && parts.length < 5; at = at instanceof Error ? at.cause : undefined) {
    const message = (at instanceof Error ? at.message : String(at)) || (at as NodeJS.ErrnoException).code || 'Failed.';
    // The causes of an error that was written for people are often quoted in it.
    if (!parts.some((part) => part.includes(message))) parts.push(message);
  }
  return parts.join('\n  because: ');
}
