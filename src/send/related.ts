import { type Attributes, append, refusal, requiredText, textOf } from './attributes.ts';
import { eachRow, omit, type Reading } from './reading.ts';
import { attributesAt, type Subjects, subjectOf } from './subjects.ts';
import type { Row } from './xport.ts';

/** Records made from rows of one domain, to which rows of SUPP-- and CO refer by subject and a variable's value. */
export type Related = { subject: number; attributes: Attributes }[];

/** Records by the domain that they come from. */
export type RelatedByDomain = Record<string, Related>;

/** Adds the qualifiers of SUPPDM, SUPPMI, SUPPOM and SUPPBW to the records they qualify, as QNAM → QVAL. */
export async function readQualifiers(reading: Reading, subjects: Subjects, related: RelatedByDomain): Promise<void> {
  for (const domain of Object.keys(related)) {
    const find = finder(subjects, related);
    await eachRow(reading, `SUPP${domain}`, ['USUBJID', 'IDVAR', 'IDVARVAL', 'QNAM', 'QVAL'], (row) => {
      const of = textOf(row, 'RDOMAIN');
      if (of !== undefined && of !== domain) throw refusal(row, `RDOMAIN is ${of}, not ${domain}`);
      const subject = subjectOf(reading, subjects, row);
      const value = row.values.get('QVAL');
      if (subject === null || value === undefined) return;
      const targets = find(row, domain, subject);
      if (targets.length === 0) {
        throw refusal(row, `qualifies ${textOf(row, 'IDVAR')} ${textOf(row, 'IDVARVAL') ?? ''}, which ${domain} lacks`);
      }
      for (const attributes of targets) append(row, attributes, requiredText(row, 'QNAM'), value);
    });
  }
}

/**
 * Adds comments (CO) under COVAL to the records they are about; to the subject where they name no record that the study
 * has, to the study where they name no subject. Comments on domains that are not imported stay out.
 */
export async function readComments(
  reading: Reading,
  study: Attributes,
  subjects: Subjects,
  related: RelatedByDomain,
): Promise<void> {
  const find = finder(subjects, related);
  await eachRow(reading, 'CO', ['COVAL'], (row) => {
    const text = continuedText(row, 'COVAL');
    if (text === '') return;
    const domain = textOf(row, 'RDOMAIN');
    const ofStudy = !row.values.has('USUBJID') && !row.values.has('POOLID');
    const subject = ofStudy ? null : subjectOf(reading, subjects, row);
    if (domain !== undefined && !(domain in related)) {
      if (ofStudy || subject !== null) omit(reading, row, `comments on ${domain}, a domain that is not imported`);
    } else if (ofStudy) {
      append(row, study, 'COVAL', text);
    } else if (subject !== null) {
      const targets = domain === undefined ? [] : find(row, domain, subject);
      if (targets.length === 0) targets.push(attributesAt(subjects, subject));
      for (const attributes of targets) append(row, attributes, 'COVAL', text);
    }
  });
}

/** A text that goes on in further variables (COVAL, COVAL1, COVAL2 …), which break it between words. */
export function continuedText(row: Row, variable: string): string {
  const parts = [textOf(row, variable)];
  for (let n = 1; row.values.has(`${variable}${n}`); n += 1) parts.push(textOf(row, `${variable}${n}`));
  return parts.filter((part) => part !== undefined).join(' ');
}

/** Finds the records of a subject whose variable IDVAR is IDVARVAL; the subject itself where IDVAR is blank. */
function finder(subjects: Subjects, related: RelatedByDomain) {
  const indexes = new Map<string, Map<string, Attributes[]>>();
  return (row: Row, domain: string, subject: number): Attributes[] => {
    const variable = textOf(row, 'IDVAR');
    if (variable === undefined || domain === 'DM') return [attributesAt(subjects, subject)];
    const name = `${domain} ${variable}`;
    const index = indexes.get(name) ?? indexBy(related[domain] ?? [], variable);
    indexes.set(name, index);
    return [...(index.get(`${subject} ${comparable(row.values.get('IDVARVAL'))}`) ?? [])];
  };
}

function indexBy(related: Related, variable: string): Map<string, Attributes[]> {
  const index = new Map<string, Attributes[]>();
  for (const { subject, attributes } of related) {
    const key = `${subject} ${comparable(attributes[variable])}`;
    const same = index.get(key);
    if (same) same.push(attributes);
    else index.set(key, [attributes]);
  }
  return index;
}

/** IDVARVAL is text, --SEQ a number: `7`, ` 7` and `7.0` are the same. */
function comparable(value: Attributes[string] | undefined): string {
  const text = String(value ?? '').trim();
  return text !== '' && Number.isFinite(Number(text)) ? String(Number(text)) : text;
}
