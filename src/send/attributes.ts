import { SendError } from './error.ts';
import type { Row } from './xport.ts';

/** As the store takes them (decisions §1); made without a prototype, so that every key is an ordinary one. */
export type Attributes = Record<string, string | number | boolean | null>;

/** Limits of an attribute map (decisions §1). */
const MAX_KEYS = 1_000;
const MAX_KEY_LENGTH = 255;

/** What stands for a text that a record must have and the study leaves blank. */
export const BLANK = '(blank)';

/** The refusal of a row; to be thrown. */
export function refusal(row: Row, reason: string): SendError {
  return new SendError(row.file, row.number, reason);
}

/** A variable as text, however it is stored; undefined where blank. */
export function textOf(row: Row, variable: string): string | undefined {
  const value = row.values.get(variable);
  return value === undefined ? undefined : String(value);
}

export function requiredText(row: Row, variable: string): string {
  const text = textOf(row, variable);
  if (text === undefined) throw refusal(row, `${variable} is blank`);
  return text;
}

export function newAttributes(): Attributes {
  return Object.create(null);
}

/** Every non-blank variable of the row but those that have a member of their own in the record. */
export function attributesOf(row: Row, members: readonly string[] = []): Attributes {
  const attributes = newAttributes();
  for (const [name, value] of row.values) if (!members.includes(name)) attributes[name] = value;
  checkCount(row, attributes);
  return attributes;
}

/** Sets a key; where it is taken, the values stand side by side, parted by `; `, in the order of the file. */
export function append(row: Row, attributes: Attributes, key: string, value: string | number): void {
  const before = attributes[key];
  if (before !== undefined) {
    attributes[key] = `${before}; ${value}`;
    return;
  }
  if ([...key].length > MAX_KEY_LENGTH) throw refusal(row, `a name of more than ${MAX_KEY_LENGTH} characters: ${key}`);
  attributes[key] = value;
  checkCount(row, attributes);
}

function checkCount(row: Row, attributes: Attributes): void {
  if (Object.keys(attributes).length > MAX_KEYS) throw refusal(row, `the record has more than ${MAX_KEYS} attributes`);
}

/** The first `max` characters (code points) of a text. */
export function cut(text: string, max: number): string {
  return text.length <= max ? text : [...text].slice(0, max).join('');
}

/** A text for a member that holds `max` characters: one that is longer is cut, and stands whole among the attributes. */
export function fitted(attributes: Attributes, variable: string, text: string, max: number): string {
  const short = cut(text, max);
  if (short !== text) attributes[variable] = text;
  return short;
}

/** A text that tells records apart, so that it cannot be cut. */
export function checkName(row: Row, variable: string, text: string, max: number): string {
  if (cut(text, max) !== text) throw refusal(row, `${variable} has more than ${max} characters`);
  return text;
}
