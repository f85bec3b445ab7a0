import type { Writable } from 'node:stream';
import type { Settings } from '../config.ts';

/** An option of a command; `--help` and `--json` are every command's. */
export interface Option {
  type: 'string' | 'boolean';
  /** What it means, for the help. */
  help: string;
  /** What its value is called in the help: `NAME`. */
  value?: string;
  required?: true;
}

type Options = Record<string, Option>;

type OptionValues<O extends Options> = {
  [K in keyof O]: O[K] extends { type: 'boolean' }
    ? boolean
    : O[K] extends { required: true }
      ? string
      : string | undefined;
};

type ArgumentValues<A extends readonly string[]> = {
  [I in keyof A]: A[I] extends `[${string}]` ? string | undefined : string;
};

/** What a command is called with. */
export interface Call<A = readonly (string | undefined)[], O = Record<string, string | boolean | undefined>> {
  arguments: A;
  options: O;
  /** Whether the result is to be JSON; only for commands that write it themselves. */
  json: boolean;
  /** The configuration, read on first use; throws ConfigError. */
  settings(): Settings;
  /** Aborted by the first SIGINT or SIGTERM. */
  signal: AbortSignal;
  /** For results alone: a script reads them. */
  stdout: Writable;
  /** Writes a line for the person, to standard error. */
  say(message: string): void;
}

/** What a command hands back to be printed to standard output. */
export interface Outcome {
  /** Printed by `--json`. */
  value: unknown;
  /** Printed otherwise; without a line end at its end. Empty: nothing. */
  text: string;
  /** The command did its work and what it found is bad: exit code 1. */
  failed?: boolean;
}

interface Spec<A, O, AV, OV> {
  /** Positional arguments as the help shows them: `ID`, or `[ID]` for one that may be left out. */
  arguments?: A;
  options?: O;
  /** Further lines for the help. */
  details?: string;
  /** Throws UsageError for exit code 2; whatever else it throws is exit code 1. */
  run(call: Call<AV, OV>): Promise<Outcome | undefined>;
}

/** A command whatever its arguments and options. */
export type Command = Spec<readonly string[], Options, readonly (string | undefined)[], Call['options']>;

/** Defines a command; the types of its arguments and options follow from their description. */
export function command<const A extends readonly string[] = [], const O extends Options = Record<never, never>>(
  spec: Spec<A, O, ArgumentValues<A>, OptionValues<O>>,
): Command {
  // The frame passes exactly the arguments and options that the description asks for.
  return spec as unknown as Command;
}

/** A command's place in the table: loaded only when it is called, so that the others start fast. */
export interface Entry {
  /** `serve`, or `clients create` for one of a group. */
  name: string;
  /** One line for the help. */
  summary: string;
  load(): Promise<Command>;
}

/** The command line is wrong: exit code 2. */
export class UsageError extends Error {
  override name = 'UsageError';
}
