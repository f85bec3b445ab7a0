import { type TObject, type TSchema, Type } from 'typebox';
import { ID_PATTERN } from '../lib/id.ts';

/** Schema of an identifier: 24 opaque, case-sensitive letters and digits (interface.md §1). */
export function idOf(what: string, example = '0MZ3fW9k000aB7dR2uQxKpLc') {
  return Type.String({ pattern: ID_PATTERN, description: `Identifier of the ${what}.`, examples: [example] });
}

export const Timestamp = Type.String({
  format: 'date-time',
  description: 'ISO 8601, UTC, milliseconds, from the database’s clock.',
  examples: ['2026-03-02T08:15:30.123Z'],
});

/** A record; its title is its name among the components of the API document. */
export function titled<T extends TObject['properties']>(title: string, members: T) {
  return Type.Object(members, { title });
}

/** Text of bounded length; lengths count Unicode code points (decisions §1). */
export function text(description: string, minLength: number, maxLength: number, example: string) {
  return Type.String({ minLength, maxLength, description, examples: [example] });
}

export function nullable<T extends TSchema>(schema: T) {
  return Type.Union([schema, Type.Null()]);
}

/** Keys that are dropped from what a client sends, as the record's place in the study sets them (interface.md §1). */
export const MANAGED_KEYS = ['SUBJID', 'MISPEC', 'FILE NAME'];

/** decisions §1: up to 1,000 keys of 1 to 255 characters; values are scalars, of any length. */
export const Attributes = Type.Record(
  Type.String(),
  Type.Union([Type.String(), Type.Number(), Type.Boolean(), Type.Null()]),
  {
    maxProperties: 1_000,
    propertyNames: { type: 'string', minLength: 1, maxLength: 255 },
    'x-managed-keys': MANAGED_KEYS,
    title: 'Attributes',
    description:
      'Further variables by name, replaced as a whole by every PUT. SUBJID, MISPEC and FILE NAME are managed by the service: they are dropped from what a client sends and set from the record’s place in the study.',
    examples: [{ SEX: 'M', ARMCD: '2' }],
  },
);

/** A study record, once and for all its uses: lists, single reads, exports (decisions §2). */
const managed = {
  createdDate: Timestamp,
  updatedDate: Timestamp,
  version: Type.Integer({ minimum: 1, description: 'Counts the writes of this record; its ETag.', examples: [1] }),
};

const studyId = idOf('study');
const subjectId = idOf('subject');
const organId = idOf('organ');
const slideId = idOf('slide');

const studyName = text(
  'Name of the study, 10 to 255 characters (interface.md §8).',
  10,
  255,
  '28-day oral toxicity, rat',
);
const siteId = nullable(
  Type.String({ maxLength: 255, description: 'The site that runs the study.', examples: ['BASEL-01'] }),
);
const subjectName = text('SUBJID: unique within the study.', 1, 255, '1001');
const organName = text('MISPEC: unique within the subject.', 1, 255, 'LIVER');
const fileName = text('FILE NAME: unique within the study, fixed after creation.', 1, 1024, '1001-LIVER-1.svs');
const findingName = text('MISTRESC: the finding in standard terms.', 1, 255, 'Vacuolation, hepatocellular');
const severity = nullable(Type.String({ maxLength: 64, description: 'MISEV: the severity.', examples: ['MILD'] }));
const scoreName = text('What was measured.', 1, 255, 'Organ weight');
const scoreValue = Type.Union([Type.Number(), Type.String({ maxLength: 1024 })], {
  description: 'The result: a number, or a string of up to 1,024 characters.',
  examples: [12.5],
});
const unit = nullable(Type.String({ maxLength: 64, description: 'Unit of the value.', examples: ['g'] }));

/** The image of a slide, in the service's object store. */
export const Image = Type.Object(
  {
    imageId: idOf('image'),
    sizeBytes: Type.Integer({ minimum: 0, description: 'Size of the file in bytes.' }),
    sha256: Type.String({ description: 'SHA-256 of the file, hexadecimal.' }),
    format: Type.String({ description: 'Format by its bytes: SVS, NDPI, OME-TIFF, TIFF, DICOM, PNG, JPEG.' }),
    width: nullable(Type.Integer({ description: 'Pixels; null where the format does not tell.' })),
    height: nullable(Type.Integer({ description: 'Pixels; null where the format does not tell.' })),
    ingestedDate: Timestamp,
  },
  { title: 'Image', description: 'The stored image of a slide.' },
);

export const Study = titled('Study', {
  studyId,
  name: studyName,
  studyName: Type.String({ description: 'The same value as `name`.' }),
  siteId,
  attributes: Attributes,
  ...managed,
});

export const Subject = titled('Subject', { subjectId, studyId, name: subjectName, attributes: Attributes, ...managed });

export const Organ = titled('Organ', {
  organId,
  studyId,
  subjectId,
  name: organName,
  attributes: Attributes,
  ...managed,
});

export const Slide = titled('Slide', {
  slideId,
  studyId,
  subjectId: nullable(subjectId),
  organId: nullable(organId),
  fileName,
  image: nullable(Image),
  attributes: Attributes,
  ...managed,
});

export const Finding = titled('Finding', {
  findingId: idOf('finding'),
  studyId,
  subjectId,
  organId,
  slideId: nullable(slideId),
  name: findingName,
  severity,
  attributes: Attributes,
  ...managed,
});

export const Score = titled('Score', {
  scoreId: idOf('score'),
  studyId,
  subjectId,
  organId: nullable(organId),
  name: scoreName,
  value: scoreValue,
  unit,
  attributes: Attributes,
  ...managed,
});

const Code = Type.Object(
  {
    code: Type.String({ minLength: 1, maxLength: 1024, description: 'The code.', examples: ['MILD'] }),
    label: Type.String({ description: 'What it means.', examples: ['Mild'] }),
    attributes: Type.Optional(Attributes),
  },
  { title: 'Code', description: 'One code of a code list.' },
);

const codeLists = Type.Record(Type.String(), Type.Array(Code), {
  propertyNames: { type: 'string', minLength: 1, maxLength: 255 },
  description: 'Code lists by name.',
  examples: [{ MISEV: [{ code: 'MILD', label: 'Mild' }] }],
});

export const Codes = titled('Codes', {
  codesId: idOf('codes object'),
  studyId,
  codeLists,
  attributes: Attributes,
  ...managed,
});

/** Members of a record that a body may repeat and that are ignored whatever their value (decisions §1). */
function ignored(...names: string[]) {
  const member = () => Type.Optional(Type.Unknown({ readOnly: true, description: 'Ignored: set by the service.' }));
  return Object.fromEntries(names.map((name) => [name, member()]));
}
const recordMembers = ignored('studyId', 'createdDate', 'updatedDate', 'version');
const attributes = Type.Optional(Attributes);

/** The body of a create; the members that may be left out are null. */
export const bodies = {
  study: Type.Object({
    name: Type.Optional(studyName),
    studyName: Type.Optional(
      Type.String({ minLength: 10, maxLength: 255, description: 'The same as `name`: send either, or both alike.' }),
    ),
    siteId: Type.Optional(siteId),
    attributes,
    ...recordMembers,
  }),
  subject: Type.Object({ name: subjectName, attributes, ...recordMembers, ...ignored('subjectId') }),
  organ: Type.Object({ subjectId, name: organName, attributes, ...recordMembers, ...ignored('organId') }),
  slide: Type.Object({
    subjectId: Type.Optional(nullable(subjectId)),
    organId: Type.Optional(nullable(organId)),
    fileName,
    attributes,
    ...recordMembers,
    ...ignored('slideId', 'image'),
  }),
  finding: Type.Object({
    organId,
    slideId: Type.Optional(nullable(slideId)),
    name: findingName,
    severity: Type.Optional(severity),
    attributes,
    ...recordMembers,
    ...ignored('findingId', 'subjectId'),
  }),
  score: Type.Object({
    subjectId,
    organId: Type.Optional(nullable(organId)),
    name: scoreName,
    value: scoreValue,
    unit: Type.Optional(unit),
    attributes,
    ...recordMembers,
    ...ignored('scoreId'),
  }),
  codes: Type.Object({ codeLists, attributes, ...recordMembers, ...ignored('codesId') }),
};

/** Bodies of a PUT where they differ: members fixed after creation may be left out (decisions §1). */
export const updates = {
  organ: Type.Object({ ...bodies.organ.properties, subjectId: Type.Optional(subjectId) }),
  slide: Type.Object({ ...bodies.slide.properties, fileName: Type.Optional(fileName) }),
};

/** An item of slides:bulkUpdate: a full update with its slide's id. */
export const SlideUpdate = Type.Object({ ...updates.slide.properties, slideId });
