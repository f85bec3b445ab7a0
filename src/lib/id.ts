import { randomBytes } from 'node:crypto';

const ALPHABET = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';
/** 8 digits of base 62 hold milliseconds until the year 8888; in the byte order of the alphabet they sort by time. */
const TIME_DIGITS = 8;
/** 3 digits count the ids of one millisecond (238,328 of them), so that ids of one process sort in creation order. */
const COUNTER_DIGITS = 3;
/** 13 digits of randomness are 77 bits: more than the 64 that decisions §1 asks for. */
const RANDOM_DIGITS = 13;
const COUNTER_END = 62 ** COUNTER_DIGITS;

/** The form of every identifier: 24 case-sensitive letters and digits (interface.md §1). */
export const ID_PATTERN = '^[0-9A-Za-z]{24}$';
const ID = new RegExp(ID_PATTERN);

let lastMs = 0;
let counter = 0;
/** Random bytes are drawn in blocks, as one draw an id would cost more than the rest of the id. */
let pool = Buffer.alloc(0);
let used = 0;

function base62(value: number, digits: number): string {
  let text = '';
  let rest = value;
  for (let i = 0; i < digits; i++) {
    text = ALPHABET[rest % 62] + text;
    rest = Math.floor(rest / 62);
  }
  return text;
}

function randomDigit(): string {
  for (;;) {
    if (used === pool.length) {
      pool = randomBytes(4096);
      used = 0;
    }
    // 248 = 4 × 62: larger bytes are drawn again, as they would favour the first letters.
    const byte = pool[used++] as number;
    if (byte < 248) return ALPHABET[byte % 62] as string;
  }
}

/** A new identifier: 24 characters, sortable by creation time (time first), unguessable (decisions §1). */
export function newId(): string {
  const now = Date.now();
  if (now > lastMs) {
    lastMs = now;
    counter = 0;
  } else if (++counter === COUNTER_END) {
    lastMs += 1;
    counter = 0;
  }
  let id = base62(lastMs, TIME_DIGITS) + base62(counter, COUNTER_DIGITS);
  for (let i = 0; i < RANDOM_DIGITS; i++) id += randomDigit();
  return id;
}

/** Whether the text has the form of an identifier. */
export function isId(text: string): boolean {
  return ID.test(text);
}
