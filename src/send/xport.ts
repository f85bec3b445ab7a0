import { SendError } from './error.ts';
import { decodeNumber, decodeText, isBlank } from './xport-values.ts';

/** One variable (column) of a dataset. */
export interface Variable {
  /** In capitals: SAS names ignore case. */
  name: string;
  label: string;
  type: 'number' | 'text';
  /** Bytes in a row: 2 to 8 of a number, 1 to 65,535 of a text. */
  length: number;
  /** Offset in a row, in bytes. */
  position: number;
}

/** One row of a dataset. Blank texts and missing numbers have no entry in `values`. */
export interface Row {
  file: string;
  /** 1-based. */
  number: number;
  values: ReadonlyMap<string, string | number>;
}

/** One member of a transport file. */
export interface Dataset {
  name: string;
  label: string;
  variables: Variable[];
  rowCount: number;
  /** Decodes row by row; throws {@link SendError} at a value that cannot be decoded. */
  rows(): Generator<Row>;
}

/** Everything in a transport file comes in records of so many bytes. */
const RECORD_BYTES = 80;

/**
 * Reads the structure of a SAS transport file, version 5 (SAS TS-140); rows are decoded when asked for.
 * The format counts no rows: a file that was cut exactly between two rows cannot be told from a shorter one.
 */
export function readTransport(file: string, bytes: Buffer): Dataset[] {
  if (bytes.length === 0) throw new SendError(file, null, 'the file is empty');
  expectHeader(file, bytes, 0, bytes.length, 'LIBRARY');
  // The library header is followed by two records with SAS version and dates, which say nothing about the data.
  const starts = memberStarts(bytes);
  const first = 3 * RECORD_BYTES;
  if (starts[0] !== first) {
    expectHeader(file, bytes, first, bytes.length, 'MEMBER');
    throw new SendError(file, null, 'no dataset follows the library header');
  }
  const datasets = starts.map((start, i) => readMember(file, bytes, start, starts[i + 1] ?? bytes.length));
  // Looked at last: where a row was cut, the message above names it.
  if (bytes.length % RECORD_BYTES !== 0) {
    throw new SendError(file, null, `cut short: ${bytes.length} bytes are not a whole number of 80-byte records`);
  }
  return datasets;
}

function headerOf(name: string): string {
  return `HEADER RECORD*******${name.padEnd(8)}HEADER RECORD!!!!!!!`;
}

function expectHeader(file: string, bytes: Buffer, offset: number, end: number, name: string): void {
  const header = headerOf(name);
  const found = bytes.toString('latin1', offset, Math.min(offset + header.length, end));
  if (found !== header) throw new SendError(file, null, headerFault(found, header, offset, name));
  if (offset + RECORD_BYTES > end) throw new SendError(file, null, `cut short: the file ends in the ${name} header`);
}

function headerFault(found: string, header: string, offset: number, name: string): string {
  if (header.startsWith(found)) return `cut short: no ${name} header at byte ${offset}`;
  if (offset > 0) return `damaged: no ${name} header at byte ${offset}`;
  if (found.startsWith('HEADER RECORD*******LIBV8')) {
    return 'a SAS transport file of version 8; SEND asks for version 5';
  }
  if (found.startsWith('**COMPRESSED**')) return 'a SAS file made by PROC CPORT; SEND asks for transport version 5';
  return 'not a SAS transport file (version 5)';
}

/** Where members start: their header, at the start of a record. */
function memberStarts(bytes: Buffer): number[] {
  const header = Buffer.from(headerOf('MEMBER'), 'latin1');
  const starts: number[] = [];
  for (let at = bytes.indexOf(header); at >= 0; at = bytes.indexOf(header, at + 1)) {
    if (at % RECORD_BYTES === 0) starts.push(at);
  }
  return starts;
}

function readMember(file: string, bytes: Buffer, start: number, end: number): Dataset {
  const expect = (offset: number, name: string) => expectHeader(file, bytes, offset, end, name);
  expect(start, 'MEMBER');
  expect(start + 80, 'DSCRPTR');
  expect(start + 320, 'NAMESTR');
  // 140 bytes a variable; 136 where VAX/VMS wrote the file.
  const size = Number(bytes.toString('latin1', start + 74, start + 78));
  if (size !== 140 && size !== 136) throw new SendError(file, null, 'damaged: the MEMBER header has no namestr size');
  const count = bytes.toString('latin1', start + 374, start + 378);
  if (!/^ *[0-9]+$/.test(count)) throw new SendError(file, null, 'damaged: the NAMESTR header has no count');
  const namestrs = start + 400;
  const observations = namestrs + roundUp(Number(count) * size);
  if (observations > end)
    throw new SendError(file, null, 'cut short: the file ends in the description of its variables');
  expect(observations, 'OBS');
  const variables = Array.from({ length: Number(count) }, (_, i) =>
    readVariable(file, bytes, namestrs + i * size, i + 1),
  );
  const rowBytes = checkLayout(file, variables);
  const data = observations + RECORD_BYTES;
  const rowCount = countRows(file, bytes, data, end, rowBytes);
  return {
    name: decodeText(bytes, start + 168, 8).toUpperCase(),
    label: decodeText(bytes, start + 272, 40),
    variables,
    rowCount,
    *rows() {
      for (let i = 0; i < rowCount; i += 1) {
        yield { file, number: i + 1, values: decodeRow(file, i + 1, bytes, data + i * rowBytes, variables) };
      }
    },
  };
}

function roundUp(length: number): number {
  return Math.ceil(length / RECORD_BYTES) * RECORD_BYTES;
}

/** One NAMESTR: type at 0, length at 4, name at 8, label at 16, position at 84; the rest is about display. */
function readVariable(file: string, bytes: Buffer, at: number, ordinal: number): Variable {
  const fault = (reason: string) => new SendError(file, null, `damaged: variable ${ordinal} ${reason}`);
  const code = bytes.readUInt16BE(at);
  if (code !== 1 && code !== 2) throw fault(`is of type ${code}, neither 1 (number) nor 2 (text)`);
  const name = decodeText(bytes, at + 8, 8).toUpperCase();
  if (!/^[A-Z_][A-Z0-9_]*$/.test(name)) throw fault(`has ${JSON.stringify(name)} for a name`);
  const length = bytes.readUInt16BE(at + 4);
  if (length < (code === 1 ? 2 : 1) || (code === 1 && length > 8)) throw fault(`(${name}) is ${length} bytes long`);
  return {
    name,
    label: decodeText(bytes, at + 16, 40),
    type: code === 1 ? 'number' : 'text',
    length,
    position: bytes.readInt32BE(at + 84),
  };
}

/** The length of a row, after a check that the variables fill it without gap or overlap and differ in name. */
function checkLayout(file: string, variables: Variable[]): number {
  let end = 0;
  for (const variable of variables.toSorted((a, b) => a.position - b.position)) {
    if (variable.position !== end) {
      throw new SendError(file, null, `damaged: variable ${variable.name} is at byte ${variable.position}, not ${end}`);
    }
    end += variable.length;
  }
  if (end === 0) throw new SendError(file, null, 'damaged: the dataset has no variables');
  const names = new Set<string>();
  for (const { name } of variables) {
    if (names.has(name)) throw new SendError(file, null, `damaged: two variables are named ${name}`);
    names.add(name);
  }
  return end;
}

/** Rows between the two offsets. What pads the last record (at most 79 blanks) is no row, even where one would fit. */
function countRows(file: string, bytes: Buffer, data: number, end: number, rowBytes: number): number {
  let count = Math.floor((end - data) / rowBytes);
  const rest = data + count * rowBytes;
  if (end - rest >= RECORD_BYTES || !isBlank(bytes, rest, end)) {
    throw new SendError(file, count + 1, `cut short: the file ends after ${end - rest} of the row’s ${rowBytes} bytes`);
  }
  for (; count > 0; count -= 1) {
    const lastRow = data + (count - 1) * rowBytes;
    if (lastRow <= end - RECORD_BYTES || !isBlank(bytes, lastRow, end)) break;
  }
  return count;
}

function decodeRow(file: string, number: number, bytes: Buffer, at: number, variables: Variable[]): Row['values'] {
  const values = new Map<string, string | number>();
  for (const { name, type, length, position } of variables) {
    const start = at + position;
    if (type === 'text') {
      const text = decodeText(bytes, start, length);
      if (text.includes('\0')) throw new SendError(file, number, `${name} holds a zero byte, which is no text`);
      if (text !== '') values.set(name, text);
    } else {
      const value = decodeNumber(bytes, start, length);
      if (value === undefined) {
        const hex = bytes.toString('hex', start, start + length);
        throw new SendError(file, number, `${name} is no number that SAS writes (bytes ${hex})`);
      }
      if (value !== null) values.set(name, value);
    }
  }
  return values;
}
