import { xmlText } from './text.ts';

const XML = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n';
const MAIN = 'http://schemas.openxmlformats.org/spreadsheetml/2006/main';
const RELATIONS = 'http://schemas.openxmlformats.org/package/2006/relationships';
const OFFICE = 'http://schemas.openxmlformats.org/officeDocument/2006/relationships';
const TYPES = 'application/vnd.openxmlformats-officedocument';

/** Widths of columns, in characters of the standard font: of one that has none of its own, at least and at most. */
const MIN_WIDTH = 12;
const MAX_WIDTH = 40;

export interface Column {
  header: string;
  /** In characters of the standard font, at most 255. Default: what the header takes. */
  width?: number;
}

/** A sheet that was written. */
export interface Part {
  name: string;
  /** Absolute reference of header and rows, as a defined name wants it; null: no columns, nothing to filter. */
  range: string | null;
}

/** A worksheet up to its rows: the header row stays in sight, the columns are as wide as they should be. */
export function sheetStart(columns: readonly Column[], selected: boolean): string {
  const widths = columns.map(({ header, width = Math.min(Math.max(header.length + 4, MIN_WIDTH), MAX_WIDTH) }, i) => {
    return `<col min="${i + 1}" max="${i + 1}" width="${width}" customWidth="1"/>`;
  });
  return (
    `${XML}<worksheet xmlns="${MAIN}"><sheetViews><sheetView${selected ? ' tabSelected="1"' : ''} workbookViewId="0">` +
    '<pane ySplit="1" topLeftCell="A2" activePane="bottomLeft" state="frozen"/></sheetView></sheetViews>' +
    `${widths.length > 0 ? `<cols>${widths.join('')}</cols>` : ''}<sheetData>`
  );
}

/** The rest of a worksheet; `range` is what can be filtered. */
export function sheetEnd(range: string | null): string {
  return `</sheetData>${range === null ? '' : `<autoFilter ref="${range.replaceAll('$', '')}"/>`}</worksheet>`;
}

export function workbookXml(parts: readonly Part[]): string {
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

export function relations(targets: readonly [type: string, target: string][]): string {
  const items = targets.map(
    ([type, target], i) => `<Relationship Id="rId${i + 1}" Type="${OFFICE}/${type}" Target="${target}"/>`,
  );
  return `${XML}<Relationships xmlns="${RELATIONS}">${items.join('')}</Relationships>`;
}

export function contentTypes(sheets: number): string {
  const override = (part: string, type: string) => `<Override PartName="${part}" ContentType="${TYPES}.${type}+xml"/>`;
  const worksheets = Array.from({ length: sheets }, (_, i) =>
    override(`/xl/worksheets/sheet${i + 1}.xml`, 'spreadsheetml.worksheet'),
  );
  return (
    `${XML}<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">` +
    '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>' +
    '<Default Extension="xml" ContentType="application/xml"/>' +
    override('/docProps/app.xml', 'extended-properties') +
    override('/xl/workbook.xml', 'spreadsheetml.sheet.main') +
    override('/xl/styles.xml', 'spreadsheetml.styles') +
    `${worksheets.join('')}</Types>`
  );
}

export const ROOT_RELATIONS = relations([
  ['officeDocument', 'xl/workbook.xml'],
  ['extended-properties', 'docProps/app.xml'],
]);

export const PROPERTIES =
  `${XML}<Properties xmlns="http://schemas.openxmlformats.org/officeDocument/2006/extended-properties">` +
  '<Application>Study Data Service</Application></Properties>';

/** Two formats: 0 is plain, 1 is bold (the header row). Excel repairs a file without both first fills. */
export const STYLES =
  `${XML}<styleSheet xmlns="${MAIN}"><fonts count="2"><font><sz val="11"/><name val="Calibri"/></font>` +
  '<font><b/><sz val="11"/><name val="Calibri"/></font></fonts>' +
  '<fills count="2"><fill><patternFill patternType="none"/></fill><fill><patternFill patternType="gray125"/></fill></fills>' +
  '<borders count="1"><border><left/><right/><top/><bottom/><diagonal/></border></borders>' +
  '<cellStyleXfs count="1"><xf numFmtId="0" fontId="0" fillId="0" borderId="0"/></cellStyleXfs>' +
  '<cellXfs count="2"><xf numFmtId="0" fontId="0" fillId="0" borderId="0" xfId="0"/>' +
  '<xf numFmtId="0" fontId="1" fillId="0" borderId="0" xfId="0" applyFont="1"/></cellXfs>' +
  '<cellStyles count="1"><cellStyle name="Normal" xfId="0" builtinId="0"/></cellStyles></styleSheet>';
