import { AttributeKeys } from './attribute-keys.ts';
import { copiedRows } from './copied-rows.ts';
import { type ExportedKind, exportedKinds, type Member } from './records.ts';
import {
  type Counts,
  codesText,
  copyAttributes,
  copyFields,
  type Snapshot,
  storedAttributes,
} from './snapshot-queries.ts';
import type { Cell } from './xlsx/cells.ts';
import { type PlannedColumn, planColumns } from './xlsx/columns.ts';
import type { CopyField } from './xlsx/copy.ts';
import type { Column } from './xlsx/parts.ts';
import { type Sheet, workbook } from './xlsx/workbook.ts';

/** Widths of columns, in characters of the standard font. */
const DATE_WIDTH = 26;
const NAME_WIDTH = 22;

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
    const { columns, sql, fields } = layOut(exported, keys);
    begin((rows) => {
      written[kind.name] += rows;
    });
    yield { name, columns, copy: copyFields(snapshot, kind, sql, studyId), fields };
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

/** The columns of a kind’s sheet, the SQL of what is copied for them, and where that goes. */
function layOut({ kind, columns: fixed, managedKeys }: ExportedKind, keys: Set<string>) {
  const columns = plan(
    fixed.map(({ name }) => name),
    keys,
  );
  const byKey = new Map<string, number>();
  let rest: number | null = null;
  for (const [column, { source }] of columns.entries()) {
    if (source.kind === 'attribute') byKey.set(source.key, column);
    if (source.kind === 'rest') rest = column;
  }
  const copied: { sql: string; field: CopyField }[] = [];
  /** Columns of each text beyond its first: a name is copied once, however many show it. */
  const others = new Map<string, number[]>();
  const add = ({ sql, type }: Pick<Member, 'sql' | 'type'>, column: number) => {
    if (type !== 'text') return copied.push({ sql, field: { kind: type, column } });
    const known = others.get(sql);
    if (known) return known.push(column);
    const also: number[] = [];
    others.set(sql, also);
    return copied.push({ sql, field: { kind: type, column, also } });
  };
  for (const [column, member] of fixed.entries()) add(member, column);
  // Managed keys with a column spare the database from making JSON of them; among the rest there is no other way.
  if (rest === null) for (const { key, sql } of managedKeys) add({ sql, type: 'text' }, byKey.get(key) as number);
  copied.push({
    sql: rest === null ? storedAttributes : (kind.members.attributes as string),
    field: { kind: 'attributes', columns: byKey, rest },
  });
  return { columns, sql: copied.map(({ sql }) => sql), fields: copied.map(({ field }) => field) };
}

/** Plans the columns; dates (24 characters) and most names stand whole in theirs, which headers are too short for. */
function plan(fixed: readonly string[], keys: Iterable<string>): (PlannedColumn & Column)[] {
  return planColumns(fixed, keys).map((column) => {
    if (column.source.kind !== 'fixed') return column;
    if (/Date$/.test(column.header)) return { ...column, width: DATE_WIDTH };
    return /name$/i.test(column.header) ? { ...column, width: NAME_WIDTH } : column;
  });
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
  const columns = plan([...fixed, ...own.map((key) => `codes.${key}`)], keys);
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
