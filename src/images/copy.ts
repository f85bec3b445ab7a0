import { createHash, type Hash } from 'node:crypto';
import { Readable } from 'node:stream';
import { ObjectError, type ObjectStore } from '../objects/store.ts';
import { type Reading, readObject } from './read-object.ts';

/** SHA-256 of an object, hexadecimal. */
export async function hashObject(reading: Reading): Promise<string> {
  const hash = createHash('sha256');
  for await (const chunk of readObject(reading)) hash.update(chunk);
  return hash.digest('hex');
}

/**
 * Copies an object into another store and returns its SHA-256, hexadecimal. Where that is known beforehand, other content
 * does not become an object. A target that breaks is written anew.
 */
export function copyObject(
  reading: Reading,
  target: { store: Pick<ObjectStore, 'write'>; key: string; sha256?: string },
  onProgress: (bytes: number) => void,
): Promise<string> {
  const { info, signal, tries } = reading;
  const { sizeBytes } = info;
  return tries.run(async () => {
    const hash = createHash('sha256');
    const result = { sha256: '' };
    const body = Readable.from(hashed(reading, hash, target.sha256, result), { objectMode: false });
    const written = await target.store.write(target.key, body, { sizeBytes, signal, onProgress });
    if (written.sizeBytes !== sizeBytes || result.sha256 === '') {
      throw new ObjectError('transient', `${JSON.stringify(target.key)} was not written whole.`);
    }
    return result.sha256;
  });
}

async function* hashed(
  reading: Reading,
  hash: Hash,
  expected: string | undefined,
  result: { sha256: string },
): AsyncGenerator<Buffer> {
  for await (const chunk of readObject(reading)) {
    hash.update(chunk);
    yield chunk;
  }
  const sha256 = hash.digest('hex');
  if (expected !== undefined && sha256 !== expected) {
    throw new ObjectError('transient', `${JSON.stringify(reading.info.key)} has other content than was stored.`);
  }
  result.sha256 = sha256;
}
