/** Most UTF-16 units that a cell holds (interface.md §8), the `...` of a cut value included (decisions §4). */
export const CELL_UNITS = 32_767;
const SUFFIX = '...';

/** The value as a cell holds it: cut to {@link CELL_UNITS} where it is longer, never inside a surrogate pair. */
export function truncate(value: string): string {
  if (value.length <= CELL_UNITS) return value;
  const end = CELL_UNITS - SUFFIX.length;
  const last = value.charCodeAt(end - 1);
  const next = value.charCodeAt(end);
  const splitsPair = last >= 0xd800 && last < 0xdc00 && next >= 0xdc00 && next < 0xe000;
  return value.slice(0, splitsPair ? end - 1 : end) + SUFFIX;
}

/** What XML 1.0 cannot hold; and the carriage return, which its parsers turn into a line feed. */
const FORBIDDEN = String.raw`[\0-\x08\x0b-\x1f\ufffe\uffff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]`;
/** An underscore that would be read as the start of an escape; the escape of a forbidden character starts with one too. */
const LITERAL = `_(?=x[0-9a-fA-F]{4}(?:_|${FORBIDDEN}))`;
const ESCAPED = new RegExp(`${FORBIDDEN}|${LITERAL}`, 'g');
const MARKUP = /[&<>"]/g;
const ENTITIES: Readonly<Record<string, string>> = { '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' };

const hex = (unit: number) => unit.toString(16).toUpperCase().padStart(4, '0');

/** The value as XML text or attribute value, what XML cannot hold as `_xHHHH_` (ECMA-376 part 1 §22.9.2.19, ST_Xstring). */
export function xmlText(value: string): string {
  return value
    .replace(ESCAPED, (unit) => `_x${hex(unit.charCodeAt(0))}_`)
    .replace(MARKUP, (character) => ENTITIES[character] as string);
}
