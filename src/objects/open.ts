import { isAbsolute } from 'node:path';
import { fileURLToPath } from 'node:url';
import { openFileStore } from './file.ts';
import { sweepIncoming } from './file-sweep.ts';
import { ObjectError, type ObjectStore } from './store.ts';

/** One hour: a live writer touches its file every few seconds, or its source has timed out long ago. */
const orphanAgeMs = 3_600_000;

/**
 * Opens the store that `SDS_OBJECT_STORE` names (decisions §10): `file:/absolute/directory`, made where it is missing, or
 * `s3://bucket/prefix?region=…&endpoint=…&forcePathStyle=true` with keys from the AWS SDK's own chain.
 * Rejects with an ObjectError whose message says what is wrong with the URL.
 */
export async function openStore(url: string): Promise<ObjectStore> {
  if (url.startsWith('file:')) {
    const dir = url.startsWith('file://') ? fileURLToPath(url) : url.slice('file:'.length);
    if (!isAbsolute(dir)) throw new ObjectError('failed', `The object store ${url} must be an absolute path.`);
    const store = await openFileStore(dir);
    await sweepIncoming(dir, orphanAgeMs);
    return store;
  }
  throw new ObjectError('failed', `The object store ${url} is neither file:/directory nor s3://bucket.`);
}
