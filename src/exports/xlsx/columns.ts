/** Most columns that a sheet holds: XFD is the last (ECMA-376; Excel's own limit). */
export const MAX_COLUMNS = 16_384;

/** Where the cells of a column come from. */
export type ColumnSource =
  | { kind: 'fixed'; name: string }
  | { kind: 'attribute'; key: string }
  /** One JSON object of the attributes that found no column of their own; null where a record has none of them. */
  | { kind: 'rest'; keys: readonly string[] };

export interface PlannedColumn {
  /** Text of the header cell, unique in the sheet. */
  header: string;
  source: ColumnSource;
}

/** Orders text by code point. UTF-16 order differs where surrogates (U+10000 and above) meet U+E000–U+FFFF. */
export function byCodePoint(a: string, b: string): number {
  const length = Math.min(a.length, b.length);
  for (let i = 0; i < length; i++) {
    const x = a.charCodeAt(i);
    const y = b.charCodeAt(i);
    if (x !== y) return rank(x) - rank(y);
  }
  return a.length - b.length;
}

/** Puts surrogates after every other unit, which makes unit order code point order. */
const rank = (unit: number) => (unit >= 0xd800 && unit < 0xe000 ? unit + 0x10000 : unit);

/**
 * Lays out a sheet (decisions §4): the fixed columns, then one column for each attribute key, sorted by code point.
 * A key whose name is taken is headed `attributes.KEY`. Where the keys do not fit, the last of them share the sheet's
 * last column, `attributes`, as one JSON object a record.
 * @param limit Most columns of the sheet; must exceed the number of fixed ones.
 */
export function planColumns(fixed: readonly string[], keys: Iterable<string>, limit = MAX_COLUMNS): PlannedColumn[] {
  const sorted = [...new Set(keys)].sort(byCodePoint);
  const fits = fixed.length + sorted.length <= limit;
  const own = fits ? sorted : sorted.slice(0, limit - fixed.length - 1);
  const taken = new Set(fits ? fixed : [...fixed, 'attributes']);
  const clashes = own.filter((key) => taken.has(key));
  const headers = new Map<string, string>();
  // What clashes with a fixed column goes first: besides the key `name`, a key `attributes.name` is headed otherwise.
  for (const key of new Set([...clashes, ...own])) {
    let header = key;
    while (taken.has(header)) header = `attributes.${header}`;
    taken.add(header);
    headers.set(key, header);
  }
  return [
    ...fixed.map((name): PlannedColumn => ({ header: name, source: { kind: 'fixed', name } })),
    ...own.map((key): PlannedColumn => ({ header: headers.get(key) ?? key, source: { kind: 'attribute', key } })),
    ...(fits ? [] : [{ header: 'attributes', source: { kind: 'rest' as const, keys: sorted.slice(own.length) } }]),
  ];
}

/** Letters of a column, 0-based: 0 is `A`, 26 is `AA`, 16,383 is `XFD`. */
export function columnLetters(column: number): string {
  const letter = String.fromCharCode(65 + (column % 26));
  return column < 26 ? letter : columnLetters(Math.floor(column / 26) - 1) + letter;
}
