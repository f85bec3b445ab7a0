import {
  type Attributes,
  append,
  attributesOf,
  checkName,
  newAttributes,
  refusal,
  requiredText,
  textOf,
} from './attributes.ts';
import { SendError } from './error.ts';
import { eachRow, omit, type Reading } from './reading.ts';
import type { Row } from './xport.ts';

export interface SendSubject {
  name: string;
  attributes: Attributes;
}

export interface Subjects {
  list: SendSubject[];
  /** Index in `list` by USUBJID. */
  byUsubjid: Map<string, number>;
}

/** Subjects of DM with what TX says of their trial set and DS of their end. Sets the study's STUDYID. */
export async function readSubjects(reading: Reading): Promise<Subjects> {
  const subjects = await readDemographics(reading);
  await readTrialSets(reading, subjects);
  await eachRow(reading, 'DS', ['USUBJID'], (row) => {
    const subject = subjectOf(reading, subjects, row);
    if (subject === null) return;
    for (const [name, value] of row.values) {
      if (!DS_KEYS.includes(name)) append(row, attributesAt(subjects, subject), name, value);
    }
  });
  return subjects;
}

/** What identifies a row of DS and says nothing of the subject. */
const DS_KEYS = ['STUDYID', 'DOMAIN', 'USUBJID', 'DSSEQ'];

async function readDemographics(reading: Reading): Promise<Subjects> {
  const rows: Row[] = [];
  const byUsubjid = new Map<string, number>();
  await eachRow(reading, 'DM', ['STUDYID', 'USUBJID'], (row) => {
    reading.studyId ??= requiredText(row, 'STUDYID');
    const usubjid = requiredText(row, 'USUBJID');
    if (byUsubjid.has(usubjid)) throw refusal(row, `USUBJID ${usubjid} stands in an earlier row`);
    byUsubjid.set(usubjid, rows.push(row) - 1);
  });
  if (rows.length === 0) throw new SendError(reading.source.files.get('DM') ?? 'dm.xpt', null, 'has no subjects');
  const names = namesOf(rows);
  return {
    byUsubjid,
    list: rows.map((row, i) => ({
      name: checkName(row, 'SUBJID', names[i] ?? '', 255),
      attributes: attributesOf(row, ['SUBJID']),
    })),
  };
}

/** SUBJID; USUBJID where SUBJID is blank or repeats; USUBJID throughout where that leaves two of one name. */
function namesOf(rows: Row[]): string[] {
  const usubjids = rows.map((row) => requiredText(row, 'USUBJID'));
  const subjids = rows.map((row) => textOf(row, 'SUBJID'));
  const seen = new Map<string | undefined, number>();
  for (const subjid of subjids) seen.set(subjid, (seen.get(subjid) ?? 0) + 1);
  const names = usubjids.map((usubjid, i) => {
    const subjid = subjids[i];
    return subjid === undefined || seen.get(subjid) !== 1 ? usubjid : subjid;
  });
  return new Set(names).size === names.length ? names : usubjids;
}

/** The label of the set (SET) and its parameters, as TXPARMCD → TXVAL, on each subject of it; what DM says comes first. */
async function readTrialSets(reading: Reading, subjects: Subjects): Promise<void> {
  const sets = new Map<string, Attributes>();
  await eachRow(reading, 'TX', ['SETCD', 'TXPARMCD', 'TXVAL'], (row) => {
    const code = requiredText(row, 'SETCD');
    const set = sets.get(code) ?? newAttributes();
    sets.set(code, set);
    const label = row.values.get('SET');
    if (label !== undefined) set.SET = label;
    const value = row.values.get('TXVAL');
    if (value !== undefined) append(row, set, requiredText(row, 'TXPARMCD'), value);
  });
  for (const { attributes } of subjects.list) {
    const set = sets.get(String(attributes.SETCD)) ?? {};
    for (const [key, value] of Object.entries(set)) attributes[key] ??= value;
  }
}

export function attributesAt(subjects: Subjects, subject: number): Attributes {
  return (subjects.list[subject] as SendSubject).attributes;
}

/**
 * The subject of a row. Null where the row is of a pool of subjects (POOLID): it says nothing of any single one, so it
 * stays out of the study and is counted. Refused: a subject that DM does not have, and no subject at all.
 */
export function subjectOf(reading: Reading, subjects: Subjects, row: Row): number | null {
  const usubjid = textOf(row, 'USUBJID');
  if (usubjid !== undefined) {
    const subject = subjects.byUsubjid.get(usubjid);
    if (subject === undefined) throw refusal(row, `subject ${usubjid} (USUBJID) is not in DM`);
    return subject;
  }
  if (textOf(row, 'POOLID') === undefined) throw refusal(row, 'names no subject: USUBJID is blank');
  omit(reading, row, 'of a pool of subjects (POOLID)');
  return null;
}
