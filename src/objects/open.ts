import { isAbsolute } from 'node:path';
import { fileURLToPath } from 'node:url';
import { openFileStore } from './file.ts';
import type { S3StoreOptions } from './s3.ts';
import { ObjectError, type OwnStore } from './store.ts';

/**
 * Opens the store that `SDS_OBJECT_STORE` names (decisions §10): `file:/absolute/directory`, made where it is missing, or
 * `s3://bucket/prefix?region=…&endpoint=…&forcePathStyle=true` with keys from the AWS SDK's own chain.
 * An S3 store that makes no progress for `idleTimeoutMs` is given up as `transient`.
 * Rejects with an ObjectError whose message says what is wrong with the URL.
 */
export async function openStore(url: string, { idleTimeoutMs }: { idleTimeoutMs?: number } = {}): Promise<OwnStore> {
  if (url.startsWith('file:')) {
    const dir = url.startsWith('file://') ? fileURLToPath(url) : url.slice('file:'.length);
    if (!isAbsolute(dir)) throw new ObjectError('failed', `The object store ${url} must be an absolute path.`);
    return openFileStore(dir);
  }
  if (url.startsWith('s3://')) {
    // Only who uses S3 pays for loading its SDK.
    const { openS3Store } = await import('./s3.ts');
    return openS3Store({ ...readS3Url(url), ...(idleTimeoutMs === undefined ? {} : { idleTimeoutMs }) });
  }
  throw new ObjectError('failed', `The object store ${url} is neither file:/directory nor s3://bucket.`);
}

/** `s3://bucket/prefix?region=…&endpoint=…&forcePathStyle=true` as options; a misspelt parameter is an error. */
export function readS3Url(url: string): S3StoreOptions {
  const parsed = URL.canParse(url) ? new URL(url) : null;
  const { region, endpoint, forcePathStyle, ...others } = Object.fromEntries(parsed?.searchParams ?? []);
  const fault = !parsed?.hostname
    ? 'names no bucket'
    : parsed.username || parsed.password
      ? 'must not hold keys: the AWS SDK finds them in the environment'
      : Object.keys(others).length > 0
        ? `has unknown parameters: ${Object.keys(others).join(', ')}`
        : endpoint !== undefined && !/^https?:$/.test(URL.canParse(endpoint) ? new URL(endpoint).protocol : '')
          ? 'has an endpoint that is no http or https URL'
          : forcePathStyle !== undefined && !/^(true|false|1|0)$/.test(forcePathStyle)
            ? 'has a forcePathStyle that is neither true nor false'
            : null;
  if (fault || !parsed) throw new ObjectError('failed', `The object store s3://${parsed?.hostname ?? ''} ${fault}.`);
  return {
    bucket: parsed.hostname,
    prefix: decodeURIComponent(parsed.pathname.slice(1)),
    ...(region ? { region } : {}),
    ...(endpoint ? { endpoint } : {}),
    forcePathStyle: forcePathStyle === 'true' || forcePathStyle === '1',
  };
}
