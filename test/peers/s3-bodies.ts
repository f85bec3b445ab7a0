import { randomUUID } from 'node:crypto';
import { type FileHandle, open, unlink } from 'node:fs/promises';
import { join } from 'node:path';

/** Bodies up to 64 KiB stay in memory: files of that size would measure the file system, not the client. */
const inMemoryBytes = 64 * 1024;

/** Bytes kept somewhere; readers hold it, so that replacing an object does not pull the floor from under them. */
export interface Blob {
  readonly sizeBytes: number;
  read(start: number, end: number): AsyncGenerator<Buffer>;
  /** Gone once the last reader is. */
  drop(): void;
}

/** Stores a body: small ones in memory, larger ones as a file in `dir`. Leaves nothing when the body fails. */
export async function storeBlob(dir: string, body: AsyncIterable<Buffer>): Promise<Blob> {
  const chunks: Buffer[] = [];
  let size = 0;
  let file: FileHandle | undefined;
  const path = join(dir, randomUUID());
  try {
    for await (const chunk of body) {
      size += chunk.length;
      if (!file && size <= inMemoryBytes) {
        chunks.push(Buffer.from(chunk));
        continue;
      }
      file ??= await open(path, 'wx');
      if (chunks.length > 0) await file.writeFile(Buffer.concat(chunks.splice(0)));
      await file.writeFile(chunk);
    }
    await file?.close();
  } catch (error) {
    if (file) {
      await file.close();
      await unlink(path);
    }
    throw error;
  }
  return file ? fileBlob(path, size) : memoryBlob(Buffer.concat(chunks));
}

function memoryBlob(bytes: Buffer): Blob {
  return {
    sizeBytes: bytes.length,
    async *read(start, end) {
      if (end >= start) yield Buffer.from(bytes.subarray(start, end + 1));
    },
    drop() {},
  };
}

function fileBlob(path: string, sizeBytes: number): Blob {
  async function* read(start: number, end: number): AsyncGenerator<Buffer> {
    const file = await open(path);
    try {
      for (let at = start; at <= end; ) {
        const length = Math.min(512 * 1024, end - at + 1);
        const { bytesRead, buffer } = await file.read(Buffer.allocUnsafeSlow(length), 0, length, at);
        yield buffer.subarray(0, bytesRead);
        at += bytesRead;
      }
    } finally {
      await file.close();
    }
  }
  return heldWhileRead(sizeBytes, read, () => void unlink(path).catch(() => {}));
}

/** Several blobs as one: what a completed multipart upload is. */
export function joinBlobs(blobs: Blob[]): Blob {
  async function* read(start: number, end: number): AsyncGenerator<Buffer> {
    let offset = 0;
    for (const blob of blobs) {
      const from = Math.max(start - offset, 0);
      const to = Math.min(end - offset, blob.sizeBytes - 1);
      if (from <= to) yield* blob.read(from, to);
      offset += blob.sizeBytes;
    }
  }
  const sizeBytes = blobs.reduce((sum, blob) => sum + blob.sizeBytes, 0);
  return heldWhileRead(sizeBytes, read, () => {
    for (const blob of blobs) blob.drop();
  });
}

function heldWhileRead(sizeBytes: number, read: Blob['read'], remove: () => void): Blob {
  let readers = 0;
  let dropped = false;
  return {
    sizeBytes,
    read(start, end) {
      readers++; // Now, not when the first byte is asked for: a drop may come between.
      return (async function* () {
        try {
          yield* read(start, end);
        } finally {
          readers--;
          if (dropped && readers === 0) remove();
        }
      })();
    },
    drop() {
      dropped = true;
      if (readers === 0) remove();
    },
  };
}
