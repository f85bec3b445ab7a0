import type { Writable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { type Cell, CellWriter } from './cells.ts';
import { columnLetters } from './columns.ts';
import { type CopyField, CopyRows } from './copy.ts';
import {
  type Column,
  contentTypes,
  type Part,
  PROPERTIES,
  ROOT_RELATIONS,
  relations,
  STYLES,
  sheetEnd,
  sheetStart,
  workbookXml,
} from './parts.ts';
import { arrayRows, type RowSource } from './rows.ts';
import { Zip } from './zip.ts';

/** Most rows below the header row: Excel's 1,048,576 less one (decisions §4). */
export const MAX_ROWS = 1_048_575;
/** Most characters of a sheet's name. */
const NAME_LENGTH = 31;

/** One sheet, before it is split by its number of rows. */
export type Sheet = { name: string; columns: readonly Column[] } & SheetRows;

/**
 * The rows of a sheet: `rows`, batch by batch, each with its cells in the order of the columns; or `copy`, the
 * output of `COPY … TO STDOUT (FORMAT binary)` with these fields, whose values need no JavaScript values. Iteration starts when the
 * sheet's turn comes and is ended by `return` where the workbook ends early; so what is open before, its opener closes.
 */
type SheetRows =
  | { rows: AsyncIterable<readonly (readonly Cell[])[]> }
  | { copy: AsyncIterable<Buffer>; fields: readonly CopyField[] };

export interface WorkbookOptions {
  /** Stops between rows. Whatever the rows are read from must heed it too, as a wait for them is not cut short. */
  signal?: AbortSignal;
  /** Told how many rows were rendered since it was last called. */
  onRows?: (count: number) => void;
  /** Rows of a sheet after which another begins. Default {@link MAX_ROWS}. */
  maxRows?: number;
}

/**
 * The bytes of an XLSX workbook (ECMA-376), sheet by sheet in the order given, in constant memory: rows are read as
 * fast as the workbook is. A sheet with more than 1,048,575 rows goes on in `NAME_2`, `NAME_3` and so on.
 *
 * Cells read back equal to the values: text is inline text, numbers print as JavaScript prints them, timestamps are
 * text in ISO 8601 as in the interface, since an Excel date has neither a zone nor exact milliseconds.
 */
export async function* workbook(
  sheets: Iterable<Sheet> | AsyncIterable<Sheet>,
  options: WorkbookOptions = {},
): AsyncGenerator<Buffer> {
  const zip = new Zip();
  const cells = new CellWriter();
  const parts: Part[] = [];
  // The parts that name the sheets come last, as a sheet may turn into several. These names in this order are what
  // file(1) and its like know a workbook by.
  yield await zip.file('_rels/.rels', ROOT_RELATIONS);
  yield await zip.file('docProps/app.xml', PROPERTIES);
  yield await zip.file('xl/styles.xml', STYLES);
  for await (const sheet of sheets) {
    const source = rowSource(sheet);
    try {
      for (let page = 1; page === 1 || (await more(source)); page++) {
        const part = { name: sheetName(sheet.name, page, parts), range: null };
        parts.push(part);
        const xml = worksheet(part, sheet.columns, parts.length === 1, source, cells, options);
        yield* zip.stream(`xl/worksheets/sheet${parts.length}.xml`, xml, (chunk) => cells.reuse(chunk));
      }
    } finally {
      await source.close();
    }
  }
  yield await zip.file('xl/workbook.xml', workbookXml(parts));
  const targets = parts.map((_, i): [string, string] => ['worksheet', `worksheets/sheet${i + 1}.xml`]);
  yield await zip.file('xl/_rels/workbook.xml.rels', relations([...targets, ['styles', 'styles.xml']]));
  yield await zip.file('[Content_Types].xml', contentTypes(parts.length));
  yield zip.end();
}

/** Writes a {@link workbook} to a stream, and ends it. Rejects, and destroys the stream, when anything fails. */
export async function writeWorkbook(
  sheets: Iterable<Sheet> | AsyncIterable<Sheet>,
  out: Writable,
  options: WorkbookOptions = {},
): Promise<void> {
  await pipeline(workbook(sheets, options), out, options.signal ? { signal: options.signal } : {});
}

function rowSource(sheet: Sheet): RowSource {
  return 'rows' in sheet ? arrayRows(sheet.rows) : new CopyRows(sheet.copy, sheet.fields, sheet.columns.length);
}

async function more(source: RowSource): Promise<boolean> {
  while (!source.has()) if (!(await source.fill())) return false;
  return true;
}

async function* worksheet(
  part: Part,
  columns: readonly Column[],
  selected: boolean,
  source: RowSource,
  cells: CellWriter,
  { signal, onRows, maxRows = MAX_ROWS }: WorkbookOptions,
): AsyncGenerator<Buffer> {
  cells.beginSheet(sheetStart(columns, selected));
  cells.beginRow();
  for (const [i, column] of columns.entries()) cells.header(i, column.header);
  cells.endRow();
  while (cells.row <= maxRows && (await more(source))) {
    signal?.throwIfAborted();
    const before = cells.row;
    do {
      cells.beginRow();
      source.render(cells);
      cells.endRow();
    } while (cells.full.length === 0 && cells.row <= maxRows && source.has());
    onRows?.(cells.row - before);
    yield* cells.full.splice(0);
  }
  if (columns.length > 0) part.range = `$A$1:$${columnLetters(columns.length - 1)}$${cells.row}`;
  cells.markup(sheetEnd(part.range));
  cells.flush();
  yield* cells.full.splice(0);
}

/** A name that Excel takes: no `[]:*?/\`, no apostrophe at an end, at most 31 characters, unique whatever the case. */
function sheetName(wanted: string, page: number, parts: readonly Part[]): string {
  const legal = wanted.replace(/[[\]:*?/\\\0-\x1f]/g, '_').replace(/^'|'$/g, '_') || '_';
  const taken = new Set(parts.map(({ name }) => name.toLowerCase()));
  for (let number = page; ; number++) {
    const suffix = number === 1 ? '' : `_${number}`;
    const name = legal.slice(0, NAME_LENGTH - suffix.length) + suffix;
    if (!taken.has(name.toLowerCase())) return name;
  }
}
