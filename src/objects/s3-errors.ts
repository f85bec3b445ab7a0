import { egressRefusal } from './egress.ts';
import { ObjectError, type ObjectErrorKind } from './store.ts';

const kinds: Record<string, ObjectErrorKind> = {
  NoSuchKey: 'not-found',
  NotFound: 'not-found',
  NoSuchVersion: 'not-found',
  PreconditionFailed: 'changed',
  AccessDenied: 'denied',
  InvalidAccessKeyId: 'denied',
  SignatureDoesNotMatch: 'denied',
  ExpiredToken: 'denied',
  InvalidToken: 'denied',
  TokenRefreshRequired: 'denied',
  CredentialsProviderError: 'denied',
  KeyTooLongError: 'invalid-key',
  InvalidURI: 'invalid-key',
  QuotaExceeded: 'no-space',
  XMinioStorageFull: 'no-space',
  NoSuchBucket: 'failed',
  PermanentRedirect: 'failed',
  AuthorizationHeaderMalformed: 'failed',
  InvalidObjectState: 'failed',
  // What arrived is not what was sent: another try sends it anew.
  BadDigest: 'transient',
  XAmzContentSHA256Mismatch: 'transient',
  IncompleteBody: 'transient',
  RequestTimeout: 'transient',
  NoSuchUpload: 'transient',
  OperationAborted: 'transient',
  IdleTimeoutError: 'transient',
};

const statusKinds: Record<number, ObjectErrorKind> = {
  401: 'denied',
  403: 'denied',
  404: 'not-found',
  408: 'transient',
  409: 'transient',
  412: 'changed',
  429: 'transient',
  507: 'no-space',
};

/** Names of network errors (Node's `code`) that another try may not meet. */
const transientCodes =
  /^(ECONNRESET|ECONNREFUSED|ECONNABORTED|EPIPE|ETIMEDOUT|EHOSTUNREACH|ENETUNREACH|ENETDOWN|EAI_AGAIN|ERR_STREAM_PREMATURE_CLOSE|HPE_\w+)$/;

const sentences: Record<string, string> = {
  // The answer to a HEAD has no body that would say more than the status.
  301: 'The bucket is in another region, or at another endpoint.',
  400: 'The store refused: the region may be another one, or the session token may have expired.',
  NoSuchBucket: 'The bucket does not exist.',
  PermanentRedirect: 'The bucket is in another region, or at another endpoint.',
  AuthorizationHeaderMalformed: 'The bucket is in another region.',
  InvalidObjectState: 'The object is archived and must be restored first.',
  InvalidAccessKeyId: 'The access key is unknown.',
  SignatureDoesNotMatch: 'The secret access key is wrong.',
  ExpiredToken: 'The session token has expired.',
  CredentialsProviderError: 'No AWS credentials were found.',
  BadDigest: 'The bytes were damaged on their way.',
  XAmzContentSHA256Mismatch: 'The bytes were damaged on their way.',
  IdleTimeoutError: 'The store was silent for too long.',
  ENOTFOUND: 'The host name of the endpoint does not exist.',
};

const kindSentences: Record<ObjectErrorKind, string> = {
  'not-found': 'There is no such object.',
  denied: 'The store refuses access.',
  changed: 'The object has changed meanwhile.',
  'no-space': 'There is no space left in the store.',
  'invalid-key': 'The store cannot hold an object of that name.',
  transient: 'The store did not answer properly.',
  failed: 'The store refused.',
};

/** The ObjectError for what the SDK or the network said; `what` is the object or the bucket. An ObjectError stays itself. */
export function s3Error(error: unknown, what: string): ObjectError {
  if (error instanceof ObjectError) return error;
  const refusal = egressRefusal(error);
  if (refusal) return new ObjectError('denied', `${what}: ${refusal.message}`);
  const { code, status, message } = factsOf(error);
  const kind = kinds[code] ?? statusKind(status, code);
  const sentence = sentences[code] ?? kindSentences[kind];
  const suffix = [code === String(status) ? '' : code, status > 0 ? status : ''].filter(Boolean).join(' ');
  // The SDK's own error holds the request with its session token: only its words go on.
  const cause = new Error(`${code} ${message}`.trim());
  return new ObjectError(kind, `${what}: ${sentence}${suffix ? ` (${suffix})` : ''}`, { cause });
}

/** What the error calls itself: S3's code, or Node's. */
export function codeOf(error: unknown): string {
  return factsOf(error).code;
}

function statusKind(status: number, code: string): ObjectErrorKind {
  if (status >= 500 && status !== 501 && status !== 507) return 'transient';
  return statusKinds[status] ?? (transientCodes.test(code) ? 'transient' : 'failed');
}

function factsOf(error: unknown): { code: string; status: number; message: string } {
  if (!(error instanceof Error)) return { code: '', status: 0, message: String(error) };
  const facts = error as Error & { code?: unknown; Code?: unknown; $metadata?: { httpStatusCode?: number } };
  const named = [facts.Code, facts.code, facts.name].find((code) => typeof code === 'string' && code !== 'Error');
  return { code: String(named ?? ''), status: facts.$metadata?.httpStatusCode ?? 0, message: facts.message };
}
