import { columnLetters } from './columns.ts';
import { CELL_UNITS, truncate, xmlText } from './text.ts';

/** One value of a row. Text is never a formula; null leaves the cell empty. */
export type Cell = string | number | boolean | null;

/**
 * Bytes of a chunk. No cell is longer: 32,767 units of at most 7 bytes (`_x0001_`) are 224 KiB. Larger chunks
 * compress no better or faster, smaller ones cost more calls.
 */
const CHUNK_BYTES = 512 * 1024;
/** Most bytes that one UTF-16 unit, or one byte of UTF-8, becomes. */
const UNIT_BYTES = 7;
/** More than the markup around any cell or row. */
const MARKUP_BYTES = 128;

/**
 * A piece of markup that is copied eight bytes at a time, as doubles; the up to seven bytes that this writes too many
 * are overwritten by what comes next. ASCII never makes a NaN, whose bits would not be kept.
 */
interface Piece {
  view: DataView;
  length: number;
}

function piece(text: string): Piece {
  const view = new DataView(new ArrayBuffer(Math.ceil(text.length / 8) * 8));
  for (let i = 0; i < text.length; i++) view.setUint8(i, text.charCodeAt(i));
  return { view, length: text.length };
}

function put(out: DataView, at: number, { view, length }: Piece): number {
  for (let i = 0; i < length; i += 8) out.setFloat64(at + i, view.getFloat64(i, true), true);
  return at + length;
}

const TEXT = piece('" t="inlineStr"><is><t>');
const PRESERVED = piece('" t="inlineStr"><is><t xml:space="preserve">');
const TEXT_END = piece('</t></is></c>');
const NUMBER = piece('"><v>');
const VALUE_END = piece('</v></c>');
const TRUE = piece('" t="b"><v>1</v></c>');
const FALSE = piece('" t="b"><v>0</v></c>');
const BOLD_TEXT = piece('" s="1" t="inlineStr"><is><t xml:space="preserve">');
const ROW = piece('<row r="');
const ROW_OPEN = piece('">');
const ROW_END = piece('</row>');
const AMP = piece('&amp;');
const LT = piece('&lt;');
const GT = piece('&gt;');

const ZERO = 0x30;
const NINE = 0x39;
const UNDERSCORE = 0x5f;
const LOWER_X = 0x78;

/** What a byte of UTF-8 asks for: 0 copy it, 1 an entity, 2 a look at the next byte, 3 the careful way by a string. */
const CARE = new Uint8Array(256);
CARE.fill(3, 0, 0x20);
CARE[0x09] = CARE[0x0a] = 0;
CARE[0x26] = CARE[0x3c] = CARE[0x3e] = 1;
CARE[UNDERSCORE] = 2;
CARE[0xef] = 3; // U+FFFE and U+FFFF start with it

const isSpace = (byte: number | undefined) => byte === 0x20 || byte === 0x09 || byte === 0x0a;

/**
 * Renders the rows of one sheet as XML, byte by byte, which takes half the time of joining strings and encoding them. Full chunks gather in {@link full}; the caller takes them and hands them back by {@link reuse}.
 * Every row and cell carries its reference: the standard lets them out, but not every reader does.
 */
export class CellWriter {
  /** Chunks that are ready, oldest first. */
  readonly full: Buffer[] = [];
  readonly #idle: Buffer[] = [];
  readonly #starts: Piece[] = [];
  #chunk: Buffer = Buffer.allocUnsafeSlow(CHUNK_BYTES);
  #view = new DataView(this.#chunk.buffer);
  #at = 0;
  #row = 0;
  #rowDigits = piece('0');

  /** Rows begun in the sheet. */
  get row(): number {
    return this.#row;
  }

  /** Lets a chunk that came out of {@link full} be filled again. */
  reuse(chunk: Buffer): void {
    this.#idle.push(Buffer.from(chunk.buffer));
  }

  /** Ends the chunk in hand. */
  flush(): void {
    if (this.#at === 0) return;
    this.full.push(this.#chunk.subarray(0, this.#at));
    this.#chunk = this.#idle.pop() ?? Buffer.allocUnsafeSlow(CHUNK_BYTES);
    this.#view = new DataView(this.#chunk.buffer);
    this.#at = 0;
  }

  /** Starts a sheet: rows are counted from 1 again. */
  beginSheet(xml: string): void {
    this.#row = 0;
    this.#rowDigits = piece('0');
    this.markup(xml);
  }

  /** Bytes that are XML already. */
  markup(xml: string): void {
    const bytes = Buffer.from(xml);
    for (let start = 0; start < bytes.length; start += CHUNK_BYTES) {
      const part = bytes.subarray(start, start + CHUNK_BYTES);
      this.#ensure(part.length);
      this.#chunk.set(part, this.#at);
      this.#at += part.length;
    }
  }

  beginRow(): void {
    this.#ensure(MARKUP_BYTES);
    this.#countRow();
    const view = this.#view;
    this.#at = put(view, put(view, put(view, this.#at, ROW), this.#rowDigits), ROW_OPEN);
  }

  endRow(): void {
    this.#ensure(MARKUP_BYTES);
    this.#at = put(this.#view, this.#at, ROW_END);
  }

  /** A cell of the header row. */
  header(column: number, value: string): void {
    this.#escaped(column, value, BOLD_TEXT);
  }

  cell(column: number, value: Cell): void {
    if (typeof value === 'string') this.text(column, value);
    else if (typeof value === 'number') this.number(column, value);
    else if (typeof value === 'boolean') this.boolean(column, value);
  }

  text(column: number, value: string): void {
    const length = value.length;
    if (length > CELL_UNITS) {
      this.#escaped(column, value);
      return;
    }
    this.#ensure(MARKUP_BYTES + UNIT_BYTES * length);
    const start = this.#at;
    const preserved = isSpace(value.charCodeAt(0)) || isSpace(value.charCodeAt(length - 1));
    const out = this.#chunk;
    let at = this.#open(column, preserved ? PRESERVED : TEXT);
    for (let i = 0; i < length; i++) {
      const unit = value.charCodeAt(i);
      if (unit >= 0x80 || CARE[unit] !== 0) {
        this.#at = start;
        this.#escaped(column, value);
        return;
      }
      out[at++] = unit;
    }
    this.#at = put(this.#view, at, TEXT_END);
  }

  /** Text that stands as UTF-8 in `bytes` from `start` up to `end`. */
  utf8(column: number, bytes: Buffer, start: number, end: number): void {
    // Within this many bytes there cannot be too many UTF-16 units.
    if (end - start > CELL_UNITS) {
      this.#escaped(column, bytes.toString('utf8', start, end));
      return;
    }
    this.#ensure(MARKUP_BYTES + UNIT_BYTES * (end - start));
    const begin = this.#at;
    const preserved = end > start && (isSpace(bytes[start]) || isSpace(bytes[end - 1]));
    const out = this.#chunk;
    let at = this.#open(column, preserved ? PRESERVED : TEXT);
    for (let i = start; i < end; i++) {
      const byte = bytes[i] as number;
      const care = CARE[byte] as number;
      if (care === 0) out[at++] = byte;
      else if (care === 1) at = put(this.#view, at, byte === 0x26 ? AMP : byte === 0x3c ? LT : GT);
      else if (care === 2 && bytes[i + 1] !== LOWER_X) out[at++] = byte;
      else {
        this.#at = begin;
        this.#escaped(column, bytes.toString('utf8', start, end));
        return;
      }
    }
    this.#at = put(this.#view, at, TEXT_END);
  }

  /** A number; one that is none (NaN, Infinity) is told as text. */
  number(column: number, value: number): void {
    const digits = String(value);
    if (!Number.isFinite(value)) {
      this.text(column, digits);
      return;
    }
    this.#ensure(MARKUP_BYTES);
    const out = this.#chunk;
    let at = this.#open(column, NUMBER);
    for (let i = 0; i < digits.length; i++) out[at++] = digits.charCodeAt(i);
    this.#at = put(this.#view, at, VALUE_END);
  }

  /** A number as it stands in `bytes`: a JSON number of at most 32 characters. */
  literal(column: number, bytes: Uint8Array, start: number, end: number): void {
    this.#ensure(MARKUP_BYTES);
    const out = this.#chunk;
    let at = this.#open(column, NUMBER);
    for (let i = start; i < end; i++) out[at++] = bytes[i] as number;
    this.#at = put(this.#view, at, VALUE_END);
  }

  boolean(column: number, value: boolean): void {
    this.#ensure(MARKUP_BYTES);
    this.#at = this.#open(column, value ? TRUE : FALSE);
  }

  #countRow(): void {
    this.#row++;
    // Counts on in the digits themselves, as a string and a piece for each row would take longer than its markup.
    const { view, length } = this.#rowDigits;
    let i = length - 1;
    while (i >= 0 && view.getUint8(i) === NINE) view.setUint8(i--, ZERO);
    if (i < 0) this.#rowDigits = piece(String(this.#row));
    else view.setUint8(i, view.getUint8(i) + 1);
  }

  #open(column: number, tail: Piece): number {
    const view = this.#view;
    const start = this.#starts[column] ?? this.#start(column);
    return put(view, put(view, put(view, this.#at, start), this.#rowDigits), tail);
  }

  #start(column: number): Piece {
    const start = piece(`<c r="${columnLetters(column)}`);
    this.#starts[column] = start;
    return start;
  }

  /** The careful way: any text, cut and escaped. */
  #escaped(column: number, value: string, tail = PRESERVED): void {
    const xml = xmlText(truncate(value));
    this.#ensure(MARKUP_BYTES + Buffer.byteLength(xml));
    const at = this.#open(column, tail);
    this.#at = put(this.#view, at + this.#chunk.write(xml, at), TEXT_END);
  }

  #ensure(bytes: number): void {
    if (this.#at + bytes > CHUNK_BYTES) this.flush();
  }
}
