import { execFile, execFileSync } from 'node:child_process';
import { createWriteStream } from 'node:fs';
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Writable } from 'node:stream';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Cell } from './cells.ts';
import { workbookXml } from './parts.ts';
import { truncate } from './text.ts';
import { type Sheet, type WorkbookOptions, workbook, writeWorkbook } from './workbook.ts';

const run = promisify(execFile);
/** Debian's own Python, the one that has Debian's packages. */
const PYTHON = '/usr/bin/python3';

/** Whether a program runs; where it does not, root on Debian gets the package that has it. */
function provided(command: string, args: string[], debianPackage: string): boolean {
  const works = () => {
    try {
      execFileSync(command, args, { stdio: 'ignore' });
      return true;
    } catch {
      return false;
    }
  };
  if (works()) return true;
  if (process.getuid?.() !== 0) return false;
  try {
    execFileSync('apt-get', ['install', '-y', '--no-install-recommends', debianPackage], {
      stdio: 'ignore',
      env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive' },
    });
  } catch {
    return false;
  }
  return works();
}

let directory: string;
let openpyxl = false;
let libreOffice = false;
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'workbook-'));
  openpyxl = provided(PYTHON, ['-c', 'import openpyxl'], 'python3-openpyxl');
  libreOffice = provided('soffice', ['--version'], 'libreoffice-calc-nogui');
}, 600_000);
afterAll(() => rm(directory, { recursive: true }));

async function* batches(...rows: (readonly Cell[])[][]): AsyncGenerator<readonly (readonly Cell[])[]> {
  yield* rows;
}

const sheet = (name: string, headers: string[], ...rows: Cell[][]): Sheet => ({
  name,
  columns: headers.map((header) => ({ header })),
  rows: batches(rows),
});

let files = 0;
async function write(sheets: Sheet[], options?: WorkbookOptions): Promise<string> {
  const path = join(directory, `${++files}.xlsx`);
  await writeWorkbook(sheets, createWriteStream(path), options);
  return path;
}

interface ReadSheet {
  name: string;
  rows: Cell[][];
  frozen: string | null;
  filter: string | null;
  bold: boolean[];
  widths: number[];
}

/** openpyxl leaves the escapes of inline text in place, and offers to undo them. */
const READ = `
import json, sys, openpyxl
from openpyxl.utils.escape import unescape
book = openpyxl.load_workbook(sys.argv[1])
def value(cell):
    assert cell.data_type != 'f', cell
    return unescape(cell.value) if isinstance(cell.value, str) else cell.value
print(json.dumps([{
    'name': sheet.title,
    'rows': [[value(cell) for cell in row] for row in sheet.iter_rows()],
    'frozen': sheet.freeze_panes,
    'filter': sheet.auto_filter.ref,
    'bold': [any(cell.font.b for cell in row) for row in sheet.iter_rows()],
    'widths': [sheet.column_dimensions[cell.column_letter].width for cell in sheet[1]],
} for sheet in book.worksheets]))`;

async function readByOpenpyxl(path: string): Promise<ReadSheet[]> {
  const { stdout } = await run(PYTHON, ['-c', READ, path], { maxBuffer: 1 << 28 });
  return JSON.parse(stdout);
}

/** All fields as text, sheet by sheet. */
async function readByLibreOffice(path: string): Promise<Record<string, string[][]>> {
  const out = await mkdtemp(join(directory, 'office-'));
  // Comma, quote, UTF-8, from line 1, text quoted, as shown: no; one file a sheet (the last −1).
  const filter = 'csv:Text - txt - csv (StarCalc):44,34,76,1,,0,true,false,false,false,false,-1';
  await run('soffice', [
    `-env:UserInstallation=file://${out}/profile`,
    ...['--headless', '--convert-to', filter, '--outdir', `${out}/csv`, path],
  ]);
  const found: Record<string, string[][]> = {};
  for (const name of await readdir(`${out}/csv`)) {
    const text = await readFile(`${out}/csv/${name}`, 'utf8');
    found[name.replace(/^\d+-|\.csv$/g, '')] = parseCsv(text);
  }
  return found;
}

function parseCsv(text: string): string[][] {
  const rows: string[][] = [[]];
  for (const [, quoted, plain, end] of text.matchAll(/(?:"((?:[^"]|"")*)"|([^,\n"]*))(,|\n|$)/g)) {
    if (quoted === undefined && plain === '' && end === '') break;
    rows.at(-1)?.push(quoted?.replaceAll('""', '"') ?? plain ?? '');
    if (end === '\n') rows.push([]);
  }
  if (rows.at(-1)?.length === 0) rows.pop();
  return rows;
}

const NASTY = [
  ...[
    'plain',
    '',
    '=1+1',
    '=cmd|x',
    '+1',
    '-1',
    '@x',
    `a&b<c>"d"'e'`,
    ' lead',
    'trail ',
    '  ',
    'a  b',
    '\ttab\t',
    'a\nb',
  ],
  ...['\n', '\u0000', 'a\u0001b', '\u000b\u000c\u001f', '_x0001_', '_x000D_', '_x000d_', '_X0001_', '__x0041_x0042_'],
  ...[
    '_x0041\u0001',
    '\u0001x0041_',
    '_x005F_x0001_',
    '_',
    '_x',
    '_xZZZZ_',
    'é ü ß',
    '日本語',
    '😀👍🏽',
    '\ufffe',
    '\uffff',
  ],
  ...[
    '\ufeff',
    '\u0085',
    '\u2028',
    '\u007f',
    ']]>',
    '<![CDATA[',
    '&amp;',
    '1',
    '1.0',
    '007',
    'TRUE',
    'null',
    '#N/A',
    '1e5',
  ],
  ...['2024-01-01', '2024-01-01T00:00:00.000Z', "'quote", 'x'.repeat(32_767), 'x'.repeat(32_768), '&'.repeat(40_000)],
  ...['é'.repeat(40_000), '😀'.repeat(20_000), '_x0001_'.repeat(5000)],
];
const NUMBERS = [0, -0, 1, -1.5, 0.1, 1 / 3, 1e21, 1e-7, 123_456_789_012_345_680, 2 ** 53, 1.7e308, 5e-324];

describe('openpyxl reads', () => {
  test('every text as it was, cut where it is too long', async ({ skip }) => {
    skip(!openpyxl, 'openpyxl is not installed');
    const values = [...NASTY, '\r', 'a\r\nb', '\ud800', 'a\udc00'];
    const path = await write([sheet('text', ['n', 'value'], ...values.map((value, i) => [i, value]))]);
    const [read] = await readByOpenpyxl(path);
    expect(read?.rows.slice(1).map(([, value]) => value)).toEqual(values.map(truncate));
  });

  test('numbers and booleans as such, null as an empty cell', async ({ skip }) => {
    skip(!openpyxl, 'openpyxl is not installed');
    const rows: Cell[][] = NUMBERS.map((number, i) => [number, i % 2 === 0, null, String(number)]);
    const [read] = await readByOpenpyxl(await write([sheet('numbers', ['a', 'b', 'c', 'd'], ...rows)]));
    expect(read?.rows.slice(1)).toEqual(NUMBERS.map((number, i) => [number + 0, i % 2 === 0, null, String(number)]));
  });

  test('a bold header row that is frozen and can be filtered', async ({ skip }) => {
    skip(!openpyxl, 'openpyxl is not installed');
    const columns = [{ header: 'id', width: 26 }, { header: 'a<b>' }, { header: 'x'.repeat(100) }];
    const path = await write([
      { name: 's', columns, rows: batches([[1, 2, 3]], [[4, null, 6]]) },
      sheet('none', ['id']),
    ]);
    const read = await readByOpenpyxl(path);
    expect(read).toMatchObject([
      {
        name: 's',
        rows: [
          ['id', 'a<b>', 'x'.repeat(100)],
          [1, 2, 3],
          [4, null, 6],
        ],
        frozen: 'A2',
        filter: 'A1:C3',
        bold: [true, false, false],
        widths: [26, 12, 40],
      },
      { name: 'none', rows: [['id']], frozen: 'A2', filter: 'A1:A1' },
    ]);
  });

  test('the rows that are too many for a sheet in a second and a third', async ({ skip }) => {
    skip(!openpyxl, 'openpyxl is not installed');
    const rows = Array.from({ length: 25 }, (_, i) => [i]);
    const path = await write(
      [sheet('full', ['n'], ...rows.slice(0, 10)), sheet('findings', ['n'], ...rows), sheet('scores', ['n'], [1])],
      { maxRows: 10 },
    );
    const read = await readByOpenpyxl(path);
    expect(read.map(({ name, filter }) => [name, filter])).toEqual([
      ['full', 'A1:A11'],
      ['findings', 'A1:A11'],
      ['findings_2', 'A1:A11'],
      ['findings_3', 'A1:A6'],
      ['scores', 'A1:A2'],
    ]);
    expect(read.slice(1, 4).flatMap((part) => part.rows.slice(1))).toEqual(rows);
    expect(read.every((part) => part.rows[0]?.[0] === 'n')).toBe(true);
  });

  test('sheets under names that Excel takes', async ({ skip }) => {
    skip(!openpyxl, 'openpyxl is not installed');
    const long = 'x'.repeat(40);
    const names = ["it's <&>", 'a[b]:c*d?e/f\\g', "'quoted'", long, long, 'Same', 'same', ''];
    const read = await readByOpenpyxl(await write(names.map((name) => sheet(name, ['id'], [1]))));
    expect(read.map(({ name }) => name)).toEqual([
      "it's <&>",
      'a_b__c_d_e_f_g',
      '_quoted_',
      'x'.repeat(31),
      `${'x'.repeat(29)}_2`,
      'Same',
      'same_2',
      '_',
    ]);
  });

  test('16,384 columns', async ({ skip }) => {
    skip(!openpyxl, 'openpyxl is not installed');
    const headers = Array.from({ length: 16_384 }, (_, i) => `K${i}`);
    const [read] = await readByOpenpyxl(
      await write([
        sheet(
          'wide',
          headers,
          headers.map((_, i) => i),
        ),
      ]),
    );
    expect(read?.rows).toEqual([headers, headers.map((_, i) => i)]);
    expect(read?.filter).toBe('A1:XFD2');
  });
});

describe('LibreOffice reads', () => {
  test('every cell as it was', { timeout: 120_000 }, async ({ skip }) => {
    skip(!libreOffice, 'LibreOffice is not installed');
    const texts = NASTY.map((value, i): Cell[] => [i, value, value === '', null]);
    const path = await write([
      sheet('text', ['n', 'value', 'empty', 'null'], ...texts),
      sheet('numbers', ['n'], ...NUMBERS.slice(0, -1).map((number) => [number])),
    ]);
    const read = await readByLibreOffice(path);
    expect(read.text?.slice(1)).toEqual(
      NASTY.map((value, i) => [String(i), truncate(value), value === '' ? 'TRUE' : 'FALSE', '']),
    );
    // CSV is written as shown: with 15 digits.
    const shown = NUMBERS.slice(0, -1).map((number) => Number((number + 0).toPrecision(15)));
    expect(read.numbers?.slice(1).map(([number]) => Number(number))).toEqual(shown);
  });
});

describe('writing', () => {
  test('counts the rows that were rendered', async () => {
    const counts: number[] = [];
    await write(
      [sheet('a', ['n'], [1], [2]), { name: 'b', columns: [{ header: 'n' }], rows: batches([[1]], [], [[2], [3]]) }],
      { onRows: (count) => counts.push(count), maxRows: 2 },
    );
    expect(counts.reduce((sum, count) => sum + count, 0)).toBe(5);
  });

  test('makes the same bytes of the same rows', async () => {
    const [a, b] = [await write([sheet('s', ['n'], [1])]), await write([sheet('s', ['n'], [1])])];
    expect(await readFile(a)).toEqual(await readFile(b));
  });

  test('reads no further than the reader has got', async () => {
    let made = 0;
    async function* endless(): AsyncGenerator<Cell[][]> {
      for (;;) {
        made++;
        yield Array.from({ length: 100 }, () => ['x'.repeat(1000)]);
      }
    }
    const bytes = workbook([{ name: 's', columns: [{ header: 'x' }], rows: endless() }]);
    for (let i = 0; i < 6; i++) await bytes.next();
    const before = made;
    await new Promise((resolve) => setImmediate(resolve));
    expect(made).toBe(before);
    // Chunks of 512 KiB, 5 batches each: those handed out and those being compressed.
    expect(made).toBeLessThan(50);
    await bytes.return(undefined);
  });

  test.each(['the reader leaves', 'it is aborted', 'the output fails', 'the rows fail'])(
    'lets go of the rows when %s',
    async (how) => {
      let closed = 0;
      const abort = new AbortController();
      async function* rows(): AsyncGenerator<Cell[][]> {
        try {
          for (let batch = 0; ; batch++) {
            if (how === 'it is aborted' && batch === 20) abort.abort(new Error('it is aborted'));
            if (how === 'the rows fail' && batch === 20) throw new Error('the rows fail');
            yield Array.from({ length: 100 }, () => ['x'.repeat(1000)]);
          }
        } finally {
          closed++;
        }
      }
      const sheets: Sheet[] = [{ name: 's', columns: [{ header: 'x' }], rows: rows() }];
      const options = { signal: abort.signal };
      if (how === 'the reader leaves') {
        const bytes = workbook(sheets, options);
        for (let i = 0; i < 6; i++) await bytes.next();
        await bytes.return(undefined);
      } else {
        let written = 0;
        const out = new Writable({
          write: (_chunk, _encoding, done) => done(how === 'the output fails' && ++written > 6 ? new Error(how) : null),
        });
        const message = how === 'it is aborted' ? 'The operation was aborted' : how;
        await expect(writeWorkbook(sheets, out, options)).rejects.toThrow(message);
        expect(out.destroyed).toBe(true);
      }
      await expect.poll(() => closed).toBe(1);
    },
  );
});

test('each filter is named as Excel names it, so that it knows the filter again', () => {
  const xml = workbookXml([
    { name: "it's", range: '$A$1:$C$3' },
    { name: 'empty', range: null },
  ]);
  const name = `<definedName name="_xlnm._FilterDatabase" localSheetId="0" hidden="1">'it''s'!$A$1:$C$3</definedName>`;
  expect(xml).toContain(`<definedNames>${name}</definedNames>`);
});
