import { readdirSync, readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { type Cell, type Column, ibmNumber, memberOf, writeTransport } from '../../test/xport-writer.ts';
import { SendError } from './error.ts';
import { type Dataset, readTransport } from './xport.ts';
import { decodeNumber, decodeText } from './xport-values.ts';

const SEND = '../shared/data/send';

function only(bytes: Buffer): Dataset {
  const [dataset, ...others] = readTransport('x.xpt', bytes);
  expect(others).toEqual([]);
  return dataset as Dataset;
}

function valuesOf(dataset: Dataset): Record<string, unknown>[] {
  return [...dataset.rows()].map((row) => Object.fromEntries(row.values));
}

/** Reads everything, or returns the refusal; any other error fails the test. */
function tryRead(bytes: Buffer): { datasets: Dataset[]; rows: Record<string, unknown>[][] } | SendError {
  try {
    const datasets = readTransport('x.xpt', bytes);
    return { datasets, rows: datasets.map(valuesOf) };
  } catch (error) {
    if (error instanceof SendError) return error;
    throw error;
  }
}

function refusalOf(bytes: Buffer): SendError {
  const result = tryRead(bytes);
  if (result instanceof SendError) return result;
  throw new Error('was read');
}

const text = (name: string, length: number): Column => ({ name, type: 'text', length });
const number = (name: string, length = 8): Column => ({ name, type: 'number', length });
function rowsOf(columns: Column[], ...rows: Cell[][]): Buffer {
  return writeTransport([{ name: 'X', columns, rows }]);
}

describe('the structure of a transport file', () => {
  test.each([140, 136] as const)('variables, labels and rows are read, namestrs being %i bytes long', (size) => {
    const columns = [
      { ...text('USUBJID', 9), label: 'Unique Subject Identifier' },
      { ...number('miseq'), label: 'Sequence Number' },
      number('AGE', 3),
    ];
    const rows = [
      ['A-1', 1, 12],
      ['A-2', 2, null],
    ];
    const dataset = only(writeTransport([{ name: 'MI', label: 'Microscopic Findings', columns, rows }], size));
    expect(dataset).toMatchObject({ name: 'MI', label: 'Microscopic Findings', rowCount: 2 });
    expect(dataset.variables).toEqual([
      { name: 'USUBJID', label: 'Unique Subject Identifier', type: 'text', length: 9, position: 0 },
      { name: 'MISEQ', label: 'Sequence Number', type: 'number', length: 8, position: 9 },
      { name: 'AGE', label: '', type: 'number', length: 3, position: 17 },
    ]);
    expect(valuesOf(dataset)).toEqual([
      { USUBJID: 'A-1', MISEQ: 1, AGE: 12 },
      { USUBJID: 'A-2', MISEQ: 2 },
    ]);
    expect([...dataset.rows()].map((row) => [row.file, row.number])).toEqual([
      ['x.xpt', 1],
      ['x.xpt', 2],
    ]);
  });

  test('several members of one file are read, an empty one among them', () => {
    const members = [
      { name: 'DM', columns: [text('A', 5)], rows: [['one'], ['two']] },
      { name: 'EMPTY', columns: [text('B', 3), number('C')], rows: [] },
      { name: 'TX', columns: [number('D')], rows: Array.from({ length: 11 }, (_, i) => [i]) },
    ];
    const datasets = readTransport('x.xpt', writeTransport(members));
    expect(datasets.map(({ name, rowCount }) => [name, rowCount])).toEqual([
      ['DM', 2],
      ['EMPTY', 0],
      ['TX', 11],
    ]);
    expect(datasets.map(valuesOf)[0]).toEqual([{ A: 'one' }, { A: 'two' }]);
    expect(valuesOf(datasets[2] as Dataset)[10]).toEqual({ D: 10 });
  });

  test.each([1, 7, 20, 39, 40, 41, 79, 80, 81, 100, 160, 200])(
    'the padding after rows of %i bytes is no row',
    (length) => {
      for (let count = 0; count <= 12; count += 1) {
        const rows = Array.from({ length: count }, (_, i) => [String.fromCharCode(65 + i)]);
        expect(valuesOf(only(rowsOf([text('A', length)], ...rows)))).toEqual(rows.map(([A]) => ({ A })));
      }
    },
  );

  test('blank rows are rows, unless they could be the padding of the last record', () => {
    expect(only(rowsOf([text('A', 40)], ['x'], [''], ['y'])).rowCount).toBe(3);
    expect(only(rowsOf([text('A', 40)], ['x'], [''], [''])).rowCount).toBe(3);
    expect(only(rowsOf([text('A', 40)], ['x'], [''])).rowCount).toBe(1);
    expect(only(rowsOf([text('A', 40)], [''])).rowCount).toBe(1);
    expect(only(rowsOf([text('A', 80)], ['x'], [''])).rowCount).toBe(2);
    expect(only(rowsOf([text('A', 100)], ['x'], [''])).rowCount).toBe(2);
  });
});

describe('values', () => {
  test.each([
    ['4110000000000000', 1],
    ['c110000000000000', -1],
    ['0000000000000000', 0],
    ['8000000000000000', 0],
    ['4019999999999999', 0.09999999999999999],
    ['401999999999999a', 0.1],
    ['4276400000000000', 118.25],
    ['c276a00000000000', -118.625],
    ['4110', 1],
    ['41100000', 1],
    ['4c246139ca800000', 4e13],
    ['7fffffffffffffff', 7.237005577332262e75],
    ['0010000000000000', 5.397605346934028e-79],
    ['4100000000000001', 2 ** -52],
  ])('the IBM number %s is %d', (hex, value) => {
    const bytes = Buffer.from(hex, 'hex');
    expect(decodeNumber(bytes, 0, bytes.length)).toBe(value);
  });

  test('every double in the range of IBM numbers is read back exactly', () => {
    // A linear congruential generator: the same doubles in every run.
    let seed = 1;
    for (let i = 0; i < 20_000; i += 1) {
      seed = (seed * 48_271) % 2_147_483_647;
      const value = (seed / 1e4 + seed / 2_147_483_647) * 10 ** ((seed % 140) - 70) * (seed % 2 ? 1 : -1);
      expect(decodeNumber(ibmNumber(value), 0, 8)).toBe(value);
    }
  });

  test('the 28 missing values of SAS are null', () => {
    for (const code of '._ABCDEFGHIJKLMNOPQRSTUVWXYZ') {
      expect(decodeNumber(Buffer.from(`${code}\0\0\0\0\0\0\0`), 0, 8)).toBeNull();
      expect(decodeNumber(Buffer.from(`${code}\0`), 0, 2)).toBeNull();
    }
  });

  test.each(['3000000000000000', '2020202020202020', 'ff00000000000000'])(
    '%s is no number: refused with its row',
    (hex) => {
      const error = refusalOf(rowsOf([number('N')], [1], [Buffer.from(hex, 'hex')], [2]));
      expect(error).toMatchObject({ file: 'x.xpt', record: 2 });
      expect(error.message).toBe(`x.xpt, record 2: N is no number that SAS writes (bytes ${hex})`);
    },
  );

  test('text is Windows-1252; the bytes that it leaves undefined become control characters', () => {
    const bytes = Buffer.from(Array.from({ length: 256 }, (_, i) => i));
    const decoded = decodeText(bytes, 0, 256);
    expect(decoded).toHaveLength(256);
    expect(new Set(decoded).size).toBe(256);
    expect(decoded.slice(0, 0x80)).toBe(bytes.toString('latin1', 0, 0x80));
    expect(decoded.slice(0xa0)).toBe(bytes.toString('latin1', 0xa0));
    expect([0x80, 0x92, 0x9f, 0xb1, 0xdf].map((code) => decoded.charAt(code))).toEqual(['€', '’', 'Ÿ', '±', 'ß']);
    for (const code of [0x81, 0x8d, 0x8f, 0x90, 0x9d]) expect(decoded.charCodeAt(code)).toBe(code);
  });

  test('blanks at the end are padding; leading ones and line feeds are kept', () => {
    const values = ['  a  ', 'b\nc', '\n', '    ', ' é '];
    const rows = valuesOf(only(rowsOf([text('T', 90)], ...values.map((value) => [value]))));
    expect(rows).toEqual([{ T: '  a' }, { T: 'b\nc' }, { T: '\n' }, {}, { T: ' é' }]);
  });

  test('a zero byte in a text is refused with its row', () => {
    expect(refusalOf(rowsOf([text('T', 3)], ['abc'], ['a\0c'])).message).toBe(
      'x.xpt, record 2: T holds a zero byte, which is no text',
    );
  });
});

describe('damaged files are refused', () => {
  const good = rowsOf([text('A', 50), number('B')], ['one', 1], ['two', 2], ['three', 3]);
  const changed = (at: number, bytes: string | number[]) => {
    const copy = Buffer.from(good);
    copy.set(typeof bytes === 'string' ? Buffer.from(bytes, 'latin1') : bytes, at);
    return copy;
  };
  const namestr = 640;

  test.each([
    ['nothing', Buffer.alloc(0), 'the file is empty'],
    ['text', Buffer.from('Just some text, saved as dm.xpt by mistake.'.repeat(10)), 'not a SAS transport file'],
    ['version 8', changed(20, 'LIBV8   '), 'version 8'],
    ['CPORT', changed(0, '**COMPRESSED** **COMPRESSED** '), 'PROC CPORT'],
    ['no member', good.subarray(0, 240), 'cut short: no MEMBER header'],
    ['a wrong member header', changed(240, 'HEADER RECORD*******MEMBEX'), 'damaged: no MEMBER header at byte 240'],
    ['a wrong namestr size', changed(240 + 74, '0141'), 'no namestr size'],
    ['a wrong descriptor', changed(320, 'XXXX'), 'damaged: no DSCRPTR header at byte 320'],
    ['a wrong count', changed(240 + 374, 'x002'), 'no count'],
    ['a count too high', changed(240 + 374, '9999'), 'cut short'],
    ['a count too low', changed(240 + 374, '0001'), 'damaged: no OBS header'],
    ['no variables', changed(240 + 374, '0000'), 'damaged: no OBS header'],
    ['a bad type', changed(namestr, [0, 3]), 'variable 1 is of type 3'],
    ['a bad name', changed(namestr + 8, '  !     '), 'has "  !" for a name'],
    ['a text of no length', changed(namestr + 4, [0, 0]), '(A) is 0 bytes long'],
    ['a number too long', changed(namestr + 144, [0, 9]), '(B) is 9 bytes long'],
    ['a gap', changed(namestr + 140 + 84, [0, 0, 0, 51]), 'B is at byte 51, not 50'],
    ['an overlap', changed(namestr + 140 + 84, [0, 0, 0, 49]), 'B is at byte 49, not 50'],
    ['one name twice', changed(namestr + 140 + 8, 'a'), 'two variables are named A'],
  ])('%s', (_, bytes, reason) => {
    const error = refusalOf(bytes);
    expect(error).toMatchObject({ name: 'SendError', file: 'x.xpt', record: null });
    expect(error.reason).toContain(reason);
  });

  test('a file that ends within a record', () => {
    expect(refusalOf(good.subarray(0, good.length - 1)).reason).toContain('cut short');
  });

  test('a row cut in the middle is refused with its number', () => {
    const bytes = rowsOf([text('A', 150)], ['a'.repeat(150)], ['b'.repeat(150)]);
    expect(refusalOf(bytes.subarray(0, bytes.length - 80)).message).toBe(
      'x.xpt, record 2: cut short: the file ends after 90 of the row’s 150 bytes',
    );
    expect(refusalOf(bytes.subarray(0, bytes.length - 117)).message).toBe(
      'x.xpt, record 2: cut short: the file ends after 53 of the row’s 150 bytes',
    );
  });

  test('no byte of the headers can be changed so that reading fails in another way', () => {
    for (let at = 0; at < good.length; at += 1)
      for (const byte of [0x00, 0x20, 0x39, 0xff]) tryRead(changed(at, [byte]));
  });
});

describe('the real files', () => {
  const files = readdirSync(SEND).flatMap((study) =>
    readdirSync(`${SEND}/${study}`)
      .filter((file) => file.endsWith('.xpt'))
      .map((file) => `${study}/${file}`),
  );

  test('are there', () => expect(files.length).toBeGreaterThan(50));

  test.each(files)('%s cut short is refused, or cut just between two rows', (file) => {
    const bytes = readFileSync(`${SEND}/${file}`);
    const whole = tryRead(bytes);
    if (whole instanceof SendError) throw whole;
    const [dataset] = whole.datasets;
    const rowBytes = dataset?.variables.reduce((sum, { length }) => sum + length, 0) ?? 0;
    const data = 640 + Math.ceil(((dataset?.variables.length ?? 0) * 140) / 80) * 80 + 80;
    const step = Math.max(1, Math.floor(bytes.length / 400));
    const cuts = new Set(Array.from({ length: Math.ceil(bytes.length / step) }, (_, i) => i * step));
    for (let at = 0; at < bytes.length && cuts.size < 1_200; at += 80) cuts.add(at);
    for (const at of cuts) {
      const result = tryRead(bytes.subarray(0, at));
      if (result instanceof SendError) {
        expect(result.message).toMatch(/^x\.xpt(, record \d+)?: (cut short|the file is empty)/);
      } else {
        const rows = result.rows[0] ?? [];
        expect(at % 80).toBe(0);
        expect(at - data - rows.length * rowBytes).toBeGreaterThanOrEqual(0);
        expect(at - data - rows.length * rowBytes).toBeLessThan(80);
        expect(rows).toEqual(whole.rows[0]?.slice(0, rows.length));
      }
    }
  });
});

test('the writer of the tests makes columns from records', () => {
  const bytes = writeTransport([
    memberOf('DM', [
      { A: 'x', B: 1 },
      { B: 2, C: 'long text' },
    ]),
  ]);
  expect(valuesOf(only(bytes))).toEqual([
    { A: 'x', B: 1 },
    { B: 2, C: 'long text' },
  ]);
});
