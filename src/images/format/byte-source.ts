import type { FileHandle } from 'node:fs/promises';

/** Where the bytes of an image come from: a local file, a buffer, or ranged reads of a cloud object. */
export interface ByteSource {
  /** Size of the whole image, in bytes. */
  sizeBytes: number;
  /** `length` bytes from `start`; fewer only where the source ends. */
  read(start: number, length: number): Promise<Buffer>;
  /** The image's file name, where it has one: tells the main file of formats that span several files. */
  name?: string;
}

/** Why an image cannot be read. The message is a reason for a user, a whole sentence. */
export class UnreadableImage extends Error {
  constructor(reason: string, options?: ErrorOptions) {
    super(reason, options);
    this.name = 'UnreadableImage';
  }
}

/** A header would need more bytes than its reader may take; a reader that knows enough by then answers all the same. */
export class BudgetExceeded extends UnreadableImage {}

/** Random access to a source that never takes more than its budget from it. */
export interface BoundedReader {
  readonly sizeBytes: number;
  /** Exactly `length` bytes from `start`; {@link UnreadableImage} where the source ends before, {@link BudgetExceeded}. */
  bytes(start: number, length: number): Promise<Buffer>;
}

/** 16 KiB: a directory and the values beside it arrive in one request of a cloud store. */
const windowBytes = 16 * 1024;

/** A reader of `source` that fetches small windows, remembers the last, and takes at most `budgetBytes` in all. */
export function boundedReader(source: ByteSource, budgetBytes: number): BoundedReader {
  let windowStart = 0;
  let window: Buffer = Buffer.alloc(0);
  let left = budgetBytes;
  return {
    sizeBytes: source.sizeBytes,
    async bytes(start, length) {
      if (start + length > source.sizeBytes) throw cutShort(start + length, source.sizeBytes);
      if (start < windowStart || start + length > windowStart + window.length) {
        const take = Math.min(Math.max(length, windowBytes), source.sizeBytes - start);
        if (take > left) throw new BudgetExceeded('The image has a header of improbable size.');
        left -= take;
        window = await source.read(start, take);
        windowStart = start;
        if (window.length < length) throw cutShort(start + length, start + window.length);
      }
      return window.subarray(start - windowStart, start - windowStart + length);
    },
  };
}

/** The refusal of a file that ends too early. */
export function cutShort(neededBytes: number, sizeBytes: number): UnreadableImage {
  const reason = `its structure needs ${neededBytes} bytes, it ends after ${sizeBytes}`;
  return new UnreadableImage(`The file is cut short: ${reason}.`);
}

/** A source over bytes in memory. */
export function bufferSource(bytes: Buffer, name?: string): ByteSource {
  return {
    sizeBytes: bytes.length,
    read: async (start, length) => bytes.subarray(start, start + length),
    ...(name === undefined ? {} : { name }),
  };
}

/** A source over an open local file, which stays the caller's to close. */
export async function fileSource(file: FileHandle, name?: string): Promise<ByteSource> {
  const { size } = await file.stat();
  return {
    sizeBytes: size,
    async read(start, length) {
      const { buffer, bytesRead } = await file.read(Buffer.allocUnsafe(length), 0, length, start);
      return buffer.subarray(0, bytesRead);
    },
    ...(name === undefined ? {} : { name }),
  };
}
