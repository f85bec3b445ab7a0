import type { FileHandle } from 'node:fs/promises';
import { Readable } from 'node:stream';
import { fileError } from './file-errors.ts';
import { ObjectError, type ObjectInfo, type ReadOptions } from './store.ts';
import { endOnAbort } from './stream.ts';

/** Bytes a read asks the disk for: large enough that the cost of a call does not count. */
const chunkBytes = 256 * 1024;

/**
 * The bytes of an open file as a stream, which closes it at its end. `verify` runs after the last byte, so that a file
 * that somebody rewrote in place under our hands (a scanner on a share) is an error, not a mixture of two versions.
 */
export function readHandle(
  handle: FileHandle,
  info: ObjectInfo,
  options: ReadOptions,
  verify: (handle: FileHandle) => Promise<void>,
): Readable {
  const end = Math.min(options.end ?? Number.POSITIVE_INFINITY, info.sizeBytes - 1);
  let position = options.start ?? 0;

  async function next(): Promise<Buffer | null> {
    const length = Math.min(chunkBytes, end - position + 1);
    if (length <= 0) {
      await verify(handle);
      return null;
    }
    const { bytesRead, buffer } = await handle.read(Buffer.allocUnsafeSlow(length), 0, length, position);
    if (bytesRead === 0) throw new ObjectError('changed', `${JSON.stringify(info.key)} has changed meanwhile.`);
    position += bytesRead;
    return buffer.subarray(0, bytesRead);
  }

  let reading = Promise.resolve();
  const stream = new Readable({
    highWaterMark: chunkBytes,
    read() {
      reading = next().then(
        (chunk) => void this.push(chunk),
        (error: unknown) => void this.destroy(fileError(error, info.key)),
      );
    },
    destroy(error, callback) {
      // Not before a read under way has come back: its descriptor number may be somebody else's by then.
      const done = () => callback(error);
      reading.then(() => handle.close()).then(done, done);
    },
  });
  return endOnAbort(stream, options.signal);
}
