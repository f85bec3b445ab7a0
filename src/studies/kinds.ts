import type { TObject } from 'typebox';
import type { ResourceType } from '../http/gate.ts';
import { bodies, Finding, Organ, Score, Slide, Study, Subject, updates } from './schemas.ts';

/** A record that another refers to by id, and whose name or place it shows. */
interface Parent {
  /** Alias in SQL. */
  alias: 's' | 'o' | 'i';
  table: 'subjects' | 'organs' | 'images';
  /** Column of the record and of the parent, joined together with study_id. */
  column: string;
  /** Columns of the parent that the record shows. */
  shows: string[];
  /** Whether the record can be without it. */
  optional: boolean;
}

/** A column that a create or update writes, and the body's member it comes from. */
interface Column {
  column: string;
  member: string;
  type: 'text' | 'json';
  /** SQL that derives the value, over the alias `i` of the incoming item and `st` of the study. */
  derived?: string;
}

/** Why a record cannot be deleted: rows of the table refer to it by its id (interface.md §7). */
interface Dependent {
  table: string;
  what: string;
}

/** Records that stay when this one is deleted, and let go of it (decisions §2). */
interface Unlinked {
  table: string;
  /** Columns emptied; the first is the one that refers to the deleted record. */
  columns: string[];
}

/** All that distinguishes one kind of record from the others; routes and queries are written once over it. */
export interface Kind {
  name: ResourceType & ('study' | 'subject' | 'organ' | 'slide' | 'finding' | 'score');
  /** Path segment, table and JSON array of an export are named alike. */
  collection: 'studies' | 'subjects' | 'organs' | 'slides' | 'findings' | 'scores';
  idMember: string;
  idColumn: string;
  record: TObject;
  create: TObject;
  update: TObject;
  /** Members of the record in order, as SQL over the alias `r` and those of the parents. */
  members: Record<string, string>;
  parents: Parent[];
  columns: Column[];
  /** Members that a PUT may leave out or repeat, and not change. */
  fixed: string[];
  /** Query parameter → column compared, exactly unless it says otherwise. */
  filters: Record<string, { column: string; id?: boolean; substring?: boolean; what: string }>;
  /** Value of `sort` → SQL expressions before the id; the first is the default. */
  sorts: Record<string, string[]>;
  dependents: Dependent[];
  unlinks: Unlinked[];
  /** Constraint → member at fault and why, for names that are taken. */
  taken: { constraint: string; member: string; detail: string } | null;
}

/** How every timestamp leaves the database: ISO 8601, UTC (the session’s time zone), milliseconds (decisions §1). */
export function isoDate(expression: string): string {
  return `to_char(${expression}, 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')`;
}

/**
 * Attributes with the keys that the service manages, computed when read (decisions §1). Stored attributes are compact
 * JSON without those keys, so they are joined as text: this runs once for every record of an export.
 */
function withManaged(keys: Record<string, { sql: string; optional?: boolean }>): string {
  const parts = Object.entries(keys).map(([key, { sql, optional }], index) => {
    const member = `'${index === 0 ? '{' : ','}"${key}":' || to_json(${sql})::text`;
    return optional ? `coalesce(${member}, '')` : member;
  });
  return `(${parts.join(' || ')} || case r.attributes::text when '{}' then '}' else ',' || substr(r.attributes::text, 2) end)::json`;
}

const dates = {
  createdDate: isoDate('r.created_date'),
  updatedDate: isoDate('r.updated_date'),
  version: 'r.version',
};

const subject: Parent = { alias: 's', table: 'subjects', column: 'subject_id', shows: ['name'], optional: false };
const organ: Parent = { alias: 'o', table: 'organs', column: 'organ_id', shows: ['name'], optional: false };
const imageColumns = ['image_id', 'size_bytes', 'sha256', 'format', 'width', 'height', 'ingested_date'];
const image: Parent = { alias: 'i', table: 'images', column: 'slide_id', shows: imageColumns, optional: true };

const SUBJID = { sql: 's.name' };
const MISPEC = { sql: 'o.name' };
const bySubject = { column: 'subject_id', id: true, what: 'Only records of this subject.' };
const byOrgan = { column: 'organ_id', id: true, what: 'Only records of this organ.' };
const byName = { column: 'name', what: 'Only records of exactly this name.' };
const sortsByName = { createdDate: ['r.created_date'], name: ['r.name'], updatedDate: ['r.updated_date'] };
const name: Column = { column: 'name', member: 'name', type: 'text' };
const attributes: Column = { column: 'attributes', member: 'attributes', type: 'json' };
const organId: Column = { column: 'organ_id', member: 'organId', type: 'text' };
const subjectId: Column = { column: 'subject_id', member: 'subjectId', type: 'text' };
/** A scalar subquery and no join: one index probe an item, whatever the planner believes of the number of items. */
const subjectOfOrgan =
  '(select o.subject_id from organs o where o.study_id = st.study_id and o.organ_id = i."organId")';

export const kinds = {
  study: {
    name: 'study',
    collection: 'studies',
    idMember: 'studyId',
    idColumn: 'study_id',
    record: Study,
    create: bodies.study,
    update: bodies.study,
    members: {
      studyId: 'r.study_id',
      name: 'r.name',
      studyName: 'r.name',
      siteId: 'r.site_id',
      attributes: 'r.attributes',
      ...dates,
    },
    parents: [],
    columns: [name, { column: 'site_id', member: 'siteId', type: 'text' }, attributes],
    fixed: [],
    filters: {
      name: { column: 'name', substring: true, what: 'Only studies whose name contains this, in any case.' },
      siteId: { column: 'site_id', what: 'Only studies of exactly this site.' },
    },
    sorts: { createdDate: ['r.created_date'], studyName: ['r.name'], updatedDate: ['r.updated_date'] },
    dependents: [],
    unlinks: [],
    taken: null,
  },
  subject: {
    name: 'subject',
    collection: 'subjects',
    idMember: 'subjectId',
    idColumn: 'subject_id',
    record: Subject,
    create: bodies.subject,
    update: bodies.subject,
    members: {
      subjectId: 'r.subject_id',
      studyId: 'r.study_id',
      name: 'r.name',
      attributes: withManaged({ SUBJID: { sql: 'r.name' } }),
      ...dates,
    },
    parents: [],
    columns: [name, attributes],
    fixed: [],
    filters: { name: byName },
    sorts: sortsByName,
    dependents: [
      { table: 'organs', what: 'organs' },
      { table: 'scores', what: 'scores' },
    ],
    unlinks: [{ table: 'slides', columns: ['subject_id', 'organ_id'] }],
    taken: { constraint: 'subject_name_taken', member: 'name', detail: 'is the name of another subject of the study' },
  },
  organ: {
    name: 'organ',
    collection: 'organs',
    idMember: 'organId',
    idColumn: 'organ_id',
    record: Organ,
    create: bodies.organ,
    update: updates.organ,
    members: {
      organId: 'r.organ_id',
      studyId: 'r.study_id',
      subjectId: 'r.subject_id',
      name: 'r.name',
      attributes: withManaged({ SUBJID, MISPEC: { sql: 'r.name' } }),
      ...dates,
    },
    parents: [subject],
    columns: [subjectId, name, attributes],
    fixed: ['subjectId'],
    filters: { subjectId: bySubject, name: byName },
    sorts: sortsByName,
    dependents: [
      { table: 'findings', what: 'findings' },
      { table: 'scores', what: 'scores' },
    ],
    unlinks: [{ table: 'slides', columns: ['organ_id'] }],
    taken: { constraint: 'organ_name_taken', member: 'name', detail: 'is the name of another organ of the subject' },
  },
  slide: {
    name: 'slide',
    collection: 'slides',
    idMember: 'slideId',
    idColumn: 'slide_id',
    record: Slide,
    create: bodies.slide,
    update: updates.slide,
    members: {
      slideId: 'r.slide_id',
      studyId: 'r.study_id',
      subjectId: 'r.subject_id',
      organId: 'r.organ_id',
      fileName: 'r.file_name',
      image: `case when i.image_id is not null then json_build_object('imageId', i.image_id, 'sizeBytes', i.size_bytes, 'sha256', i.sha256, 'format', i.format, 'width', i.width, 'height', i.height, 'ingestedDate', ${isoDate('i.ingested_date')}) end`,
      attributes: withManaged({
        'FILE NAME': { sql: 'r.file_name' },
        SUBJID: { ...SUBJID, optional: true },
        MISPEC: { ...MISPEC, optional: true },
      }),
      ...dates,
    },
    parents: [{ ...subject, optional: true }, { ...organ, optional: true }, image],
    columns: [
      { ...subjectId, derived: `coalesce(i."subjectId", ${subjectOfOrgan})` },
      organId,
      { column: 'file_name', member: 'fileName', type: 'text' },
      attributes,
    ],
    fixed: ['fileName'],
    filters: {
      subjectId: bySubject,
      organId: byOrgan,
      fileName: { column: 'file_name', what: 'Only the slide of exactly this FILE NAME.' },
    },
    sorts: {
      createdDate: ['r.created_date'],
      // The prefix is what the index holds (migration 0001).
      fileName: ['left(r.file_name, 200)', 'r.file_name'],
      updatedDate: ['r.updated_date'],
    },
    dependents: [],
    unlinks: [{ table: 'findings', columns: ['slide_id'] }],
    taken: {
      constraint: 'slide_file_name_taken',
      member: 'fileName',
      detail: 'is the FILE NAME of another slide of the study',
    },
  },
  finding: {
    name: 'finding',
    collection: 'findings',
    idMember: 'findingId',
    idColumn: 'finding_id',
    record: Finding,
    create: bodies.finding,
    update: bodies.finding,
    members: {
      findingId: 'r.finding_id',
      studyId: 'r.study_id',
      subjectId: 'r.subject_id',
      organId: 'r.organ_id',
      slideId: 'r.slide_id',
      name: 'r.name',
      severity: 'r.severity',
      attributes: withManaged({ SUBJID, MISPEC }),
      ...dates,
    },
    parents: [subject, organ],
    columns: [
      { ...subjectId, derived: subjectOfOrgan },
      organId,
      { column: 'slide_id', member: 'slideId', type: 'text' },
      name,
      { column: 'severity', member: 'severity', type: 'text' },
      attributes,
    ],
    fixed: [],
    filters: {
      subjectId: bySubject,
      organId: byOrgan,
      slideId: { column: 'slide_id', id: true, what: 'Only findings on this slide.' },
      name: byName,
      severity: { column: 'severity', what: 'Only findings of exactly this severity.' },
    },
    sorts: sortsByName,
    dependents: [],
    unlinks: [],
    taken: null,
  },
  score: {
    name: 'score',
    collection: 'scores',
    idMember: 'scoreId',
    idColumn: 'score_id',
    record: Score,
    create: bodies.score,
    update: bodies.score,
    members: {
      scoreId: 'r.score_id',
      studyId: 'r.study_id',
      subjectId: 'r.subject_id',
      organId: 'r.organ_id',
      name: 'r.name',
      value: 'r.value',
      unit: 'r.unit',
      attributes: withManaged({ SUBJID, MISPEC: { ...MISPEC, optional: true } }),
      ...dates,
    },
    parents: [subject, { ...organ, optional: true }],
    columns: [
      subjectId,
      organId,
      name,
      { column: 'value', member: 'value', type: 'json' },
      { column: 'unit', member: 'unit', type: 'text' },
      attributes,
    ],
    fixed: [],
    filters: { subjectId: bySubject, organId: byOrgan, name: byName },
    sorts: sortsByName,
    dependents: [],
    unlinks: [],
    taken: null,
  },
} satisfies Record<string, Kind>;

/** The five collections below a study. */
export const childKinds: Kind[] = [kinds.subject, kinds.organ, kinds.slide, kinds.finding, kinds.score];

/** SELECT list of a record's members under their names in the interface. */
export function memberList(kind: Kind): string {
  return Object.entries(kind.members)
    .map(([member, sql]) => `${sql} as "${member}"`)
    .join(', ');
}

/**
 * Joins of a record with what it shows of its parents. `fenced` ones are looked up row by row: for a handful of rows in
 * a prepared statement, whose number the planner cannot know.
 */
export function parentJoins(kind: Kind, how: 'planned' | 'fenced'): string {
  return kind.parents
    .map(({ alias, table, column, shows, optional }) => {
      const on = `${alias}.study_id = r.study_id and ${alias}.${column} = r.${column}`;
      const join = optional ? 'left join' : 'join';
      if (how === 'planned') return `${join} ${table} ${alias} on ${on}`;
      const columns = shows.map((shown) => `${alias}.${shown}`).join(', ');
      return `${join} lateral (select ${columns} from ${table} ${alias} where ${on} offset 0) ${alias} on true`;
    })
    .join(' ');
}
