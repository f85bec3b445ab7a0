import { type Attributes, attributesOf, BLANK, fitted, textOf } from './attributes.ts';
import { type Organs, organOf } from './organs.ts';
import { eachRow, type Reading } from './reading.ts';
import { readSlide, type Slides } from './slides.ts';
import { type Subjects, subjectOf } from './subjects.ts';

export interface SendFinding {
  /** Index of the organ. */
  organ: number;
  /** Index of the slide, where MIREFID names one. */
  slide: number | null;
  /** At most 255 characters; MISTRESC holds the whole where it is longer. */
  name: string;
  /** At most 64 characters, likewise. */
  severity: string | null;
  attributes: Attributes;
}

/** One finding per row of MI, exact duplicates too (SENDIG MI); organs and slides are made on the way. */
export async function readFindings(
  reading: Reading,
  subjects: Subjects,
  organs: Organs,
  slides: Slides,
): Promise<SendFinding[]> {
  const findings: SendFinding[] = [];
  await eachRow(reading, 'MI', ['USUBJID', 'MISPEC'], (row) => {
    const subject = subjectOf(reading, subjects, row);
    if (subject === null) return;
    const organ = organOf(organs, row, subject, 'MISPEC', textOf(row, 'MISPEC') ?? BLANK);
    const attributes = attributesOf(row, ['MISPEC', 'MISTRESC', 'MISEV']);
    const named = ['MISTRESC', 'MIORRES', 'MISTAT'].find((variable) => row.values.has(variable)) ?? 'MISTRESC';
    const severity = textOf(row, 'MISEV');
    findings.push({
      organ,
      slide: readSlide(slides, row, subject, organ),
      name: fitted(attributes, named, textOf(row, named) ?? BLANK, 255),
      severity: severity === undefined ? null : fitted(attributes, 'MISEV', severity, 64),
      attributes,
    });
  });
  return findings;
}
