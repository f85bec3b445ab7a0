/** A writer of SAS transport files for tests: the format written down a second time, to check the reader against. */

/** A cell: bytes are written as they are; null is blank or the missing value `.`. */
export type Cell = string | number | Buffer | null;

export interface Column {
  name: string;
  type: 'number' | 'text';
  length: number;
  label?: string;
}

export interface Member {
  name: string;
  columns: Column[];
  rows: Cell[][];
  label?: string;
}

/** One file of one or more members; `namestrBytes` is 136 for files in the manner of VAX/VMS. */
export function writeTransport(members: Member[], namestrBytes: 136 | 140 = 140): Buffer {
  const parts = [header('LIBRARY'), blank(`SAS     SAS     SASLIB  9.4     `), blank('01JAN26:00:00:00')];
  for (const { name, columns, rows, label = '' } of members) {
    let position = 0;
    const namestrs = columns.map((column, i) => {
      position += column.length;
      return namestr(column, i + 1, position - column.length, namestrBytes);
    });
    parts.push(
      header('MEMBER', `000000000000000001600000000${namestrBytes}`),
      header('DSCRPTR'),
      blank(`SAS     ${name.padEnd(8)}SASDATA 9.4     `),
      blank(`01JAN26:00:00:00${' '.repeat(16)}${label.padEnd(40)}`),
      header('NAMESTR', `000000${String(columns.length).padStart(4, '0')}`.padEnd(30, '0')),
      padded(Buffer.concat(namestrs)),
      header('OBS'),
      padded(Buffer.concat(rows.flatMap((row) => columns.map((column, i) => cell(column, row[i] ?? null))))),
    );
  }
  return Buffer.concat(parts);
}

/** A member from records: a column per key; all its values numbers make it a number of 8 bytes, else it is text. */
export function memberOf(name: string, records: Record<string, Cell>[]): Member {
  const names = [...new Set(records.flatMap((record) => Object.keys(record)))];
  const columns = names.map((key): Column => {
    const cells = records.map((record) => record[key] ?? null).filter((value) => value !== null);
    if (cells.length > 0 && cells.every((value) => typeof value === 'number')) {
      return { name: key, type: 'number', length: 8 };
    }
    const lengths = cells.map(
      (value) => (Buffer.isBuffer(value) ? value : Buffer.from(String(value), 'latin1')).length,
    );
    return { name: key, type: 'text', length: Math.max(1, ...lengths) };
  });
  return { name, columns, rows: records.map((record) => names.map((key) => record[key] ?? null)) };
}

/** IBM System/360 floating point of a double, cut to `length` bytes. */
export function ibmNumber(value: number, length = 8): Buffer {
  const bytes = Buffer.alloc(8);
  if (value !== 0) {
    let fraction = Math.abs(value);
    let characteristic = 64;
    for (; fraction >= 1; characteristic += 1) fraction /= 16;
    for (; fraction < 1 / 16; characteristic -= 1) fraction *= 16;
    bytes.writeBigUInt64BE(BigInt(fraction * 2 ** 56));
    bytes[0] = characteristic | (value < 0 ? 0x80 : 0);
  }
  return bytes.subarray(0, length);
}

function cell({ type, length }: Column, value: Cell): Buffer {
  if (Buffer.isBuffer(value)) return Buffer.concat([value, Buffer.alloc(length - value.length, ' ')]);
  if (type === 'text') return Buffer.from(String(value ?? '').padEnd(length), 'latin1');
  if (value === null) return Buffer.concat([Buffer.from('.'), Buffer.alloc(length - 1)]);
  return ibmNumber(Number(value), length);
}

function namestr({ name, type, length, label = '' }: Column, ordinal: number, position: number, size: number): Buffer {
  const bytes = Buffer.alloc(size);
  bytes.writeUInt16BE(type === 'number' ? 1 : 2, 0);
  bytes.writeUInt16BE(length, 4);
  bytes.writeUInt16BE(ordinal, 6);
  bytes.write(name.padEnd(8), 8, 'latin1');
  bytes.write(label.padEnd(40), 16, 'latin1');
  bytes.write(' '.repeat(8), 56, 'latin1');
  bytes.write(' '.repeat(8), 72, 'latin1');
  bytes.writeInt32BE(position, 84);
  return bytes;
}

function header(name: string, numbers = '0'.repeat(30)): Buffer {
  return blank(`HEADER RECORD*******${name.padEnd(8)}HEADER RECORD!!!!!!!${numbers}`);
}

function blank(text: string): Buffer {
  return padded(Buffer.from(text, 'latin1'));
}

function padded(bytes: Buffer): Buffer {
  return Buffer.concat([bytes, Buffer.alloc((80 - (bytes.length % 80)) % 80, ' ')]);
}
