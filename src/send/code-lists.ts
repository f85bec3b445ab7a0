import { type Attributes, cut, textOf } from './attributes.ts';
import type { Row, Variable } from './xport.ts';

export type CodeLists = Record<string, { code: string; label: string; attributes?: Attributes }[]>;

/** What is known of a code: `rows` is null where rows explain the code but do not use it. */
interface CodeFacts {
  label: string | undefined;
  rows: number | null;
}

/** By list, by code. */
export type CodeCounts = Map<string, Map<string, CodeFacts>>;

/** Which variables are codes: by domain, the variable and the one that holds its label, if any. */
const CODED: Record<string, readonly (readonly [code: string, label?: string])[]> = {
  DM: [['SEX'], ['SPECIES'], ['STRAIN'], ['ARMCD', 'ARM'], ['SETCD']],
  DS: [['DSDECOD']],
  MI: [['MISPEC'], ['MISTRESC'], ['MISEV'], ['MISTAT'], ['MIRESCAT'], ['MITESTCD', 'MITEST']],
  OM: [['OMSPEC'], ['OMSTRESU'], ['OMSTAT'], ['OMTESTCD', 'OMTEST']],
  BW: [['BWSTRESU'], ['BWSTAT'], ['BWTESTCD', 'BWTEST']],
};

/** Domains that explain codes. */
const LABELLED: Record<string, readonly (readonly [code: string, label: string])[]> = {
  TX: [
    ['SETCD', 'SET'],
    ['TXPARMCD', 'TXPARM'],
  ],
  TS: [['TSPARMCD', 'TSPARM']],
  SUPPDM: [['QNAM', 'QLABEL']],
  SUPPMI: [['QNAM', 'QLABEL']],
  SUPPOM: [['QNAM', 'QLABEL']],
  SUPPBW: [['QNAM', 'QLABEL']],
};

/** The list of the variables themselves: attribute keys with their labels. */
const VARIABLES = 'VARIABLE';

/** The longest code that the store takes. */
const MAX_CODE_LENGTH = 1_024;

export function countCodes(lists: CodeCounts, domain: string, row: Row): void {
  for (const [variable, label] of CODED[domain] ?? []) note(lists, variable, row, label, 1);
  for (const [variable, label] of LABELLED[domain] ?? []) note(lists, variable, row, label, 0);
}

function note(lists: CodeCounts, list: string, row: Row, labelVariable: string | undefined, rows: 0 | 1): void {
  const code = textOf(row, list);
  if (code === undefined) return;
  const entry = entryOf(lists, list, code);
  if (labelVariable !== undefined) entry.label ??= textOf(row, labelVariable);
  if (rows > 0) entry.rows = (entry.rows ?? 0) + rows;
}

function entryOf(lists: CodeCounts, list: string, code: string): CodeFacts {
  const codes = lists.get(list) ?? new Map<string, CodeFacts>();
  lists.set(list, codes);
  const entry = codes.get(code) ?? { label: undefined, rows: null };
  codes.set(code, entry);
  return entry;
}

export function noteVariables(lists: CodeCounts, variables: readonly Variable[]): void {
  for (const { name, label } of variables) if (label !== '') entryOf(lists, VARIABLES, name).label ??= label;
}

/** Lists by name, codes in the order of their code points; a code without a label is its own. */
export function toCodeLists(lists: CodeCounts): CodeLists {
  return Object.fromEntries(
    [...lists].sort(byKey).map(([list, codes]) => [
      list,
      [...codes].sort(byKey).map(([code, { label, rows }]) => ({
        code: cut(code, MAX_CODE_LENGTH),
        label: label ?? code,
        ...(rows === null ? {} : { attributes: { rows } }),
      })),
    ]),
  );
}

function byKey([a]: [string, unknown], [b]: [string, unknown]): number {
  return a < b ? -1 : a > b ? 1 : 0;
}
