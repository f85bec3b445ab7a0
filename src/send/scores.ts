import { type Attributes, attributesOf, BLANK, fitted, textOf } from './attributes.ts';
import { type Organs, organOf } from './organs.ts';
import { eachRow, type Reading } from './reading.ts';
import { type Subjects, subjectOf } from './subjects.ts';
import type { Row } from './xport.ts';

export interface SendScore {
  /** Index of the subject. */
  subject: number;
  /** Index of the organ; null for a score of the subject. */
  organ: number | null;
  /** At most 255 characters. */
  name: string;
  /** A text of at most 1,024 characters where the result is no number. */
  value: number | string;
  /** At most 64 characters. */
  unit: string | null;
  attributes: Attributes;
}

/** Organ weights (OM) as scores of the organ, which is made where MI lacks it. */
export async function readOrganWeights(reading: Reading, subjects: Subjects, organs: Organs): Promise<SendScore[]> {
  const scores: SendScore[] = [];
  await eachRow(reading, 'OM', ['USUBJID', 'OMSPEC'], (row) => {
    const subject = subjectOf(reading, subjects, row);
    if (subject === null) return;
    const name = textOf(row, 'OMSPEC');
    const organ = name === undefined ? null : organOf(organs, row, subject, 'OMSPEC', name);
    scores.push(scoreOf(row, 'OM', subject, organ));
  });
  return scores;
}

/** Body weights (BW) as scores of the subject. */
export async function readBodyWeights(reading: Reading, subjects: Subjects): Promise<SendScore[]> {
  const scores: SendScore[] = [];
  await eachRow(reading, 'BW', ['USUBJID'], (row) => {
    const subject = subjectOf(reading, subjects, row);
    if (subject !== null) scores.push(scoreOf(row, 'BW', subject, null));
  });
  return scores;
}

function scoreOf(row: Row, domain: 'OM' | 'BW', subject: number, organ: number | null): SendScore {
  const variable = (suffix: string) => `${domain}${suffix}`;
  const firstOf = (...suffixes: string[]) => suffixes.map(variable).find((name) => row.values.has(name));
  const nameFrom = firstOf('TEST', 'TESTCD') ?? variable('TEST');
  const unitFrom = firstOf('STRESU', 'ORRESU');
  const numeric = numberOf(row.values.get(variable('STRESN')));
  // A weighing that was not done is a score too, as a tissue that was not examined is a finding.
  const valueFrom = numeric === null ? firstOf('STRESC', 'ORRES', 'STRESN', 'STAT') : variable('STRESN');
  const members = [nameFrom, unitFrom, valueFrom, variable('SPEC')].filter((name) => name !== undefined);
  const attributes = attributesOf(row, members);
  const unit = unitFrom && textOf(row, unitFrom);
  return {
    subject,
    organ,
    name: fitted(attributes, nameFrom, textOf(row, nameFrom) ?? BLANK, 255),
    value: numeric ?? (valueFrom ? fitted(attributes, valueFrom, textOf(row, valueFrom) ?? BLANK, 1_024) : BLANK),
    unit: unitFrom && unit ? fitted(attributes, unitFrom, unit, 64) : null,
    attributes,
  };
}

/** A number; also one that the study stores as text. */
function numberOf(value: string | number | undefined): number | null {
  if (typeof value !== 'string') return value ?? null;
  if (!/^\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*$/i.test(value)) return null;
  const number = Number(value);
  return Number.isFinite(number) ? number : null;
}
