import type { FastifyPluginAsync, FastifyRequest } from 'fastify';
import { type Db, isUnavailable } from '../db/database.ts';
import { refuseOtherMethods } from '../http/methods.ts';
import { Problem } from '../lib/problem.ts';
import { type ClientLogin, readLogin } from './clients.ts';
import type { Keyring } from './keys.ts';
import { formatScopes, parseScopes, type Scope, scopeNames, UnknownScope } from './scopes.ts';
import { type SecretChecker, TooManyGuesses } from './secrets.ts';
import type { Throttle } from './throttle.ts';
import { type Credentials, invalidClient, OAuthError, readTokenRequest } from './token-request.ts';
import { issueToken } from './tokens.ts';

/** How a token request ended: `issued`, or the error code of its answer. */
export type TokenOutcome = 'issued' | OAuthError['code'];

export interface AuthRoutesOptions {
  db: Db;
  keys: Keyring;
  secrets: SecretChecker;
  throttle: Throttle;
  /** The `iss` of tokens. */
  issuer: string;
  /** SDS_PUBLIC_URL; null: addresses in answers are those of the request. */
  publicUrl: string | null;
  /** Lifetime of tokens in seconds. */
  tokenTtlS: number;
  /** Called once for each token request. */
  onTokenRequest: (outcome: TokenOutcome) => void;
}

/** 16 KiB: a token request has a few hundred bytes. */
const bodyLimit = 16_384;
/** A minute: who verifies our tokens learns of new keys soon, and does not ask for each. */
const keysMaxAgeS = 60;

/** RFC 6749 §5.1: no cache may keep a token. */
const noStore = { 'cache-control': 'no-store', pragma: 'no-cache' };

const tokenPaths = ['/oauth/token', '/api/v1/oauth/token'];

/** The token endpoint, the public keys and the server metadata (RFC 6749, RFC 7517, RFC 8414). */
export function authRoutes(options: AuthRoutesOptions): FastifyPluginAsync {
  return async (app) => {
    await app.register(tokenEndpoint(options.onTokenRequest, (request) => grant(options, request)));
    app.get('/.well-known/jwks.json', async (_request, reply) => {
      reply.header('cache-control', `public, max-age=${keysMaxAgeS}`);
      return { keys: await options.keys.publicKeys() };
    });
    app.get('/.well-known/oauth-authorization-server', async (request) => {
      const base = options.publicUrl ?? `${request.protocol}://${request.host}`;
      return {
        issuer: base,
        token_endpoint: `${base}/oauth/token`,
        jwks_uri: `${base}/.well-known/jwks.json`,
        scopes_supported: scopeNames,
        response_types_supported: [],
        grant_types_supported: ['client_credentials'],
        token_endpoint_auth_methods_supported: ['client_secret_basic', 'client_secret_post'],
        service_documentation: `${base}/docs`,
      };
    });
    for (const url of ['/.well-known/jwks.json', '/.well-known/oauth-authorization-server']) {
      refuseOtherMethods(app, url, ['GET', 'HEAD']);
    }
  };
}

/** What is there where a foreign issuer makes the tokens: a token endpoint that says so. */
export function foreignAuthRoutes(issuer: string, onTokenRequest: (outcome: TokenOutcome) => void): FastifyPluginAsync {
  return tokenEndpoint(onTokenRequest, async () => {
    throw new OAuthError('unsupported_grant_type', `Access tokens come from ${issuer}; ask its token endpoint.`);
  });
}

interface Grant {
  clientId: string;
  token: string;
  tokenId: string;
  expiresInS: number;
  scope: string;
}

function tokenEndpoint(
  count: (outcome: TokenOutcome) => void,
  work: (request: FastifyRequest) => Promise<Grant>,
): FastifyPluginAsync {
  return async (app) => {
    // Bodies are read here, as text of whatever type, so that each fault has the form that OAuth clients read.
    app.removeAllContentTypeParsers();
    app.addContentTypeParser('*', { parseAs: 'string', bodyLimit }, (_request, body, done) => done(null, body));
    app.setErrorHandler((error, request, reply) => {
      // Faults of HTTP, not of OAuth, look as everywhere else.
      if (error instanceof Problem) throw error;
      const fault = toOAuthError(error);
      count(fault.code);
      log(request, fault);
      // RFC 6749 §5.2 has a description without quotes, backslashes and all that is not ASCII.
      const body = { error: fault.code, error_description: fault.message.replace(/[^ !#-[\]-~]/g, "'") };
      return reply.code(fault.status).headers(noStore).headers(fault.headers).send(body);
    });
    for (const url of tokenPaths) {
      app.post(url, async (request, reply) => {
        const { clientId, token, tokenId, expiresInS, scope } = await work(request);
        count('issued');
        request.log.info({ clientId, tokenId, scope }, 'token issued');
        reply.headers(noStore);
        return { access_token: token, token_type: 'Bearer', expires_in: expiresInS, scope };
      });
      refuseOtherMethods(app, url, ['POST']);
    }
  };
}

function toOAuthError(error: unknown): OAuthError {
  if (error instanceof OAuthError) return error;
  if (error instanceof TooManyGuesses || isUnavailable(error)) {
    return new OAuthError('temporarily_unavailable', 'Tokens cannot be issued at the moment; try again.', {
      status: 503,
      headers: { 'Retry-After': '1' },
      cause: error,
    });
  }
  const { statusCode } = error as { statusCode?: number };
  if (statusCode !== undefined && statusCode < 500) {
    return new OAuthError('invalid_request', 'The body is too large, or not as its headers say.', { cause: error });
  }
  return new OAuthError('server_error', 'The token could not be issued.', { status: 500, cause: error });
}

function log(request: FastifyRequest, fault: OAuthError): void {
  const { code, status, cause } = fault;
  if (status >= 500) request.log.error({ error: code, err: cause }, 'token request failed');
  else request.log.warn({ error: code, reason: fault.message }, 'token request rejected');
}

/** Checks who asks, and signs the token. */
async function grant(options: AuthRoutesOptions, request: FastifyRequest): Promise<Grant> {
  const { credentials, scope } = readTokenRequest(request);
  const { clientId, login } = await identify(options, request, credentials);
  const scopes = grantedScopes(scope, login.scopes);
  const { issuer, tokenTtlS } = options;
  const issued = await issueToken(options.keys, { issuer, tokenTtlS }, { clientId, scopes });
  return { clientId, ...issued, scope: formatScopes(scopes) };
}

/** The client, if its secret is right and it is not disabled. Takes as long for one that does not exist. */
async function identify(
  { db, secrets, throttle }: AuthRoutesOptions,
  request: FastifyRequest,
  { clientId, candidates, method }: Credentials,
): Promise<{ clientId: string; login: ClientLogin }> {
  const basic = method === 'client_secret_basic';
  const waitMs = throttle.admit(clientId, request.ip);
  if (waitMs > 0) {
    const waitS = Math.ceil(waitMs / 1000);
    throw new OAuthError('slow_down', `Too many wrong secrets; try again in ${waitS} s.`, {
      status: 429,
      headers: { 'Retry-After': String(waitS) },
    });
  }
  let known: string | null = null;
  for (const candidate of candidates) {
    const login = await readLogin(db, candidate.clientId);
    if (login) known = candidate.clientId;
    if (!(await secrets.matches(candidate.clientSecret, login?.secretHash ?? null)) || !login) continue;
    throttle.succeeded(clientId, request.ip);
    if (!login.disabled) return { clientId: candidate.clientId, login };
    request.log.warn({ clientId: candidate.clientId }, 'a disabled client asks for a token');
    throw invalidClient('The client is disabled.', basic);
  }
  throttle.failed(clientId, request.ip);
  // An id that does not exist stays out of the log: it may be a secret, put into the wrong field.
  request.log.warn({ clientId: known, address: request.ip }, 'wrong client id or secret');
  throw invalidClient('The client does not exist, or its secret is wrong.', basic);
}

/** The scopes asked for, where the client has them all (RFC 6749 §3.3). */
function grantedScopes(asked: string | null, owned: Scope[]): Scope[] {
  if (asked === null) return owned;
  try {
    const scopes = parseScopes(asked);
    const missing = scopes.filter((scope) => !owned.includes(scope));
    if (missing.length === 0) return scopes.length > 0 ? scopes : owned;
    throw new OAuthError('invalid_scope', `The client does not have ${formatScopes(missing)}.`);
  } catch (error) {
    throw error instanceof UnknownScope ? new OAuthError('invalid_scope', error.message) : error;
  }
}
