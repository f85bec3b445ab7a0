import { describe, expect, test } from 'vitest';
import { byCodePoint, columnLetters, MAX_COLUMNS, planColumns } from './columns.ts';

const headers = (fixed: string[], keys: string[], limit?: number) =>
  planColumns(fixed, keys, limit).map(({ header }) => header);

describe('the columns of a sheet', () => {
  test('are the fixed ones in their order, then the keys sorted by code point', () => {
    expect(headers(['name', 'id'], ['b', 'B', 'a10', 'a9', '', 'ä'])).toEqual([
      'name',
      'id',
      '',
      'B',
      'a10',
      'a9',
      'b',
      'ä',
    ]);
    // U+FFFD is before U+1F600, though the first unit of the latter is smaller.
    expect(headers([], ['😀', '\ufffd', '\ud7ff'])).toEqual(['\ud7ff', '\ufffd', '😀']);
    expect(['ab', 'a', '😀', '\ue000', ''].sort(byCodePoint)).toEqual(['', 'a', 'ab', '\ue000', '😀']);
  });

  test('name each key once', () => {
    expect(headers(['id'], ['a', 'a'])).toEqual(['id', 'a']);
  });

  test('a key with the name of a fixed column is headed attributes.KEY and sorted by the key', () => {
    expect(planColumns(['id', 'name'], ['a', 'name', 'z'])).toEqual([
      { header: 'id', source: { kind: 'fixed', name: 'id' } },
      { header: 'name', source: { kind: 'fixed', name: 'name' } },
      { header: 'a', source: { kind: 'attribute', key: 'a' } },
      { header: 'attributes.name', source: { kind: 'attribute', key: 'name' } },
      { header: 'z', source: { kind: 'attribute', key: 'z' } },
    ]);
  });

  test('no two share a header', () => {
    expect(planColumns(['name'], ['attributes.name', 'name'])).toEqual([
      { header: 'name', source: { kind: 'fixed', name: 'name' } },
      { header: 'attributes.attributes.name', source: { kind: 'attribute', key: 'attributes.name' } },
      { header: 'attributes.name', source: { kind: 'attribute', key: 'name' } },
    ]);
  });

  test('with `__proto__` and `constructor` for keys are columns like any other', () => {
    expect(headers(['id'], ['__proto__', 'constructor'])).toEqual(['id', '__proto__', 'constructor']);
  });

  test('fit Excel: the surplus keys share a last column, attributes', () => {
    expect(planColumns(['id'], ['d', 'c', 'b', 'a'], 4).slice(1)).toEqual([
      { header: 'a', source: { kind: 'attribute', key: 'a' } },
      { header: 'b', source: { kind: 'attribute', key: 'b' } },
      { header: 'attributes', source: { kind: 'rest', keys: ['c', 'd'] } },
    ]);
    expect(headers(['id'], ['c', 'b', 'a'], 4)).toEqual(['id', 'a', 'b', 'c']);
    const keys = Array.from({ length: 20_000 }, (_, i) => `K${i}`);
    const planned = planColumns(['id'], keys);
    expect(planned).toHaveLength(MAX_COLUMNS);
    const last = planned.at(-1)?.source;
    expect(last?.kind === 'rest' && last.keys.length).toBe(20_000 - (MAX_COLUMNS - 2));
  });

  test('a key named attributes gives way to the column of the surplus', () => {
    expect(headers(['id'], ['attributes', 'b', 'c', 'd'], 4)).toEqual([
      'id',
      'attributes.attributes',
      'b',
      'attributes',
    ]);
  });
});

test.each([
  [0, 'A'],
  [25, 'Z'],
  [26, 'AA'],
  [701, 'ZZ'],
  [702, 'AAA'],
  [16_383, 'XFD'],
])('column %i is %s', (column, letters) => {
  expect(columnLetters(column)).toBe(letters);
});
