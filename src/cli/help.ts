import type { Command, Entry, Option } from './command.ts';

/** All commands, or those of one group, with a line each. */
export function overview(entries: Entry[], group: string | null): string {
  const shown = entries.filter(({ name }) => group === null || name.startsWith(`${group} `));
  return [
    `Usage: sds ${group ?? 'COMMAND'} ${group ? 'COMMAND ' : ''}[OPTIONS]`,
    '',
    'Commands:',
    ...columns(shown.map(({ name, summary }) => [name, summary])),
    '',
    'Every command has --help and --json. Exit codes: 0 done, 1 failed, 2 wrong usage.',
    'The configuration is taken from SDS_… variables of the environment; .env.example lists them.',
  ].join('\n');
}

/** How one command is used. */
export function commandHelp({ name, summary }: Entry, command: Command): string {
  const options = Object.entries(command.options ?? {});
  const all: [string, Option][] = [
    ...options,
    ['json', { type: 'boolean', help: 'Print the result as JSON.' }],
    ['help', { type: 'boolean', help: 'Show this help.' }],
  ];
  const usage = all
    .slice(0, -1)
    .map(([option, spec]) => (spec.required ? signature(option, spec) : `[${signature(option, spec)}]`));
  return [
    `Usage: ${['sds', name, ...(command.arguments ?? []), ...usage].join(' ')}`,
    '',
    summary,
    ...(command.details ? ['', command.details] : []),
    '',
    'Options:',
    ...columns(all.map(([option, spec]) => [signature(option, spec), spec.help])),
  ].join('\n');
}

function signature(name: string, { type, value }: Option): string {
  return type === 'boolean' ? `--${name}` : `--${name} ${value ?? 'VALUE'}`;
}

function columns(rows: [string, string][]): string[] {
  const width = Math.max(...rows.map(([left]) => left.length));
  return rows.map(([left, right]) => `  ${left.padEnd(width)}  ${right}`);
}

/** Rows of text under a heading, in columns as wide as they need to be. */
export function table(heading: string[], rows: string[][]): string {
  const lines = [heading, ...rows];
  const widths = heading.map((_, i) => Math.max(...lines.map((line) => line[i]?.length ?? 0)));
  return lines
    .map((line) =>
      line
        .map((cell, i) => cell.padEnd(widths[i] ?? 0))
        .join('  ')
        .trimEnd(),
    )
    .join('\n');
}
