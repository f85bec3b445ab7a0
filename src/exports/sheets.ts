import { AttributeKeys } from './attribute-keys.ts';
import { copiedRows } from './copied-rows.ts';
import { type ExportedKind, exportedKinds, type Member } from './records.ts';
import { type Counts, codesText, copyAttributes, copyFields, fieldsOf, type Snapshot } from './snapshot-queries.ts';
import type { Cell } from './xlsx/cells.ts';
import { type PlannedColumn, planColumns } from './xlsx/columns.ts';
import type { CopyField } from './xlsx/copy.ts';
import { type Sheet, workbook } from './xlsx/workbook.ts';

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
  for (const exported of Object.values(exportedKinds)) {
    const { kind, name } = exported;
    const keys = await attributeKeys(snapshot, exported, studyId);
    const { columns, fields, attributes } = layOut(exported, keys);
    begin((rows) => {
      written[kind.name] += rows;
    });
    yield { name, columns, copy: copyFields(snapshot, kind, fieldsOf(exported, attributes), studyId), fields };
  }
  const codes = await codesText(snapshot, studyId);
  // Its rows are codes, all of them parts of one record.
  begin(() => {});
  yield codesSheet(codes === null ? null : JSON.parse(codes));
  written.codes = codes === null ? 0 : 1;
}

/** Every key that an attribute of the kind’s records has. */
async function attributeKeys(snapshot: Snapshot, exported: ExportedKind, studyId: string): Promise<Set<string>> {
  const keys = new AttributeKeys();
  for await (const rows of copiedRows(copyAttributes(snapshot, exported.kind, studyId))) keys.add(rows);
  for (const { key } of exported.managedKeys) keys.found.add(key);
  return keys.found;
}

/** Members of a record that have a column; those of a group with a dot. */
function fixedColumns({ members }: ExportedKind): Member[] {
  return members.flatMap((member) => {
    if (member === 'attributes') return [];
    if (!('group' in member)) return [member];
    return member.members.map((one) => ({ ...one, name: `${member.group}.${one.name}` }));
  });
}

/** The columns of a kind’s sheet, and where the fields of {@link fieldsOf} go. */
function layOut(exported: ExportedKind, keys: Set<string>) {
  const fixed = fixedColumns(exported);
  const columns = planColumns(
    fixed.map(({ name }) => name),
    keys,
  );
  const byKey = new Map<string, number>();
  let rest: number | null = null;
  for (const [column, { source }] of columns.entries()) {
    if (source.kind === 'attribute') byKey.set(source.key, column);
    if (source.kind === 'rest') rest = column;
  }
  // Managed keys with a column spare the database from making JSON of them; among the rest there is no other way.
  const attributes = rest === null ? ('raw' as const) : ('whole' as const);
  const managed = exported.managedKeys.map(
    ({ key }): CopyField => ({ kind: 'text', column: byKey.get(key) as number }),
  );
  let next = 0;
  const field = ({ type }: Member): CopyField => ({ kind: type, column: next++ });
  const fields = exported.members.flatMap((member): CopyField[] => {
    if (member !== 'attributes') return 'group' in member ? member.members.map(field) : [field(member)];
    return [...(attributes === 'raw' ? managed : []), { kind: 'attributes', columns: byKey, rest }];
  });
  return { columns, attributes, fields };
}

type Attributes = Record<string, Exclude<Cell, undefined>>;

/** The codes object. */
interface Codes {
  codesId: string;
  studyId: string;
  codeLists: Record<string, { code: string; label: string; attributes?: Attributes }[]>;
  attributes: Attributes;
  createdDate: string;
  updatedDate: string;
  version: number;
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
    const { codesId, studyId, createdDate, updatedDate, version } = codes;
    const ownValues = own.map((key) => codes.attributes[key] ?? null);
    for (const [codeList, list] of lists) {
      for (const { code, label, attributes = {} } of list) {
        const cells: Cell[] = [
          codesId,
          studyId,
          codeList,
          code,
          label,
          createdDate,
          updatedDate,
          version,
          ...ownValues,
        ];
        yield [[...cells, ...columns.slice(cells.length).map(({ source }) => attributeCell(attributes, source))]];
      }
    }
  }
  return { name: 'codes', columns, rows: rows() };
}

function attributeCell(attributes: Attributes, source: PlannedColumn['source']): Cell {
  if (source.kind === 'attribute')
    return Object.hasOwn(attributes, source.key) ? (attributes[source.key] ?? null) : null;
  const rest = source.kind === 'rest' ? source.keys.filter((key) => Object.hasOwn(attributes, key)) : [];
  return rest.length === 0 ? null : JSON.stringify(Object.fromEntries(rest.map((key) => [key, attributes[key]])));
}
