/** PostgreSQL counts time from the start of 2000. */
const EPOCH_MS = Date.UTC(2000);
const DAY_MS = 86_400_000;
/** Length of `2026-01-31T12:00:00.000Z`. */
export const ISO_BYTES = 24;

/** The big-endian integer of 4 bytes at `at`. */
export function int32(bytes: Uint8Array, at: number): number {
  return (
    ((bytes[at] as number) << 24) |
    ((bytes[at + 1] as number) << 16) |
    ((bytes[at + 2] as number) << 8) |
    (bytes[at + 3] as number)
  );
}

/** An integer of 2, 4 or 8 bytes, by PostgreSQL's binary format; of 8 bytes the nearest double. */
export function integer(bytes: Buffer, start: number, end: number): number {
  if (end - start === 2) return bytes.readInt16BE(start);
  const high = int32(bytes, start);
  return end - start === 4 ? high : high * 0x1_0000_0000 + (int32(bytes, start + 4) >>> 0);
}

/** Renders timestamps without a Date for each: rows that lie together are mostly of one day. */
export class Clock {
  readonly #text = Buffer.alloc(ISO_BYTES);
  #ms = Number.NaN;
  #day = Number.NaN;

  /**
   * The time as the interface writes it: ISO 8601, UTC, milliseconds. The bytes hold until the next call.
   * @param microseconds Since the start of 2000, UTC: a timestamptz in binary. Years 0 to 9999.
   */
  iso(microseconds: number): Buffer {
    const ms = EPOCH_MS + Math.floor(microseconds / 1000);
    if (ms === this.#ms) return this.#text;
    this.#ms = ms;
    const day = Math.floor(ms / DAY_MS);
    if (day !== this.#day) this.#text.write(new Date(ms).toISOString());
    this.#day = day;
    const time = ms - day * DAY_MS;
    const minutes = Math.floor(time / 60_000);
    this.#digits(11, Math.floor(minutes / 60));
    this.#digits(14, minutes % 60);
    this.#digits(17, Math.floor(time / 1000) % 60);
    this.#digits(20, Math.floor(time / 10) % 100);
    this.#text[22] = 0x30 + (time % 10);
    return this.#text;
  }

  #digits(at: number, value: number): void {
    this.#text[at] = 0x30 + Math.floor(value / 10);
    this.#text[at + 1] = 0x30 + (value % 10);
  }
}
