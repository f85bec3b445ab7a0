import { createHash } from 'node:crypto';
import { type Digests, DigestsEnded } from '../lib/digests.ts';
import { ObjectError, type ObjectStore } from '../objects/store.ts';
import { type Reading, readObject } from './read-object.ts';

/** What is known of a store's etags: S3 gives an MD5 of the content, unless the object came in parts or is encrypted. */
export interface EtagTrust {
  /** False once an etag that looks like an MD5 has turned out to be none. */
  isMd5: boolean;
}

/** An object to be read whole, and how its content is checked. */
export interface Source extends Omit<Reading, 'onReceived'> {
  /** What it must be, where that is known. */
  sha256?: string;
  etags: EtagTrust;
  digests: Digests;
  /** Told how much has arrived; begins at 0 with every try. */
  onArrived?: (bytes: number) => void;
}

/** SHA-256 of an object, hexadecimal. */
export async function hashObject(source: Source): Promise<string> {
  const { tries } = source;
  return tries.run(async () => {
    const result = { sha256: '' };
    for await (const _ of verified(source, result));
    return result.sha256;
  });
}

/**
 * Copies an object into another store and returns its SHA-256, hexadecimal. Content that does not prove to be the right
 * one does not become an object. A target that breaks is written anew.
 */
export function copyObject(
  source: Source,
  target: { store: Pick<ObjectStore, 'write'>; key: string },
  onProgress?: (bytes: number) => void,
): Promise<string> {
  const { info, signal, tries } = source;
  const { sizeBytes } = info;
  return tries.run(async () => {
    const result = { sha256: '' };
    const options = { sizeBytes, signal, ...(onProgress && { onProgress }) };
    const written = await target.store.write(target.key, verified(source, result), options);
    if (written.sizeBytes !== sizeBytes || result.sha256 === '') {
      throw new ObjectError('transient', `${JSON.stringify(target.key)} was not written whole.`);
    }
    return result.sha256;
  });
}

/** The bytes of an object, which end well only when they are the right ones; then `result` has their SHA-256. */
async function* verified(source: Source, result: { sha256: string }): AsyncGenerator<Buffer> {
  const { info, etags, digests } = source;
  // The store checks what it sends in one piece, but not what is put together here of parts.
  const mayBeMd5 = source.sha256 === undefined && etags.isMd5 && /^[0-9a-f]{32}$/.test(info.etag);
  const digest = digests.begin('sha256', ...(mayBeMd5 ? ['md5'] : []));
  let arrived = 0;
  const onReceived = (more: number) => {
    arrived += more;
    source.onArrived?.(arrived);
  };
  try {
    for await (const chunk of readObject({ ...source, onReceived })) {
      const taken = digest.update(chunk);
      taken.catch(() => {}); // Awaited below, unless whoever has the chunk does not come back.
      yield chunk;
      await taken;
    }
    const [sha256 = '', md5] = await digest.end();
    const isRight =
      source.sha256 !== undefined
        ? sha256 === source.sha256
        : !mayBeMd5 || md5 === info.etag || (await readsAgainAs(source, sha256));
    if (!isRight) throw new ObjectError('transient', `${JSON.stringify(info.key)} was damaged on its way.`);
    result.sha256 = sha256;
  } catch (error) {
    throw error instanceof DigestsEnded ? new ObjectError('transient', error.message, { cause: error }) : error;
  } finally {
    // Also where the rest is not wanted; elsewhere it has ended.
    digest.end().catch(() => {});
  }
}

/** Whether a second reading, in one piece, brings the same content: then the etag is no MD5. */
async function readsAgainAs({ store, info, signal, etags }: Source, sha256: string): Promise<boolean> {
  const hash = createHash('sha256');
  const stream = await store.read(info.key, { ifMatch: info.etag, signal });
  for await (const chunk of stream as AsyncIterable<Buffer>) hash.update(chunk);
  const same = hash.digest('hex') === sha256;
  if (same) etags.isMd5 = false;
  return same;
}
