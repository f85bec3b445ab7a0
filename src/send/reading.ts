import { setImmediate } from 'node:timers/promises';
import { refusal } from './attributes.ts';
import { type CodeCounts, countCodes, noteVariables } from './code-lists.ts';
import { SendError } from './error.ts';
import type { Source } from './source.ts';
import { type Dataset, type Row, readTransport } from './xport.ts';

/** Rows or files that stay out of the study, so that nothing is left out silently. */
export interface Omission {
  file: string;
  /** Null: the whole file, which was not read. */
  rows: number | null;
  reason: string;
}

export interface ReadOptions {
  /** Called while a file is read: its name, its rows done and its rows in all. */
  onProgress?: (step: string, done: number, total: number) => void;
  signal?: AbortSignal;
}

/** A study being read. */
export interface Reading extends ReadOptions {
  source: Source;
  /** Known from the first row of DM on; rows of another study are refused from then on. */
  studyId: string | null;
  codes: CodeCounts;
  omissions: Map<string, Omission & { rows: number }>;
  domainsRead: Set<string>;
}

export function startReading(source: Source, options: ReadOptions): Reading {
  return { ...options, source, studyId: null, codes: new Map(), omissions: new Map(), domainsRead: new Set() };
}

/** Rows between two looks at the signal, about 10 ms of work. */
const BATCH_ROWS = 2_000;

/**
 * Visits each row of a domain; a domain that the study lacks has none. Refused: a dataset without one of the `required`
 * variables, a row that says that it is of another domain or study.
 */
export async function eachRow(
  reading: Reading,
  domain: string,
  required: readonly string[],
  visit: (row: Row) => void,
): Promise<void> {
  const { source, onProgress, signal } = reading;
  const file = source.files.get(domain);
  signal?.throwIfAborted();
  if (file === undefined) return;
  reading.domainsRead.add(domain);
  const dataset = memberOf(file, domain, readTransport(file, await source.read(domain, signal)));
  for (const name of required) {
    if (!dataset.variables.some((variable) => variable.name === name)) {
      throw new SendError(file, null, `the dataset ${dataset.name} has no variable ${name}`);
    }
  }
  noteVariables(reading.codes, dataset.variables);
  for (const row of dataset.rows()) {
    checkOrigin(reading, domain, row);
    visit(row);
    countCodes(reading.codes, domain, row);
    if (row.number % BATCH_ROWS === 0) {
      onProgress?.(file, row.number, dataset.rowCount);
      await setImmediate();
      signal?.throwIfAborted();
    }
  }
  onProgress?.(file, dataset.rowCount, dataset.rowCount);
}

/** The dataset named like the domain; the only one of the file goes by its file's name. */
function memberOf(file: string, domain: string, members: Dataset[]): Dataset {
  const member = members.find(({ name }) => name === domain) ?? (members.length === 1 ? members[0] : undefined);
  if (member === undefined)
    throw new SendError(file, null, `none of its ${members.length} datasets is named ${domain}`);
  return member;
}

function checkOrigin(reading: Reading, domain: string, row: Row): void {
  const stated = row.values.get('DOMAIN');
  if (stated !== undefined && stated !== domain) throw refusal(row, `DOMAIN is ${stated}, not ${domain}`);
  const studyId = row.values.get('STUDYID');
  if (reading.studyId !== null && studyId !== undefined && studyId !== reading.studyId) {
    throw refusal(row, `STUDYID is ${studyId}, but the study is ${reading.studyId}`);
  }
}

/** Counts a row that stays out of the study. */
export function omit(reading: Reading, row: Row, reason: string): void {
  const key = `${row.file}\0${reason}`;
  const omission = reading.omissions.get(key) ?? { file: row.file, rows: 0, reason };
  omission.rows += 1;
  reading.omissions.set(key, omission);
}
