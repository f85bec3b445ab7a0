import { type Attributes, checkName, newAttributes, textOf } from './attributes.ts';
import type { Subjects } from './subjects.ts';
import type { Row } from './xport.ts';

export interface SendSlide {
  /** Index of the subject. */
  subject: number;
  /** Index of the organ; null where the slide shows several. */
  organ: number | null;
  fileName: string;
  attributes: Attributes;
}

/** The slides of the study: one per MIREFID of a subject. File names are given at the end, when all are known. */
export interface Slides {
  list: (SendSlide & { row: Row })[];
  bySubject: Map<string, number>;
}

export function noSlides(): Slides {
  return { list: [], bySubject: new Map() };
}

/** Index of the slide that a row of MI names; null where it names none. A second organ on a slide takes its link away. */
export function readSlide(slides: Slides, row: Row, subject: number, organ: number): number | null {
  const reference = textOf(row, 'MIREFID');
  if (reference === undefined) return null;
  const key = `${subject} ${reference}`;
  const known = slides.bySubject.get(key);
  if (known !== undefined) {
    const slide = slides.list[known];
    if (slide && slide.organ !== organ) slide.organ = null;
    return known;
  }
  const attributes = newAttributes();
  attributes.MIREFID = reference;
  slides.bySubject.set(key, slides.list.length);
  return slides.list.push({ subject, organ, fileName: reference, attributes, row }) - 1;
}

/** FILE NAME is unique in the study: MIREFID, with the subject before it (`1001/12`) where several subjects have it. */
export function namedSlides(slides: Slides, subjects: Subjects): SendSlide[] {
  const uses = new Map<string, number>();
  for (const { fileName } of slides.list) uses.set(fileName, (uses.get(fileName) ?? 0) + 1);
  const taken = new Set([...uses].filter(([, count]) => count === 1).map(([fileName]) => fileName));
  return slides.list.map(({ row, ...slide }) => {
    if (uses.get(slide.fileName) === 1) return { ...slide, fileName: checkName(row, 'MIREFID', slide.fileName, 1_024) };
    const base = `${subjects.list[slide.subject]?.name}/${slide.fileName}`;
    let fileName = base;
    for (let n = 2; taken.has(fileName); n += 1) fileName = `${base} (${n})`;
    taken.add(fileName);
    return { ...slide, fileName: checkName(row, 'MIREFID', fileName, 1_024) };
  });
}
