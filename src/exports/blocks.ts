/** 256 KiB: larger writes to a store are no faster. */
const BLOCK_BYTES = 256 * 1024;
/** Fewer bytes than these are copied faster one by one than by a call. */
const FEW_BYTES = 64;
const ZERO = 0x30;

/** Gathers bytes into blocks. */
export class Blocks {
  /** The block in hand. */
  block: Buffer = Buffer.allocUnsafeSlow(BLOCK_BYTES);
  #at = 0;
  #full: Buffer[] = [];

  /** Makes room for that many bytes in {@link block}; returns where they go. */
  reserve(bytes: number): number {
    if (this.#at + bytes > this.block.length) {
      this.#full.push(this.block.subarray(0, this.#at));
      this.block = Buffer.allocUnsafeSlow(Math.max(BLOCK_BYTES, bytes));
      this.#at = 0;
    }
    return this.#at;
  }

  /** Tells where the bytes end that were written after {@link reserve}. */
  used(at: number): void {
    this.#at = at;
  }

  /** A few bytes. */
  put(bytes: Uint8Array): void {
    const at = this.reserve(bytes.length);
    for (let i = 0; i < bytes.length; i++) this.block[at + i] = bytes[i] as number;
    this.#at = at + bytes.length;
  }

  byte(byte: number): void {
    this.block[this.reserve(1)] = byte;
    this.#at += 1;
  }

  /** A number as JavaScript prints it. */
  number(value: number): void {
    if (value >= 0 && value < 10) {
      this.byte(ZERO + value);
      return;
    }
    const digits = String(value);
    const at = this.reserve(digits.length);
    for (let i = 0; i < digits.length; i++) this.block[at + i] = digits.charCodeAt(i);
    this.#at = at + digits.length;
  }

  /** Any number of bytes. */
  raw(bytes: Buffer, start: number, end: number): void {
    if (end - start < FEW_BYTES) {
      const at = this.reserve(end - start);
      for (let i = start; i < end; i++) this.block[at + i - start] = bytes[i] as number;
      this.#at = at + end - start;
      return;
    }
    for (let from = start; from < end; ) {
      const copied = bytes.copy(this.block, this.#at, from, end);
      from += copied;
      this.#at += copied;
      if (from < end) this.reserve(BLOCK_BYTES);
    }
  }

  /** Blocks that are full. */
  takeFull(): Buffer[] {
    return this.#full.splice(0);
  }

  /** What does not fill a block; nothing can be added any more. */
  rest(): Buffer {
    return this.block.subarray(0, this.#at);
  }
}
