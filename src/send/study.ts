import { type Attributes, append, cut, newAttributes, refusal, textOf } from './attributes.ts';
import { type CodeLists, toCodeLists } from './code-lists.ts';
import { SendError } from './error.ts';
import { readFindings, type SendFinding } from './findings.ts';
import { noOrgans, type SendOrgan } from './organs.ts';
import { eachRow, type Omission, type Reading, type ReadOptions, startReading } from './reading.ts';
import { continuedText, type RelatedByDomain, readComments, readQualifiers } from './related.ts';
import { readBodyWeights, readOrganWeights, type SendScore } from './scores.ts';
import { namedSlides, noSlides, type SendSlide } from './slides.ts';
import { openSource } from './source.ts';
import { readSubjects, type SendSubject, type Subjects } from './subjects.ts';
import type { Row } from './xport.ts';

/** A SEND study as study data; records refer to each other by their index in these lists. */
export interface SendStudy {
  /** STUDYID of the study. */
  studyId: string;
  /** 10 to 255 characters. */
  name: string;
  /** At most 255 characters. */
  siteId: string | null;
  attributes: Attributes;
  subjects: SendSubject[];
  organs: SendOrgan[];
  slides: SendSlide[];
  findings: SendFinding[];
  scores: SendScore[];
  codeLists: CodeLists;
  /** What the files hold and the study does not. */
  omitted: Omission[];
}

/**
 * Reads the study in a directory or ZIP file of SAS transport files and maps it to study data (decisions §9;
 * docs/send.md). Nothing is half read: any fault rejects with a {@link SendError}, an abort with the signal's reason.
 */
export async function readSendStudy(path: string, options: ReadOptions = {}): Promise<SendStudy> {
  const source = await openSource(path);
  try {
    if (!source.files.has('DM')) throw new SendError(path, null, 'holds no dm.xpt: not a SEND study');
    return await readStudy(startReading(source, options));
  } finally {
    source.close();
  }
}

async function readStudy(reading: Reading): Promise<SendStudy> {
  const subjects = await readSubjects(reading);
  const studyId = reading.studyId ?? '';
  const attributes = await readParameters(reading, studyId);
  const organs = noOrgans();
  const slides = noSlides();
  const findings = await readFindings(reading, subjects, organs, slides);
  const organScores = await readOrganWeights(reading, subjects, organs);
  const subjectScores = await readBodyWeights(reading, subjects);
  const related: RelatedByDomain = {
    DM: subjects.list.map((subject, i) => ({ subject: i, attributes: subject.attributes })),
    MI: findings.map((finding) => ({
      subject: organs.list[finding.organ]?.subject ?? 0,
      attributes: finding.attributes,
    })),
    OM: organScores,
    BW: subjectScores,
  };
  await readQualifiers(reading, subjects, related);
  await readComments(reading, attributes, subjects, related);
  return {
    studyId,
    name: nameOf(studyId, attributes.STITLE),
    siteId: siteOf(subjects, attributes),
    attributes,
    subjects: subjects.list,
    organs: organs.list,
    slides: namedSlides(slides, subjects),
    findings,
    scores: [...organScores, ...subjectScores],
    codeLists: toCodeLists(reading.codes),
    omitted: omissionsOf(reading),
  };
}

/** STUDYID, and the parameters of TS as TSPARMCD → TSVAL; values of a repeated one stand in the order of TSSEQ. */
async function readParameters(reading: Reading, studyId: string): Promise<Attributes> {
  const attributes = newAttributes();
  attributes.STUDYID = studyId;
  const rows: Row[] = [];
  await eachRow(reading, 'TS', ['TSPARMCD', 'TSVAL'], (row) => rows.push(row));
  const sequence = (row: Row) => Number(row.values.get('TSSEQ')) || 0;
  for (const row of rows.sort((a, b) => sequence(a) - sequence(b))) {
    const value = continuedText(row, 'TSVAL') || textOf(row, 'TSVALNF');
    if (value === undefined) continue;
    const key = textOf(row, 'TSPARMCD') ?? textOf(row, 'TSPARM');
    if (key === undefined) throw refusal(row, 'TSPARMCD is blank');
    append(row, attributes, key, value);
  }
  return attributes;
}

/** STUDYID; with the title where it alone is shorter than the 10 characters that a name has at least. */
function nameOf(studyId: string, title: Attributes[string] | undefined): string {
  const isLongEnough = (name: string) => [...name].length >= 10;
  const candidates = [studyId, ...(title ? [`${studyId}: ${title}`] : []), `SEND study ${studyId}`];
  return cut(candidates.find(isLongEnough) ?? '', 255);
}

/** SITEID of the subjects, where they agree; else the name of the test facility. */
function siteOf(subjects: Subjects, study: Attributes): string | null {
  const sites = new Set(subjects.list.map(({ attributes }) => attributes.SITEID).filter((site) => site !== undefined));
  if (sites.size > 1) return null;
  const site = [...sites][0] ?? study.TSTFNAM;
  return site == null ? null : cut(String(site), 255);
}

function omissionsOf({ source, domainsRead, omissions }: Reading): Omission[] {
  const unread = [...source.files].filter(([domain]) => !domainsRead.has(domain));
  return [
    ...omissions.values(),
    ...unread.map(([, file]) => ({ file, rows: null, reason: 'a domain that is not imported' })),
  ];
}
