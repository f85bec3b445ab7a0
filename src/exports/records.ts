import type { Kind } from '../studies/kinds.ts';
import { kinds } from '../studies/kinds.ts';

/** A member of a record: SQL over the aliases of kinds.ts, and the type that it has in the database. */
export interface Member {
  name: string;
  sql: string;
  type: 'text' | 'integer' | 'timestamp' | 'json';
}

/** An object in a record, null where its first member is. */
export interface MemberGroup {
  group: string;
  members: Member[];
}

/** A kind of record as exports read it: raw columns, of which files are made faster than of JSON or text. */
export interface ExportedKind {
  kind: Kind;
  /** JSON array, and sheet. */
  name: string;
  /** Members in the order of the API. */
  members: (Member | MemberGroup | 'attributes')[];
  /** Attribute keys that the service manages, and their SQL (interface.md §1); left out where that is null. */
  managedKeys: { key: string; sql: string }[];
  /**
   * Fixed columns of its sheet, in order: the members, those of a group with a dot. Behind the id of a subject or organ
   * stands its name, so that whoever reads the sheet sees at once whom a row is about.
   */
  columns: Member[];
}

const date = (name: string, sql: string): Member => ({ name, sql, type: 'timestamp' });

/** Members that are not the text that the API’s own SQL says. */
const typed: Record<string, Member | MemberGroup | 'attributes'> = {
  attributes: 'attributes',
  createdDate: date('createdDate', 'r.created_date'),
  updatedDate: date('updatedDate', 'r.updated_date'),
  version: { name: 'version', sql: 'r.version', type: 'integer' },
  value: { name: 'value', sql: 'r.value', type: 'json' },
  image: {
    group: 'image',
    members: [
      { name: 'imageId', sql: 'i.image_id', type: 'text' },
      { name: 'sizeBytes', sql: 'i.size_bytes', type: 'integer' },
      { name: 'sha256', sql: 'i.sha256', type: 'text' },
      { name: 'format', sql: 'i.format', type: 'text' },
      { name: 'width', sql: 'i.width', type: 'integer' },
      { name: 'height', sql: 'i.height', type: 'integer' },
      date('ingestedDate', 'i.ingested_date'),
    ],
  },
};

/** What the name is called behind the id of another record, and its SQL. */
const namesById: Record<string, Member> = {
  subjectId: { name: 'subjectName', sql: 's.name', type: 'text' },
  organId: { name: 'organName', sql: 'o.name', type: 'text' },
};

function columnsOf(kind: Kind, members: ExportedKind['members']): Member[] {
  const columns = members.flatMap((member): Member[] => {
    if (member === 'attributes') return [];
    if (!('group' in member)) return [member];
    return member.members.map((one) => ({ ...one, name: `${member.group}.${one.name}` }));
  });
  // The name of a subject or organ moves to its own id.
  const own = kind.idMember in namesById ? columns.find(({ name }) => name === 'name') : undefined;
  return columns
    .filter((column) => column !== own)
    .flatMap((column) => {
      const name = column.name === kind.idMember ? own : namesById[column.name];
      return name ? [column, name] : [column];
    });
}

function exported(kind: Kind, name: string, managedKeys: Record<string, string>): ExportedKind {
  const members = Object.entries(kind.members).map(
    ([member, sql]) => typed[member] ?? ({ name: member, sql, type: 'text' } as const),
  );
  return {
    kind,
    name,
    members,
    managedKeys: Object.entries(managedKeys).map(([key, sql]) => ({ key, sql })),
    columns: columnsOf(kind, members),
  };
}

export const exportedKinds = {
  study: exported(kinds.study, 'study', {}),
  subject: exported(kinds.subject, 'subjects', { SUBJID: 'r.name' }),
  organ: exported(kinds.organ, 'organs', { SUBJID: 's.name', MISPEC: 'r.name' }),
  slide: exported(kinds.slide, 'slides', { 'FILE NAME': 'r.file_name', SUBJID: 's.name', MISPEC: 'o.name' }),
  finding: exported(kinds.finding, 'findings', { SUBJID: 's.name', MISPEC: 'o.name' }),
  score: exported(kinds.score, 'scores', { SUBJID: 's.name', MISPEC: 'o.name' }),
};
