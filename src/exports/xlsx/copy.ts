import { Clock, ISO_BYTES, int32, integer } from './binary.ts';
import type { CellWriter } from './cells.ts';
import type { RowSource } from './rows.ts';

/**
 * One field of the copied rows. `column` is 0-based; a null is an empty cell.
 * - `text`: text, or another type whose binary form is its text; `also`: more columns that show it
 * - `integer`: smallint, integer or bigint
 * - `double`: double precision
 * - `boolean`: boolean
 * - `timestamp`: timestamptz, rendered as the interface does: ISO 8601, UTC, milliseconds
 * - `json`: json or jsonb that holds a string, number, boolean or null
 * - `attributes`: json or jsonb that holds an object of such values, each with a column of its own
 */
export type CopyField =
  | { kind: 'text'; column: number; also?: readonly number[] }
  | { kind: 'integer' | 'double' | 'boolean' | 'timestamp' | 'json'; column: number }
  | {
      kind: 'attributes';
      columns: ReadonlyMap<string, number>;
      /** Column of the keys that are not in `columns`, as one JSON object; null: there are no such keys. */
      rest: number | null;
    };

/** What a cell of the row in hand is made of; 0 is an empty one. */
const TEXT = 1;
/** A JSON string that holds a backslash. */
const ESCAPED = 2;
const LITERAL = 3;
const TRUE = 4;
const FALSE = 5;
const INTEGER = 6;
const DOUBLE = 7;
const TIMESTAMP = 8;
const REST = 9;

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const SPACE = 0x20;
const COMMA = 0x2c;
const COLON = 0x3a;
const BRACE = 0x7b;
const BRACE_END = 0x7d;
/** `t`, `f`, `n`: how true, false and null begin. */
const T = 0x74;
const F = 0x66;
const N = 0x6e;

/** `PGCOPY\n\377\r\n\0`, flags, length of the extension: how binary COPY begins. */
const SIGNATURE = Buffer.from('PGCOPY\n\xff\r\n\0', 'latin1');
const HEADER_BYTES = SIGNATURE.length + 8;
/** More than the longest number that JSON.stringify writes (25); longer ones are read and written anew. */
const LITERAL_BYTES = 32;
/** An attribute key as it stands in the JSON, with the one that followed it last: rows of a study look alike. */
interface Key {
  bytes: Uint8Array;
  column: number;
  next: Key | null;
}

/**
 * Rows as PostgreSQL's `COPY (SELECT …) TO STDOUT (FORMAT binary)` sends them. The bytes of a value go from the
 * message into the sheet without ever becoming a JavaScript value.
 */
export class CopyRows implements RowSource {
  readonly #iterator: AsyncIterator<Buffer>;
  readonly #fields: readonly CopyField[];
  readonly #kinds: Uint8Array;
  readonly #starts: Int32Array;
  readonly #ends: Int32Array;
  /** Columns of the row in hand that have a cell, in the order of their arrival. */
  readonly #found: Int32Array;
  readonly #keys = new Map<string, Key>();
  readonly #first: Key = { bytes: new Uint8Array(), column: -1, next: null };
  readonly #clock = new Clock();
  #rest: string[] = [];
  #count = 0;
  #ascending = true;
  #decoded = false;
  #bytes: Buffer = Buffer.alloc(0);
  #at = 0;
  /** Bytes that the next row has at least: a long one is put together once, not with every piece that comes. */
  #needed = 0;
  #started = false;
  #ended = false;

  /** @param columns Number of columns of the sheet. */
  constructor(chunks: AsyncIterable<Buffer>, fields: readonly CopyField[], columns: number) {
    this.#iterator = chunks[Symbol.asyncIterator]();
    this.#fields = fields;
    this.#kinds = new Uint8Array(columns);
    this.#starts = new Int32Array(columns);
    this.#ends = new Int32Array(columns);
    this.#found = new Int32Array(columns);
  }

  has(): boolean {
    this.#decoded ||= this.#decode();
    return this.#decoded;
  }

  async fill(): Promise<boolean> {
    let held = this.#bytes.length - this.#at;
    const pieces = held === 0 ? [] : [this.#bytes.subarray(this.#at)];
    do {
      const { done, value } = await this.#iterator.next();
      if (done) {
        if (!this.#ended) throw new Error('The copied rows end before their trailer');
        return false;
      }
      pieces.push(value);
      held += value.length;
    } while (held < this.#needed);
    this.#bytes = pieces.length === 1 ? (pieces[0] as Buffer) : Buffer.concat(pieces);
    this.#at = 0;
    return true;
  }

  render(cells: CellWriter): void {
    // To try every column is faster than to sort, unless most of them are empty.
    if (!this.#ascending && this.#kinds.length <= 4 * this.#count) {
      for (let column = 0; column < this.#kinds.length; column++) this.#cell(cells, column);
    } else {
      if (!this.#ascending) this.#found.subarray(0, this.#count).sort();
      for (let i = 0; i < this.#count; i++) this.#cell(cells, this.#found[i] as number);
    }
    this.#clear();
    this.#decoded = false;
  }

  async close(): Promise<void> {
    await this.#iterator.return?.();
  }

  #clear(): void {
    for (let i = 0; i < this.#count; i++) this.#kinds[this.#found[i] as number] = 0;
    this.#count = 0;
    this.#ascending = true;
    this.#rest = [];
  }

  /** Finds the cells of the next row; false where the row is not there whole. */
  #decode(): boolean {
    const bytes = this.#bytes;
    let at = this.#at;
    if (!this.#started) {
      if (bytes.length < HEADER_BYTES) return false;
      if (!bytes.subarray(0, SIGNATURE.length).equals(SIGNATURE)) throw new Error('The rows are no binary COPY');
      at += HEADER_BYTES + bytes.readInt32BE(HEADER_BYTES - 4);
      this.#started = true;
      this.#at = at;
    }
    if (this.#ended || at + 2 > bytes.length) return false;
    const fields = bytes.readInt16BE(at);
    at += 2;
    if (fields === -1) {
      this.#ended = true;
      return false;
    }
    if (fields !== this.#fields.length) throw new Error(`${fields} fields copied, ${this.#fields.length} expected`);
    for (let i = 0; i < fields; i++) {
      if (at + 4 > bytes.length) return this.#incomplete(at + 4);
      const length = int32(bytes, at);
      at += 4;
      if (length === -1) continue;
      const end = at + length;
      if (end > bytes.length) return this.#incomplete(end);
      this.#field(this.#fields[i] as CopyField, at, end);
      at = end;
    }
    this.#at = at;
    this.#needed = 0;
    return true;
  }

  #incomplete(end: number): false {
    this.#clear();
    this.#needed = end - this.#at;
    return false;
  }

  #field(field: CopyField, start: number, end: number): void {
    switch (field.kind) {
      case 'text':
        this.#put(field.column, TEXT, start, end);
        if (field.also) for (const column of field.also) this.#put(column, TEXT, start, end);
        break;
      case 'integer':
        this.#put(field.column, INTEGER, start, end);
        break;
      case 'double':
        this.#put(field.column, DOUBLE, start, end);
        break;
      case 'timestamp':
        this.#put(field.column, TIMESTAMP, start, end);
        break;
      case 'boolean':
        this.#put(field.column, this.#bytes[start] === 1 ? TRUE : FALSE, start, end);
        break;
      case 'json':
        this.#scalar(field.column, this.#skip(start), end);
        break;
      case 'attributes':
        this.#attributes(field, this.#skip(start), end);
        break;
    }
  }

  /** Past white space, and past the version byte that jsonb has before its text. */
  #skip(at: number): number {
    while ((this.#bytes[at] as number) <= SPACE) at++;
    return at;
  }

  #put(column: number, kind: number, start: number, end: number): void {
    if (this.#kinds[column] === 0) {
      if (this.#count > 0 && (this.#found[this.#count - 1] as number) > column) this.#ascending = false;
      this.#found[this.#count++] = column;
    }
    this.#kinds[column] = kind;
    this.#starts[column] = start;
    this.#ends[column] = end;
  }

  #attributes(field: CopyField & { kind: 'attributes' }, start: number, end: number): void {
    const bytes = this.#bytes;
    if (bytes[start] !== BRACE) throw new Error('Attributes are no JSON object');
    let key = this.#first;
    let at = start + 1;
    for (;;) {
      while (bytes[at] === COMMA || (bytes[at] as number) <= SPACE) at++;
      if (bytes[at] === BRACE_END && at < end) break;
      if (bytes[at] !== QUOTE || at >= end) throw new Error('Attributes are no JSON object');
      const begin = at++;
      const guess = key.next;
      if (guess !== null && matches(bytes, at, guess.bytes)) {
        key = guess;
        at += guess.bytes.length + 1;
      } else {
        while (at < end && bytes[at] !== QUOTE) at += bytes[at] === BACKSLASH ? 2 : 1;
        key.next = this.#key(field, begin, ++at);
        key = key.next;
      }
      while (bytes[at] === COLON || (bytes[at] as number) <= SPACE) at++;
      at = this.#scalar(key.column, at, end);
      if (key.column === -1) this.#rest.push(bytes.toString('utf8', begin, at));
    }
    if (this.#rest.length > 0) this.#put(field.rest as number, REST, start, end);
  }

  /** The key that stands, with its quotes, from `start` up to `end`. */
  #key(field: CopyField & { kind: 'attributes' }, start: number, end: number): Key {
    const raw = this.#bytes.toString('latin1', start, end);
    const known = this.#keys.get(raw);
    if (known) return known;
    const name: string = JSON.parse(this.#bytes.toString('utf8', start, end));
    const column = field.columns.get(name) ?? -1;
    if (column === -1 && field.rest === null) throw new Error(`The attribute ${JSON.stringify(name)} has no column`);
    const key: Key = { bytes: Uint8Array.from(this.#bytes.subarray(start + 1, end - 1)), column, next: null };
    if (column !== -1) this.#keys.set(raw, key);
    return key;
  }

  /** Notes the JSON value that starts at `start` as the cell of the column (−1: of none); returns where it ends. */
  #scalar(column: number, start: number, end: number): number {
    const bytes = this.#bytes;
    let at = start + 1;
    const first = bytes[start];
    if (first === QUOTE) {
      let kind = TEXT;
      while (at < end && bytes[at] !== QUOTE) {
        if (bytes[at] === BACKSLASH) {
          kind = ESCAPED;
          at++;
        }
        at++;
      }
      if (column !== -1) this.#put(column, kind, start + 1, at);
      return at + 1;
    }
    if (first === BRACE || first === 0x5b) throw new Error('A cell cannot hold a JSON object or array');
    while (at < end && bytes[at] !== COMMA && bytes[at] !== BRACE_END && (bytes[at] as number) > SPACE) at++;
    if (first !== N && column !== -1) {
      this.#put(column, first === T ? TRUE : first === F ? FALSE : LITERAL, start, at);
    }
    return at;
  }

  #cell(cells: CellWriter, column: number): void {
    const bytes = this.#bytes;
    const start = this.#starts[column] as number;
    const end = this.#ends[column] as number;
    switch (this.#kinds[column]) {
      case TEXT:
        cells.utf8(column, bytes, start, end);
        break;
      case ESCAPED:
        cells.text(column, JSON.parse(bytes.toString('utf8', start - 1, end + 1)));
        break;
      case LITERAL:
        if (end - start <= LITERAL_BYTES) cells.literal(column, bytes, start, end);
        else cells.number(column, Number(bytes.toString('latin1', start, end)));
        break;
      case TRUE:
        cells.boolean(column, true);
        break;
      case FALSE:
        cells.boolean(column, false);
        break;
      case INTEGER:
        cells.number(column, integer(bytes, start, end));
        break;
      case DOUBLE:
        cells.number(column, bytes.readDoubleBE(start));
        break;
      case TIMESTAMP:
        cells.utf8(column, this.#clock.iso(integer(bytes, start, end)), 0, ISO_BYTES);
        break;
      case REST:
        cells.text(column, `{${this.#rest.join(',')}}`);
        break;
    }
  }
}

function matches(bytes: Uint8Array, at: number, key: Uint8Array): boolean {
  for (let i = 0; i < key.length; i++) if (bytes[at + i] !== key[i]) return false;
  return bytes[at + key.length] === QUOTE;
}
