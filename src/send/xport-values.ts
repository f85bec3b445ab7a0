/**
 * The two kinds of value in a SAS transport file: IBM System/360 floating point and blank-padded text
 * (SAS technical support note TS-140).
 */

/** 16^(characteristic − 64), divided by 2^56 because the fraction is taken as an integer; exact, being powers of two. */
const SCALE = Array.from({ length: 128 }, (_, characteristic) => 2 ** (4 * (characteristic - 64) - 56));

/**
 * The number in `length` (2 to 8) bytes at `offset`: null for a SAS missing value (`.`, `._`, `.A` to `.Z`), undefined
 * where no SAS wrote these bytes. Shorter numbers are cut off at the end, so they are read as if zeros followed.
 * Of the 56 bits of the fraction a double holds 53: the nearest one is taken.
 */
export function decodeNumber(bytes: Buffer, offset: number, length: number): number | null | undefined {
  let high = 0;
  let low = 0;
  for (let i = 1; i < 8; i += 1) {
    const byte = i < length ? (bytes[offset + i] ?? 0) : 0;
    if (i < 4) high = high * 256 + byte;
    else low = low * 256 + byte;
  }
  const first = bytes[offset] ?? 0;
  if (high === 0 && low === 0) {
    if (first === 0x00 || first === 0x80) return 0;
    return isMissingCode(first) ? null : undefined;
  }
  if (isBlank(bytes, offset, offset + length)) return undefined;
  const magnitude = (high * 2 ** 32 + low) * (SCALE[first & 0x7f] ?? 0);
  return first & 0x80 ? -magnitude : magnitude;
}

/** `.`, `_` or a capital letter: the first byte of a missing value. */
function isMissingCode(byte: number): boolean {
  return byte === 0x2e || byte === 0x5f || (byte >= 0x41 && byte <= 0x5a);
}

/** Whether nothing but blanks stands between the two offsets. */
export function isBlank(bytes: Buffer, from: number, to: number): boolean {
  for (let i = from; i < to; i += 1) if (bytes[i] !== 0x20) return false;
  return true;
}

/**
 * Where Windows-1252 differs from Latin-1: 0x80 to 0x9F. The five bytes that it leaves undefined (81, 8D, 8F, 90, 9D)
 * become the control characters of the same number, as in the WHATWG encoding standard, so that no byte is lost.
 * Our own table, because TextDecoder takes windows-1252 for Latin-1 in some releases of Node.js.
 */
const CP1252 =
  '€\u0081‚ƒ„…†‡ˆ‰Š‹Œ\u008dŽ\u008f' + // 80 to 8F
  '\u0090‘’“”•–—˜™š›œ\u009džŸ'; // 90 to 9F

/** Text of `length` bytes at `offset`, without the blanks that pad it at the end. */
export function decodeText(bytes: Buffer, offset: number, length: number): string {
  let end = offset + length;
  while (end > offset && bytes[end - 1] === 0x20) end -= 1;
  return bytes
    .toString('latin1', offset, end)
    .replace(/[\u0080-\u009f]/g, (character) => CP1252.charAt(character.charCodeAt(0) - 0x80));
}
