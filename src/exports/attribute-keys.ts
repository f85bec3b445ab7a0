import type { CopiedRows } from './copied-rows.ts';
import { int32 } from './xlsx/binary.ts';

const QUOTE = 0x22;
const COMMA = 0x2c;
const BACKSLASH = 0x5c;
const BRACE_END = 0x7d;
const SPACE = 0x20;
/** Number of fields and length of the only one: what stands before the text of a row. */
const ROW_BYTES = 6;

/** A key as it stands in the text, with the one that followed it last: rows of a study look alike. */
interface Key {
  bytes: Uint8Array;
  next: Key | null;
}

/**
 * Gathers the keys of JSON objects whose values are scalars, from copied rows with one column that is never null. Five
 * times as fast as the database’s own `json_object_keys`.
 */
export class AttributeKeys {
  readonly found = new Set<string>();
  readonly #known = new Map<string, Key>();
  readonly #first: Key = { bytes: new Uint8Array(), next: null };

  add({ bytes, start, end }: CopiedRows): void {
    for (let at = start; at < end; ) {
      const text = at + ROW_BYTES;
      at = text + int32(bytes, at + 2);
      this.#object(bytes, text, at);
    }
  }

  #object(bytes: Buffer, start: number, end: number): void {
    let key = this.#first;
    let at = start + 1;
    for (;;) {
      while (at < end && bytes[at] !== QUOTE && bytes[at] !== BRACE_END) at++;
      if (at >= end || bytes[at] === BRACE_END) return;
      const begin = ++at;
      const guess = key.next;
      if (guess !== null && matches(bytes, at, guess.bytes)) {
        key = guess;
        at += guess.bytes.length;
      } else {
        at = endOfString(bytes, at);
        key.next = this.#key(bytes, begin, at);
        key = key.next;
      }
      at += 2; // the quote and the colon
      while ((bytes[at] as number) <= SPACE) at++;
      if (bytes[at] === QUOTE) at = endOfString(bytes, at + 1) + 1;
      else while (at < end && bytes[at] !== COMMA && bytes[at] !== BRACE_END) at++;
    }
  }

  #key(bytes: Buffer, start: number, end: number): Key {
    const raw = bytes.toString('latin1', start, end);
    let key = this.#known.get(raw);
    if (!key) {
      key = { bytes: Uint8Array.from(bytes.subarray(start, end)), next: null };
      this.#known.set(raw, key);
      this.found.add(JSON.parse(bytes.toString('utf8', start - 1, end + 1)));
    }
    return key;
  }
}

/** Where the quote is that ends the string in which `at` stands. */
function endOfString(bytes: Buffer, at: number): number {
  let i = at;
  while (bytes[i] !== QUOTE) i += bytes[i] === BACKSLASH ? 2 : 1;
  return i;
}

function matches(bytes: Buffer, at: number, key: Uint8Array): boolean {
  for (let i = 0; i < key.length; i++) if (bytes[at + i] !== key[i]) return false;
  return bytes[at + key.length] === QUOTE;
}
