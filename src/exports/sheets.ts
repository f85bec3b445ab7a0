import type { Kind } from '../studies/kinds.ts';
import { kinds } from '../studies/kinds.ts';
import { AttributeKeys } from './attribute-keys.ts';
import { type Codes, type Counts, copyAttributes, copyFields, findCodes, type Snapshot } from './snapshot-queries.ts';
import type { Cell } from './xlsx/cells.ts';
import { type PlannedColumn, planColumns } from './xlsx/columns.ts';
import type { CopyField } from './xlsx/copy.ts';
import { type Sheet, workbook } from './xlsx/workbook.ts';

/** A fixed column: where it comes from (SQL over the aliases of kinds.ts), and what type that has. */
type Fixed = [header: string, sql: string, type: 'text' | 'integer' | 'timestamp' | 'json'];

const managed: Fixed[] = [
  ['createdDate', 'r.created_date', 'timestamp'],
  ['updatedDate', 'r.updated_date', 'timestamp'],
  ['version', 'r.version', 'integer'],
];
const studyId: Fixed = ['studyId', 'r.study_id', 'text'];
const subjectId: Fixed = ['subjectId', 'r.subject_id', 'text'];
const organId: Fixed = ['organId', 'r.organ_id', 'text'];
const name: Fixed = ['name', 'r.name', 'text'];
const SUBJID: [key: string, sql: string] = ['SUBJID', 's.name'];
const MISPEC: [key: string, sql: string] = ['MISPEC', 'o.name'];

/**
 * One sheet a kind: the members of the record as the API returns it, those of the image with a dot; then the attributes
 * (decisions §4), among them the keys that the service manages.
 */
const recordSheets: { kind: Kind; sheet: string; fixed: Fixed[]; managedKeys: [key: string, sql: string][] }[] = [
  {
    kind: kinds.study,
    sheet: 'study',
    fixed: [studyId, name, ['studyName', 'r.name', 'text'], ['siteId', 'r.site_id', 'text'], ...managed],
    managedKeys: [],
  },
  {
    kind: kinds.subject,
    sheet: 'subjects',
    fixed: [subjectId, studyId, name, ...managed],
    managedKeys: [['SUBJID', 'r.name']],
  },
  {
    kind: kinds.organ,
    sheet: 'organs',
    fixed: [organId, studyId, subjectId, name, ...managed],
    managedKeys: [SUBJID, ['MISPEC', 'r.name']],
  },
  {
    kind: kinds.slide,
    sheet: 'slides',
    fixed: [
      ['slideId', 'r.slide_id', 'text'],
      studyId,
      subjectId,
      organId,
      ['fileName', 'r.file_name', 'text'],
      ['image.imageId', 'i.image_id', 'text'],
      ['image.sizeBytes', 'i.size_bytes', 'integer'],
      ['image.sha256', 'i.sha256', 'text'],
      ['image.format', 'i.format', 'text'],
      ['image.width', 'i.width', 'integer'],
      ['image.height', 'i.height', 'integer'],
      ['image.ingestedDate', 'i.ingested_date', 'timestamp'],
      ...managed,
    ],
    managedKeys: [['FILE NAME', 'r.file_name'], SUBJID, MISPEC],
  },
  {
    kind: kinds.finding,
    sheet: 'findings',
    fixed: [
      ['findingId', 'r.finding_id', 'text'],
      studyId,
      subjectId,
      organId,
      ['slideId', 'r.slide_id', 'text'],
      name,
      ['severity', 'r.severity', 'text'],
      ...managed,
    ],
    managedKeys: [SUBJID, MISPEC],
  },
  {
    kind: kinds.score,
    sheet: 'scores',
    fixed: [
      ['scoreId', 'r.score_id', 'text'],
      studyId,
      subjectId,
      organId,
      name,
      ['value', 'r.value', 'json'],
      ['unit', 'r.unit', 'text'],
      ...managed,
    ],
    managedKeys: [SUBJID, MISPEC],
  },
];

/**
 * The workbook of a study (interface.md §2, decisions §4) in constant memory. Counts in `written` the records that it
 * has rendered.
 */
export function studyWorkbook(snapshot: Snapshot, studyId: string, written: Counts): AsyncGenerator<Buffer> {
  let count = (_rows: number) => {};
  const sheets = studySheets(snapshot, studyId, written, (counter) => {
    count = counter;
  });
  return workbook(sheets, { onRows: (rows) => count(rows) });
}

/** The sheets in order; each is read when the workbook comes to it, and says then how its rows are counted. */
async function* studySheets(
  snapshot: Snapshot,
  studyId: string,
  written: Counts,
  begin: (counter: (rows: number) => void) => void,
): AsyncGenerator<Sheet> {
  for (const { kind, sheet, fixed, managedKeys } of recordSheets) {
    const keys = await attributeKeys(snapshot, kind, studyId);
    for (const [key] of managedKeys) keys.add(key);
    const columns = planColumns(
      fixed.map(([header]) => header),
      keys,
    );
    const { expressions, fields } = fieldsOf(kind, fixed, managedKeys, columns);
    begin((rows) => {
      written[kind.name] += rows;
    });
    yield { name: sheet, columns, copy: copyFields(snapshot, kind, expressions, studyId), fields };
  }
  const codes = await findCodes(snapshot, studyId);
  // Its rows are codes, all of them parts of one record.
  begin(() => {});
  yield codesSheet(codes);
  written.codes = codes ? 1 : 0;
}

/** Every key that an attribute of the kind’s records has. */
async function attributeKeys(snapshot: Snapshot, kind: Kind, studyId: string): Promise<Set<string>> {
  const keys = new AttributeKeys();
  for await (const chunk of copyAttributes(snapshot, kind, studyId)) keys.add(chunk as Buffer);
  return keys.found;
}

/** What to copy, and which columns it goes to. */
function fieldsOf(kind: Kind, fixed: Fixed[], managedKeys: [string, string][], columns: readonly PlannedColumn[]) {
  const byKey = new Map<string, number>();
  let rest: number | null = null;
  for (const [column, { source }] of columns.entries()) {
    if (source.kind === 'attribute') byKey.set(source.key, column);
    if (source.kind === 'rest') rest = column;
  }
  const expressions = fixed.map(([, sql]) => sql);
  const fields: CopyField[] = fixed.map(([, , type], column) => ({ kind: type, column }));
  // Managed keys of their own spare the database from making JSON of them; among the rest there is no other way.
  if (rest === null) {
    for (const [key, sql] of managedKeys) {
      expressions.push(sql);
      fields.push({ kind: 'text', column: byKey.get(key) as number });
    }
  }
  expressions.push(rest === null ? 'r.attributes' : (kind.members.attributes as string));
  fields.push({ kind: 'attributes', columns: byKey, rest });
  return { expressions, fields };
}

/** One row a code. Attributes of the codes object itself stand in every row, headed `codes.KEY`. */
function codesSheet(codes: Codes | null): Sheet {
  const own = Object.keys(codes?.attributes ?? {});
  const lists = Object.entries(codes?.codeLists ?? {});
  const fixed = ['codesId', 'studyId', 'codeList', 'code', 'label', 'createdDate', 'updatedDate', 'version'];
  const keys = new Set(lists.flatMap(([, list]) => list.flatMap(({ attributes }) => Object.keys(attributes ?? {}))));
  const columns = planColumns([...fixed, ...own.map((key) => `codes.${key}`)], keys);
  async function* rows(): AsyncGenerator<Cell[][]> {
    if (!codes) return;
    const { codesId, createdDate, updatedDate, version } = codes;
    const ownValues = own.map((key) => codes.attributes[key] ?? null);
    for (const [codeList, list] of lists) {
      for (const { code, label, attributes = {} } of list) {
        const cells: Cell[] = [codesId, codes.studyId, codeList, code, label, createdDate, updatedDate, version, ...ownValues];
        yield [[...cells, ...columns.slice(cells.length).map(({ source }) => attributeCell(attributes, source))]];
      }
    }
  }
  return { name: 'codes', columns, rows: rows() };
}

function attributeCell(attributes: Codes['attributes'], source: PlannedColumn['source']): Cell {
  if (source.kind === 'attribute')
    return Object.hasOwn(attributes, source.key) ? (attributes[source.key] ?? null) : null;
  const rest = source.kind === 'rest' ? source.keys.filter((key) => Object.hasOwn(attributes, key)) : [];
  return rest.length === 0 ? null : JSON.stringify(Object.fromEntries(rest.map((key) => [key, attributes[key]])));
}
