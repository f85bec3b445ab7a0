import { ObjectError, type ObjectErrorKind } from './store.ts';

const kinds: Record<string, ObjectErrorKind> = {
  ENOENT: 'not-found',
  ENOTDIR: 'not-found',
  ELOOP: 'denied',
  EACCES: 'denied',
  EPERM: 'denied',
  EROFS: 'denied',
  ENOSPC: 'no-space',
  EDQUOT: 'no-space',
  EFBIG: 'no-space',
  ENAMETOOLONG: 'invalid-key',
  EIO: 'transient',
  ESTALE: 'transient',
  ETIMEDOUT: 'transient',
  EMFILE: 'transient',
  ENFILE: 'transient',
  EAGAIN: 'transient',
  EBUSY: 'transient',
};

const sentences: Record<ObjectErrorKind, (name: string) => string> = {
  'not-found': (name) => `There is no object ${name}.`,
  denied: (name) => `The file system refuses access to ${name}.`,
  changed: (name) => `${name} has changed meanwhile.`,
  'no-space': (name) => `There is no space left on the disk (or in the quota) for ${name}.`,
  'invalid-key': (name) => `The file system cannot hold the name ${name}.`,
  transient: (name) => `The file system did not answer properly for ${name}.`,
  failed: (name) => `${name} clashes with a folder or object of that name, or the directory is not there.`,
};

/** The ObjectError for what the file system said about `key`; an ObjectError stays itself. */
export function fileError(error: unknown, key: string): ObjectError {
  return error instanceof ObjectError ? error : describe(error, key, kinds[codeOf(error)] ?? 'failed');
}

/** As {@link fileError} for a write: what is missing then is a folder, since an object has its name, or the root itself. */
export function fileWriteError(error: unknown, key: string): ObjectError {
  const known = fileError(error, key);
  return known.kind === 'not-found' ? describe(error, key, 'failed') : known;
}

function describe(error: unknown, key: string, kind: ObjectErrorKind): ObjectError {
  const code = codeOf(error);
  const sentence = sentences[kind](JSON.stringify(key));
  return new ObjectError(kind, code ? sentence.replace(/\.$/, ` (${code}).`) : sentence, { cause: error });
}

/** Whether the error is one of these of the system. */
export function hasCode(error: unknown, ...codes: string[]): boolean {
  return codes.includes(codeOf(error));
}

function codeOf(error: unknown): string {
  return error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : '';
}
