import { describe, expect, test } from 'vitest';
import { kinds } from '../studies/kinds.ts';
import { AttributeKeys } from './attribute-keys.ts';
import { Blocks } from './blocks.ts';
import { copiedRows } from './copied-rows.ts';
import { JsonRows } from './json-rows.ts';
import type { ExportedKind } from './records.ts';

/** What PostgreSQL sends for rows of these fields: null, text, or bytes. */
function binaryCopy(rows: (string | Buffer | null)[][]): Buffer {
  const int16 = (value: number) => Buffer.from(Int16Array.of(value).buffer).swap16();
  const int32 = (value: number) => Buffer.from(Int32Array.of(value).buffer).swap32();
  const parts = [Buffer.from('PGCOPY\n\xff\r\n\0', 'latin1'), int32(0), int32(0)];
  for (const row of rows) {
    parts.push(int16(row.length));
    for (const field of row) {
      const bytes = field === null ? null : Buffer.from(field);
      parts.push(int32(bytes?.length ?? -1), bytes ?? Buffer.alloc(0));
    }
  }
  return Buffer.concat([...parts, int16(-1)]);
}

async function* inPieces(bytes: Buffer, length: number): AsyncGenerator<Buffer> {
  for (let at = 0; at < bytes.length; at += length) yield bytes.subarray(at, at + length);
}

describe('copied rows', () => {
  const rows = Array.from({ length: 50 }, (_, i) => [`row ${i}`, null, 'x'.repeat(i * 7)]);
  const bytes = binaryCopy(rows);

  test.each([1, 2, 3, 7, 19, 20, 64, 1000, 1_000_000])('are whole, in chunks of %i bytes', async (length) => {
    const found: Buffer[] = [];
    let count = 0;
    for await (const batch of copiedRows(inPieces(bytes, length))) {
      found.push(Buffer.from(batch.bytes.subarray(batch.start, batch.end)));
      count += batch.count;
    }
    expect(count).toBe(50);
    expect(Buffer.concat(found).equals(bytes.subarray(19, -2))).toBe(true);
  });

  test('that break off are an error', async () => {
    const read = async (end: number) => {
      for await (const _ of copiedRows(inPieces(bytes.subarray(0, end), 100)));
    };
    await expect(read(-1)).rejects.toThrow('end before their trailer');
    await expect(read(-2)).rejects.toThrow('end before their trailer');
    await expect(read(500)).rejects.toThrow('end before their trailer');
    await expect(read(0)).rejects.toThrow('end before their trailer');
  });

  test('of a length of many chunks are put together once', async () => {
    const long = binaryCopy([['y'.repeat(8 * 2 ** 20)], ['z']]);
    let count = 0;
    for await (const batch of copiedRows(inPieces(long, 1000))) count += batch.count;
    expect(count).toBe(2);
  });
});

test.each([1, 5, 4096])('attribute keys are all found, in chunks of %i bytes', async (length) => {
  const objects = [
    {},
    { A: 1, B: 'text', C: null, D: true },
    { A: -1.5e-7, C: false, B: '', 'ä "quoted" \\ \n': '{"X":"no key"}' },
    { E: 'ends in \\', '😀': '",":"', A: '\\"' },
    JSON.parse('{"__proto__":"own"}'),
    { '': 0 },
  ];
  const keys = new AttributeKeys();
  const copied = binaryCopy(objects.map((object) => [JSON.stringify(object)]));
  for await (const batch of copiedRows(inPieces(copied, length))) keys.add(batch);
  expect([...keys.found].sort()).toEqual([...new Set(objects.flatMap((object) => Object.keys(object)))].sort());
});

describe('rows as JSON', () => {
  const exported: ExportedKind = {
    kind: kinds.finding,
    name: 'findings',
    columns: [],
    members: [
      { name: 'id', sql: '', type: 'text' },
      {
        group: 'image',
        members: [
          { name: 'a', sql: '', type: 'text' },
          { name: 'b', sql: '', type: 'integer' },
        ],
      },
      'attributes',
      { name: 'version', sql: '', type: 'integer' },
    ],
    managedKeys: [
      { key: 'SUBJID', sql: '' },
      { key: 'FILE NAME', sql: '' },
    ],
  };
  const int = (value: number) => Buffer.from(Int32Array.of(value).buffer).swap32();

  async function render(rows: (string | Buffer | null)[][], withScores = false) {
    const blocks = new Blocks();
    const json = new JsonRows(blocks, exported, withScores);
    for await (const batch of copiedRows(inPieces(binaryCopy(rows), 50_000))) json.add(batch);
    const text = Buffer.concat([...blocks.takeFull(), blocks.rest()]).toString();
    return { values: JSON.parse(`[${text}]`), text, scores: json.scores };
  }

  test('hold what the row does: nulls, groups, managed and own attributes', async () => {
    const { values } = await render([
      ['1', 'x', int(5), 'S1', 'F1', '{"K":1}', int(1)],
      ['2', null, null, 'S1', null, '{}', int(12)],
      [null, 'x', null, null, 'F1', '{"K":"v"}', int(2_000_000_000)],
      ['4', 'x', int(-7), null, null, '{"K":null}', null],
      ['5', 'x', int(0), null, null, '{}', int(9)],
    ]);
    expect(values).toEqual([
      { id: '1', image: { a: 'x', b: 5 }, attributes: { SUBJID: 'S1', 'FILE NAME': 'F1', K: 1 }, version: 1 },
      { id: '2', image: null, attributes: { SUBJID: 'S1' }, version: 12 },
      { id: null, image: { a: 'x', b: null }, attributes: { 'FILE NAME': 'F1', K: 'v' }, version: 2_000_000_000 },
      { id: '4', image: { a: 'x', b: -7 }, attributes: { K: null }, version: null },
      { id: '5', image: { a: 'x', b: 0 }, attributes: {}, version: 9 },
    ]);
  });

  test('hold any text', async () => {
    const every = Array.from({ length: 0x100 }, (_, code) => String.fromCharCode(code)).join('');
    const texts = [every, '😀 \u2028 \ufffd', '"\\/', '', '\u0000', 'x'.repeat(70_000), '\u0001'.repeat(400_000)];
    const { values } = await render(texts.map((text) => [text, null, null, text, null, '{}', int(1)]));
    expect(values.map(({ id }: { id: string }) => id)).toEqual(texts);
    expect(values[0].attributes.SUBJID).toBe(every);
  });

  test('hold scores, which are counted, and attributes longer than a block', async () => {
    const long = JSON.stringify({ K: 'y'.repeat(1_000_000) });
    const list = JSON.stringify(Array.from({ length: 30_000 }, (_, i) => ({ scoreId: i })));
    const n = Buffer.alloc(8);
    n.writeBigInt64BE(30_000n);
    const row = ['1', null, null, 'S1', null, long, int(1), list, n];
    const { values, scores } = await render([row, row], true);
    expect(scores).toBe(60_000);
    expect(values[1].scores).toHaveLength(30_000);
    expect(values[1].attributes.K).toHaveLength(1_000_000);
  });
});
