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
  ContainerNotFound: 'failed', // 404, but it is not the object that is missing
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
  'not-found': 'there is no such object',
  denied: 'access was refused',
  changed: 'it has changed meanwhile',
  'no-space': 'there is no space left',
  'invalid-key': 'the name is not allowed there',
  transient: 'the cloud did not answer properly',
  failed: 'the cloud refused the request',
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
  return new ObjectError(kind, `${what}: ${sentences[kind]}${facts && ` (${facts})`}.`);
}
