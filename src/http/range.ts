/** A part of a file: its first and last byte, 0-based, both inclusive. */
export interface Range {
  start: number;
  end: number;
}

/**
 * The range that a Range header asks for (RFC 9110 §14.1.2). Null: the whole is to be sent, as the header is malformed,
 * of another unit, or asks for several ranges, each of which a server may ignore.
 */
export function parseRange(header: string, sizeBytes: number): Range | 'unsatisfiable' | null {
  const [, first = '', last = ''] = /^bytes=[ \t]*(\d*)-(\d*)[ \t]*$/i.exec(header) ?? [];
  if (first === '' && last === '') return null;
  if (first === '') {
    const length = Math.min(Number(last), sizeBytes);
    return length === 0 ? 'unsatisfiable' : { start: sizeBytes - length, end: sizeBytes - 1 };
  }
  const start = Number(first);
  const end = last === '' ? sizeBytes - 1 : Math.min(Number(last), sizeBytes - 1);
  if (last !== '' && Number(last) < start) return null;
  return start >= sizeBytes ? 'unsatisfiable' : { start, end };
}
