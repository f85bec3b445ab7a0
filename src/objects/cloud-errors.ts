import { ObjectError, type ObjectErrorKind } from './store.ts';

/** What a cloud said, or how the way to it failed. */
export interface CloudFailure {
  /** HTTP status, where there was an answer. */
  status?: number | undefined;
  /** The provider's code, or the system's (`ECONNRESET`). */
  code?: string | undefined;
  /** A sentence of ours that says it better. */
  detail?: string;
}

/** Codes of providers that say more than their status. */
const kindOfCode: Record<string, ObjectErrorKind> = {
  EGRESS_REFUSED: 'denied',
  BucketNotFound: 'failed',
  ContainerNotFound: 'failed', // 404, but it is not the object that is missing
  ENOTFOUND: 'failed',
  InvalidBlockList: 'transient', // another writer of the same key committed first and took the blocks with it
  Md5Mismatch: 'transient', // the bytes changed on their way
};

const kindOfStatus: Record<number, ObjectErrorKind> = {
  401: 'denied',
  403: 'denied',
  404: 'not-found',
  408: 'transient',
  412: 'changed',
  425: 'transient',
  429: 'transient',
};

/** Failures of a certificate or of the protocol, which another try would not mend. */
const permanent = /^(?:ERR_TLS|ERR_SSL|ERR_INVALID|CERT_|DEPTH_ZERO|SELF_SIGNED|UNABLE_TO|ERR_UNESCAPED|EPROTO)/;

const sentences: Record<ObjectErrorKind, string> = {
  'not-found': 'There is no such object.',
  denied: 'The store refuses access.',
  changed: 'The object has changed meanwhile.',
  'no-space': 'There is no space left in the store.',
  'invalid-key': 'The store cannot hold an object of that name.',
  transient: 'The store did not answer properly.',
  failed: 'The store refuses the request.',
};

const sentencesOfCode: Record<string, string> = {
  BucketNotFound: 'The bucket does not exist.',
  ContainerNotFound: 'The container does not exist.',
  ENOTFOUND: 'The host name of the endpoint does not exist.',
  Md5Mismatch: 'The bytes were damaged on their way.',
};

/**
 * The ObjectError for a failed call. The provider's own text is left out: it may hold a signature or a signed URL.
 * `what` names the object and where it is.
 */
export function cloudError(what: string, { status, code, detail }: CloudFailure): ObjectError {
  const kind =
    kindOfCode[code ?? ''] ??
    (status === undefined
      ? permanent.test(code ?? '')
        ? 'failed'
        : 'transient'
      : (kindOfStatus[status] ?? (status >= 500 ? 'transient' : 'failed')));
  if (detail !== undefined) return new ObjectError(kind, `${what}: ${detail}`);
  const facts = [status, code].filter((fact) => fact !== undefined).join(' ');
  return new ObjectError(kind, `${what}: ${sentencesOfCode[code ?? ''] ?? sentences[kind]}${facts && ` (${facts})`}`);
}
