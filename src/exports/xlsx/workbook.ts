import type { Writable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { type Cell, CellWriter } from './cells.ts';
import { columnLetters } from './columns.ts';
import { type CopyField, CopyRows } from './copy.ts';
import { arrayRows, type RowSource } from './rows.ts';
import { xmlText } from './text.ts';
import { Zip } from './zip.ts';

/** Most rows below the header row: Excel's 1,048,576 less one (decisions §4). */
export const MAX_ROWS = 1_048_575;
/** Most characters of a sheet's name. */
const NAME_LENGTH = 31;

export interface Column {
  header: string;
  /** In characters of the standard font. Default: what the header takes, 12 to 40. */
  width?: number;
}

export type Sheet = {
  name: string;
  columns: readonly Column[];
} & (
  | {
      /** Rows, batch by batch, each with its cells in the order of the columns. */ rows: AsyncIterable<
        readonly (readonly Cell[])[]
      >;
    }
  | {
      /** Output of `COPY … TO STDOUT (FORMAT binary)` with these fields. */ copy: AsyncIterable<Buffer>;
      fields: readonly CopyField[];
    }
);

export interface WorkbookOptions {
  /** Stops between rows. Whatever the rows are read from must heed it too, as a wait for them is not cut short. */
  signal?: AbortSignal;
  /** Told how many rows were rendered since it was last called. */
  onRows?: (count: number) => void;
  /** Rows of a sheet after which another begins. Default {@link MAX_ROWS}. */
  maxRows?: number;
}

interface Part {
  name: string;
  /** Absolute reference of header and rows, as a defined name wants it. */
  range: string | null;
}

const XML = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n';
const MAIN = 'http://schemas.openxmlformats.org/spreadsheetml/2006/main';
const RELATIONS = 'http://schemas.openxmlformats.org/package/2006/relationships';
const OFFICE = 'http://schemas.openxmlformats.org/officeDocument/2006/relationships';
const TYPES = 'application/vnd.openxmlformats-officedocument.spreadsheetml';

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
  // The parts that name the sheets come last, as a sheet may turn into several.
  yield await zip.file('_rels/.rels', relations([['officeDocument', 'xl/workbook.xml']]));
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
  const widths = columns.map(({ header, width = Math.min(Math.max(header.length + 4, 12), 40) }, i) => {
    return `<col min="${i + 1}" max="${i + 1}" width="${width}" customWidth="1"/>`;
  });
  cells.beginSheet(
    `${XML}<worksheet xmlns="${MAIN}"><sheetViews><sheetView${selected ? ' tabSelected="1"' : ''} workbookViewId="0">` +
      '<pane ySplit="1" topLeftCell="A2" activePane="bottomLeft" state="frozen"/></sheetView></sheetViews>' +
      `${widths.length > 0 ? `<cols>${widths.join('')}</cols>` : ''}<sheetData>`,
  );
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
  const last = columnLetters(columns.length - 1);
  if (columns.length > 0) part.range = `$A$1:$${last}$${cells.row}`;
  cells.markup(`</sheetData>${columns.length > 0 ? `<autoFilter ref="A1:${last}${cells.row}"/>` : ''}</worksheet>`);
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

function workbookXml(parts: readonly Part[]): string {
  const sheets = parts.map(({ name }, i) => `<sheet name="${xmlText(name)}" sheetId="${i + 1}" r:id="rId${i + 1}"/>`);
  // Excel itself keeps the filtered range under this hidden name, and LibreOffice looks for it.
  const filters = parts.flatMap(({ name, range }, i) =>
    range === null
      ? []
      : `<definedName name="_xlnm._FilterDatabase" localSheetId="${i}" hidden="1">'${xmlText(name.replaceAll("'", "''"))}'!${range}</definedName>`,
  );
  return (
    `${XML}<workbook xmlns="${MAIN}" xmlns:r="${OFFICE}"><bookViews><workbookView/></bookViews>` +
    `<sheets>${sheets.join('')}</sheets>` +
    `${filters.length > 0 ? `<definedNames>${filters.join('')}</definedNames>` : ''}</workbook>`
  );
}

function relations(targets: readonly [type: string, target: string][]): string {
  const items = targets.map(
    ([type, target], i) => `<Relationship Id="rId${i + 1}" Type="${OFFICE}/${type}" Target="${target}"/>`,
  );
  return `${XML}<Relationships xmlns="${RELATIONS}">${items.join('')}</Relationships>`;
}

function contentTypes(sheets: number): string {
  const override = (part: string, type: string) => `<Override PartName="${part}" ContentType="${TYPES}.${type}+xml"/>`;
  const worksheets = Array.from({ length: sheets }, (_, i) =>
    override(`/xl/worksheets/sheet${i + 1}.xml`, 'worksheet'),
  );
  return (
    `${XML}<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">` +
    '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>' +
    '<Default Extension="xml" ContentType="application/xml"/>' +
    `${override('/xl/workbook.xml', 'sheet.main')}${override('/xl/styles.xml', 'styles')}${worksheets.join('')}</Types>`
  );
}

/** Two formats: 0 is plain, 1 is bold (the header row). Excel repairs a file without both first fills. */
const STYLES =
  `${XML}<styleSheet xmlns="${MAIN}"><fonts count="2"><font><sz val="11"/><name val="Calibri"/></font>` +
  '<font><b/><sz val="11"/><name val="Calibri"/></font></fonts>' +
  '<fills count="2"><fill><patternFill patternType="none"/></fill><fill><patternFill patternType="gray125"/></fill></fills>' +
  '<borders count="1"><border><left/><right/><top/><bottom/><diagonal/></border></borders>' +
  '<cellStyleXfs count="1"><xf numFmtId="0" fontId="0" fillId="0" borderId="0"/></cellStyleXfs>' +
  '<cellXfs count="2"><xf numFmtId="0" fontId="0" fillId="0" borderId="0" xfId="0"/>' +
  '<xf numFmtId="0" fontId="1" fillId="0" borderId="0" xfId="0" applyFont="1"/></cellXfs>' +
  '<cellStyles count="1"><cellStyle name="Normal" xfId="0" builtinId="0"/></cellStyles></styleSheet>';
