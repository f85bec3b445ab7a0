import type { FastifyRequest } from 'fastify';

/** Codes of RFC 6749 §5.2, and those needed beyond it (RFC 8628 §3.5, RFC 6749 §4.1.2.1). */
export type OAuthCode =
  | 'invalid_request'
  | 'invalid_client'
  | 'unsupported_grant_type'
  | 'invalid_scope'
  | 'slow_down'
  | 'temporarily_unavailable'
  | 'server_error';

/** A token request that is answered with an error (RFC 6749 §5.2). */
export class OAuthError extends Error {
  override name = 'OAuthError';
  readonly code: OAuthCode;
  readonly status: number;
  readonly headers: Record<string, string>;

  constructor(
    code: OAuthCode,
    description: string,
    options: { status?: number; headers?: Record<string, string>; cause?: unknown } = {},
  ) {
    super(description, { cause: options.cause });
    this.code = code;
    this.status = options.status ?? 400;
    this.headers = options.headers ?? {};
  }
}

/** How a client says who it is. */
export interface Credentials {
  clientId: string;
  /** More than one where the client may or may not have encoded it: RFC 6749 §2.3.1 asks for it, many do not. */
  candidates: { clientId: string; clientSecret: string }[];
  method: 'client_secret_basic' | 'client_secret_post';
}

/** A parsed token request. */
export interface TokenRequest {
  credentials: Credentials;
  /** The scopes asked for; null: all that the client has. */
  scope: string | null;
}

/** Reads a token request of the client credentials grant (RFC 6749 §4.4.2); throws {@link OAuthError}. */
export function readTokenRequest(request: Pick<FastifyRequest, 'headers' | 'body'>): TokenRequest {
  const parameters = readParameters(request.headers['content-type'], request.body);
  const grantType = parameters.get('grant_type');
  if (grantType === undefined) throw new OAuthError('invalid_request', 'The parameter grant_type is missing.');
  if (grantType !== 'client_credentials') {
    throw new OAuthError('unsupported_grant_type', 'The only grant_type is client_credentials.');
  }
  const credentials = readCredentials(request.headers.authorization, parameters);
  return { credentials, scope: parameters.get('scope') ?? null };
}

function readParameters(contentType: string | undefined, body: unknown): Map<string, string> {
  const text = typeof body === 'string' ? body : '';
  const [mediaType = ''] = (contentType ?? '').split(';', 1);
  switch (mediaType.trim().toLowerCase()) {
    case 'application/x-www-form-urlencoded':
      return collect(new URLSearchParams(text));
    case 'application/json':
      return collect(readJson(text));
    default:
      throw new OAuthError('invalid_request', 'The Content-Type must be application/x-www-form-urlencoded.');
  }
}

function readJson(text: string): [string, string][] {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (cause) {
    throw new OAuthError('invalid_request', 'The body is not JSON.', { cause });
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new OAuthError('invalid_request', 'The body must be a JSON object.');
  }
  return Object.entries(value).map(([name, one]) => {
    if (typeof one !== 'string') throw new OAuthError('invalid_request', 'All parameters must be strings.');
    return [name, one];
  });
}

/** Parameters by name; one without a value counts as left out, one given twice is an error (RFC 6749 §3.2). */
function collect(pairs: Iterable<[string, string]>): Map<string, string> {
  const parameters = new Map<string, string>();
  for (const [name, value] of pairs) {
    if (parameters.has(name)) throw new OAuthError('invalid_request', 'A parameter is given more than once.');
    parameters.set(name, value);
  }
  for (const [name, value] of parameters) if (value === '') parameters.delete(name);
  return parameters;
}

function readCredentials(authorization: string | undefined, parameters: Map<string, string>): Credentials {
  const basic = /^basic(?:\s+(.*))?$/i.exec(authorization ?? '');
  const clientId = parameters.get('client_id');
  const clientSecret = parameters.get('client_secret');
  if (basic) {
    if (clientSecret !== undefined) {
      throw new OAuthError('invalid_request', 'The client may say who it is in one way only: header or body.');
    }
    const credentials = readBasic(basic[1] ?? '');
    if (clientId !== undefined && !credentials.candidates.some((one) => one.clientId === clientId)) {
      throw new OAuthError('invalid_request', 'The client_id of the body is not that of the header.');
    }
    return credentials;
  }
  if (clientId === undefined || clientSecret === undefined) {
    throw invalidClient('The client must say who it is, by HTTP Basic or by client_id and client_secret.', false);
  }
  return { clientId, candidates: [{ clientId, clientSecret }], method: 'client_secret_post' };
}

/** The 401 of RFC 6749 §5.2; a browser asks its user for a password when the answer names Basic, so only if it was used. */
export function invalidClient(description: string, basic: boolean): OAuthError {
  const headers: Record<string, string> = basic
    ? { 'WWW-Authenticate': 'Basic realm="study-data-service", charset="UTF-8"' }
    : {};
  return new OAuthError('invalid_client', description, { status: 401, headers });
}

function readBasic(base64: string): Credentials {
  const text = Buffer.from(base64, 'base64').toString('utf8');
  const colon = text.indexOf(':');
  if (colon < 1) throw invalidClient('The Authorization header is not that of HTTP Basic.', true);
  const plain = { clientId: text.slice(0, colon), clientSecret: text.slice(colon + 1) };
  const decoded = { clientId: formDecode(plain.clientId), clientSecret: formDecode(plain.clientSecret) };
  const same = plain.clientId === decoded.clientId && plain.clientSecret === decoded.clientSecret;
  return {
    clientId: decoded.clientId,
    candidates: same ? [decoded] : [decoded, plain],
    method: 'client_secret_basic',
  };
}

/** Undoes application/x-www-form-urlencoded; what was not encoded in the first place stays as it is. */
function formDecode(text: string): string {
  try {
    return decodeURIComponent(text.replaceAll('+', ' '));
  } catch {
    return text;
  }
}
