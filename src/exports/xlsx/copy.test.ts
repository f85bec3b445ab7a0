import { expect, test } from 'vitest';
import { type Cell, CellWriter } from './cells.ts';
import { columnLetters } from './columns.ts';
import { type CopyField, CopyRows } from './copy.ts';
import { arrayRows, type RowSource } from './rows.ts';
import { truncate } from './text.ts';

const SIGNATURE = Buffer.from('PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0', 'latin1');
const TRAILER = Buffer.of(0xff, 0xff);

const int16 = (value: number) => {
  const bytes = Buffer.alloc(2);
  bytes.writeInt16BE(value);
  return bytes;
};
const int32 = (value: number) => {
  const bytes = Buffer.alloc(4);
  bytes.writeInt32BE(value);
  return bytes;
};
const int64 = (value: bigint) => {
  const bytes = Buffer.alloc(8);
  bytes.writeBigInt64BE(value);
  return bytes;
};
const double = (value: number) => {
  const bytes = Buffer.alloc(8);
  bytes.writeDoubleBE(value);
  return bytes;
};
const time = (iso: string) => int64(BigInt(Date.parse(iso) - Date.UTC(2000)) * 1000n);
const jsonb = (text: string) => Buffer.from(`\u0001${text}`);

type Value = Buffer | string | null;

function copied(rows: readonly (readonly Value[])[]): Buffer {
  const parts = rows.flatMap((row) => [
    int16(row.length),
    ...row.flatMap((value) => {
      if (value === null) return [int32(-1)];
      const bytes = Buffer.from(value as string);
      return [int32(bytes.length), bytes];
    }),
  ]);
  return Buffer.concat([SIGNATURE, ...parts, TRAILER]);
}

async function* inPieces(bytes: Buffer, size: number): AsyncGenerator<Buffer> {
  for (let start = 0; start < bytes.length; start += size) yield bytes.subarray(start, start + size);
}

async function render(source: RowSource): Promise<string> {
  const cells = new CellWriter();
  for (;;) {
    while (source.has()) {
      cells.beginRow();
      source.render(cells);
      cells.endRow();
    }
    if (!(await source.fill())) break;
  }
  cells.flush();
  return Buffer.concat(cells.full).toString();
}

const ENTITIES: Readonly<Record<string, string>> = { amp: '&', lt: '<', gt: '>', quot: '"' };
const textOf = (xml: string) =>
  xml
    .replace(/&(\w+);/g, (_, name: string) => ENTITIES[name] ?? '?')
    .replace(/_x([0-9A-F]{4})_/g, (_, digits: string) => String.fromCharCode(Number.parseInt(digits, 16)));

const CELL =
  /^<c r="([A-Z]+)(\d+)"(?: t="inlineStr"><is><t( xml:space="preserve")?>([^<]*)<\/t><\/is>| t="b"><v>([01])<\/v>|><v>([^<]*)<\/v>)<\/c>/;

/** The rows of the XML, each with the cells that it has, by letter. Throws where the XML is not as it should be. */
function read(xml: string): Record<string, Cell>[] {
  return xml
    .split('</row>')
    .slice(0, -1)
    .map((rowXml, i) => {
      const start = `<row r="${i + 1}">`;
      expect(rowXml.slice(0, start.length)).toBe(start);
      const row: Record<string, Cell> = {};
      let rest = rowXml.slice(start.length);
      let previous = '';
      while (rest.length > 0) {
        const [all, letters = '', number, preserved, text, boolean, digits] = CELL.exec(rest) ?? [''];
        expect(all, rest.slice(0, 100)).not.toBe('');
        expect(Number(number)).toBe(i + 1);
        expect(letters.padStart(3) > previous.padStart(3)).toBe(true);
        if (text !== undefined && /^\s|\s$/.test(text)) expect(preserved).toBeDefined();
        row[letters] = text !== undefined ? textOf(text) : boolean ? boolean === '1' : Number(digits);
        previous = letters;
        rest = rest.slice(all.length);
      }
      return row;
    });
}

function byLetter(cells: readonly Cell[]): Record<string, Cell> {
  const found = cells.map((cell, i): [string, Cell] => [
    columnLetters(i),
    typeof cell === 'string' ? truncate(cell) : cell,
  ]);
  return Object.fromEntries(found.filter(([, cell]) => cell !== null));
}

/** Asserts that the copied rows become these cells, however the bytes arrive; and that rows of cells become the same. */
async function expectCells(fields: CopyField[], rows: Value[][], cells: Cell[][], sizes = [1, 7, 1 << 20]) {
  async function* batch() {
    yield cells;
  }
  const expected = cells.map(byLetter);
  expect(read(await render(arrayRows(batch())))).toEqual(expected);
  const columns = Math.max(...cells.map((row) => row.length));
  for (const size of sizes) {
    expect(read(await render(new CopyRows(inPieces(copied(rows), size), fields, columns)))).toEqual(expected);
  }
}

test('a text fills every column that shows it', async () => {
  await expectCells(
    [
      { kind: 'text', column: 3 },
      { kind: 'text', column: 1, also: [0, 4] },
      { kind: 'text', column: 2, also: [] },
    ],
    [
      ['d', 'a & b', 'c'],
      [null, null, 'c'],
    ],
    [
      ['a & b', 'a & b', 'c', 'd', 'a & b'],
      [null, null, 'c', null, null],
    ],
  );
});

test('every kind of field becomes the cell that its value is', async () => {
  await expectCells(
    [
      { kind: 'text', column: 0 },
      { kind: 'integer', column: 1 },
      { kind: 'integer', column: 2 },
      { kind: 'integer', column: 3 },
      { kind: 'double', column: 4 },
      { kind: 'boolean', column: 5 },
      { kind: 'timestamp', column: 6 },
      { kind: 'json', column: 7 },
    ],
    [
      ['a', int16(-3), int32(7), int64(2n ** 53n), double(0.1), Buffer.of(1), time('2026-01-02T03:04:05.678Z'), '"x"'],
      [null, null, null, null, null, null, null, null],
      ['', int16(0), int32(-1), int64(-5n), double(-0), Buffer.of(0), time('1969-12-31T23:59:59.999Z'), 'null'],
      ['=1+1', int16(0), int32(0), int64(0n), double(1e300), Buffer.of(0), time('2026-01-02T03:04:05.678Z'), '-1.5e-7'],
      [
        'é😀',
        int16(0),
        int32(0),
        int64(0n),
        double(5e-324),
        Buffer.of(0),
        time('2026-01-02T03:04:05.678Z'),
        jsonb('true'),
      ],
    ],
    [
      ['a', -3, 7, 2 ** 53, 0.1, true, '2026-01-02T03:04:05.678Z', 'x'],
      [null],
      ['', 0, -1, -5, 0, false, '1969-12-31T23:59:59.999Z', null],
      ['=1+1', 0, 0, 0, 1e300, false, '2026-01-02T03:04:05.678Z', -1.5e-7],
      ['é😀', 0, 0, 0, 5e-324, false, '2026-01-02T03:04:05.678Z', true],
    ],
  );
});

const NASTY = [
  '=1+1',
  ' lead',
  'trail\n',
  '\t',
  'a\r\nb',
  '\u0001',
  '_x0001_',
  '_x',
  'x_',
  '_',
  '&<>"\'',
  ']]>',
  'é ü',
  '日本語',
  '😀',
  '\ufffe\uffff',
  '\ufeff',
  'ﬁ',
  '\u007f',
  '\\',
  '\\u0041',
  '"',
  'a"b\\c/d',
  '{"a":1}',
  'true',
  '1',
  'null',
  'x'.repeat(32_767),
  'x'.repeat(32_768),
  'é'.repeat(32_767),
  '😀'.repeat(20_000),
  '&'.repeat(32_767),
  '\u0001'.repeat(32_767),
];

test('text arrives whole, from text and from JSON', async () => {
  await expectCells(
    [
      { kind: 'text', column: 0 },
      { kind: 'json', column: 1 },
      { kind: 'attributes', columns: new Map([['k', 2]]), rest: null },
    ],
    NASTY.map((value) => [value, JSON.stringify(value), JSON.stringify({ k: value })]),
    NASTY.map((value) => [value, value, value]),
    [4093, 1 << 20],
  );
});

test('a row of many megabytes may come in any number of pieces', async () => {
  const attributes = JSON.stringify({ a: 'x'.repeat(6_000_000), é: 1 });
  const text = `${'x'.repeat(32_764)}...`;
  await expectCells(
    ATTRIBUTES,
    [
      ['id', attributes, 'last'],
      ['next', '{}', 'last'],
    ],
    [
      ['id', null, null, text, null, 1, null, null, null, 'last'],
      ['next', ...Array<null>(8).fill(null), 'last'],
    ],
    [8192, 1 << 20],
  );
});

test('JSON may escape what it need not', async () => {
  await expectCells(
    [
      { kind: 'json', column: 0 },
      { kind: 'attributes', columns: new Map([['ké', 1]]), rest: null },
    ],
    [['"\\u00e9\\ud83d\\ude00\\/\\ud800"', '{"k\\u00e9":"\\u0041"}']],
    [['é😀/\ud800', 'A']],
  );
});

const KEYS = new Map(
  ['', '__proto__', 'a', 'a"b', 'é', 'constructor', 'long key with spaces', '😀'].map((key, i) => [key, i + 1]),
);
const ATTRIBUTES: CopyField[] = [
  { kind: 'text', column: 0 },
  { kind: 'attributes', columns: KEYS, rest: null },
  { kind: 'text', column: 9 },
];

/** A number that PostgreSQL would keep and no double can. */
const LONG = '12345678901234567890123456789012345';

test('attributes go to the columns of their keys, in whatever order and number they come', async () => {
  const cell = (...found: [number, Cell][]): Cell[] => {
    const row: Cell[] = Array.from({ length: 10 }, () => null);
    row[0] = 'id';
    row[9] = 'last';
    for (const [column, value] of found) row[column] = value;
    return row;
  };
  const json = (text: string): Value[] => ['id', text, 'last'];
  await expectCells(
    ATTRIBUTES,
    [
      json('{}'),
      json('{"a":1,"é":"x"}'),
      json('{"é":true,"a":false}'),
      json('{"a":null}'),
      json('{"😀":1,"long key with spaces":2,"constructor":3,"é":4,"a\\"b":5,"a":6,"__proto__":7,"":8}'),
      json('{"😀":1,"long key with spaces":2,"constructor":3,"é":4,"a\\"b":5,"a":6,"__proto__":7,"":8}'),
      json('{"a":"}","é":"{,\\"","constructor":","}'),
      ['id', jsonb('{"a": 1, "é": "x"}'), 'last'],
      json(` { "a" : 1.50 ,\n"é":${LONG} } `),
    ],
    [
      cell(),
      cell([3, 1], [5, 'x']),
      cell([3, false], [5, true]),
      cell(),
      cell([8, 1], [7, 2], [6, 3], [5, 4], [4, 5], [3, 6], [2, 7], [1, 8]),
      cell([8, 1], [7, 2], [6, 3], [5, 4], [4, 5], [3, 6], [2, 7], [1, 8]),
      cell([3, '}'], [5, '{,"'], [6, ',']),
      cell([3, 1], [5, 'x']),
      cell([3, 1.5], [5, Number(LONG)]),
    ],
  );
});

test('a column that no attribute fills is empty, however many columns there are', async () => {
  const columns = new Map(Array.from({ length: 5000 }, (_, i) => [`K${i}`, i]));
  const row: Cell[] = Array.from({ length: 5000 }, () => null);
  row[4999] = 1;
  row[17] = 2;
  await expectCells([{ kind: 'attributes', columns, rest: null }], [['{"K4999":1,"K17":2}']], [row]);
});

test('keys without a column share the last one as a JSON object', async () => {
  const fields: CopyField[] = [
    { kind: 'text', column: 0 },
    { kind: 'attributes', columns: new Map([['a', 1]]), rest: 2 },
  ];
  await expectCells(
    fields,
    [
      ['x', '{"a":1,"b":"é\\n","c":null}'],
      ['y', '{"a":1}'],
      ['z', '{"d":[1,{"e":2}]}'.replace('[1,{"e":2}]', 'true')],
      ['long', `{"b":"${'x'.repeat(40_000)}"}`],
    ],
    [
      ['x', 1, '{"b":"é\\n","c":null}'],
      ['y', 1],
      ['z', null, '{"d":true}'],
      ['long', null, `{"b":"${'x'.repeat(40_000)}"}`],
    ],
    [999, 1 << 20],
  );
});

test.each([
  ['a key without a column', copied([['id', '{"unknown":1}', 'last']]), 'The attribute "unknown" has no column'],
  ['an object for a value', copied([['id', '{"a":{}}', 'last']]), 'object or array'],
  ['attributes that are no object', copied([['id', '[]', 'last']]), 'no JSON object'],
  ['attributes cut short', copied([['id', '{"a":"', 'last']]), 'no JSON object'],
  ['attributes without their end', copied([['id', '{"a":1', 'last']]), 'no JSON object'],
  ['a key cut short', copied([['id', '{"a', 'last']]), 'JSON'],
  ['another number of fields', copied([['id']]), '1 fields copied, 3 expected'],
  ['rows cut short', copied([['id', '{}', 'last']]).subarray(0, -3), 'end before their trailer'],
  ['no row and no trailer', Buffer.alloc(0), 'end before their trailer'],
  ['COPY in text format', Buffer.from('id\t{}\tlast\nid\t{}\tlast\n'), 'no binary COPY'],
])('%s is refused', async (_, bytes, message) => {
  await expect(render(new CopyRows(inPieces(bytes, 5), ATTRIBUTES, 10))).rejects.toThrow(message);
});
