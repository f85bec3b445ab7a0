import type { FastifyBaseLogger } from 'fastify';
import { createLocalJWKSet, errors, type JSONWebKeySet, type JWTVerifyResult, jwtVerify } from 'jose';
import { Problem } from '../lib/problem.ts';
import { rejectedToken, toVerified, type VerifiedToken, type VerifyToken } from './tokens.ts';

/** Signatures by a private key only: a secret shared with the issuer would let us make its tokens. */
const algorithms = [
  'RS256',
  'RS384',
  'RS512',
  'PS256',
  'PS384',
  'PS512',
  'ES256',
  'ES384',
  'ES512',
  'EdDSA',
  'Ed25519',
];
/** What issuers call an access token; RFC 9068 says at+jwt, most others JWT or nothing. */
const types = new Set([undefined, 'jwt', 'at+jwt', 'application/at+jwt', 'application/jwt']);

/** Between the clocks of issuer and service, for `nbf`; the end of a token has no tolerance. */
const clockToleranceS = 60;
/** 5 s for each of at most three requests: a token that waits longer has been given up. */
const timeoutMs = 5_000;
/** Keys are read again in the background when they are older. */
const refreshMs = 10 * 60_000;
/** Keys that could not be read again for a day are no longer trusted. */
const maxAgeMs = 24 * 3_600_000;
/** After a failure the next request waits this long, so that an issuer that is down is not overrun. */
const retryMs = 1_000;
/** Unknown key ids make us read the keys again: 5 times in a row, then once in 10 s. Made-up ids thus do little harm. */
const lookups = { burst: 5, refillMs: 10_000 };

interface Keys {
  /** As its metadata name it: the form that is in `iss`. */
  issuer: string;
  find: ReturnType<typeof createLocalJWKSet>;
  /** By the monotonic clock, as are all times here. */
  readAt: number;
}

export interface ForeignIssuer {
  /** SDS_OIDC_ISSUER. */
  issuer: string;
  /** What `aud` must contain. */
  audience: string;
}

/** Verifies tokens of a foreign issuer by the keys that it publishes (decisions §6). */
export function verifyForeign(
  { issuer, audience }: ForeignIssuer,
  log: Pick<FastifyBaseLogger, 'info' | 'warn'>,
  closing: AbortSignal,
): VerifyToken {
  let keys: Keys | null = null;
  let reading: Promise<Keys> | null = null;
  let failure: { at: number; problem: Problem } | null = null;
  let budget = { left: lookups.burst, at: performance.now() };

  const read = (): Promise<Keys> => {
    reading ??= readKeys(issuer, closing)
      .then((found) => {
        if (failure || !keys) log.info({ issuer }, 'read the keys of the token issuer');
        failure = null;
        keys = found;
        return found;
      })
      .catch((cause) => {
        log.warn({ issuer, err: cause }, 'the keys of the token issuer cannot be read');
        const problem = new Problem('unavailable', 'The issuer of access tokens cannot be reached.', {
          headers: { 'Retry-After': '5' },
          cause,
        });
        failure = { at: performance.now(), problem };
        throw problem;
      })
      .finally(() => {
        reading = null;
      });
    return reading;
  };

  /** Keys to verify by, at once where there are any; throws the 503 where there are none. */
  const current = async (): Promise<Keys> => {
    const now = performance.now();
    const failedJustNow = failure !== null && now - failure.at < retryMs;
    const age = keys ? now - keys.readAt : Number.POSITIVE_INFINITY;
    if (!keys || age > maxAgeMs) {
      if (failure && failedJustNow) throw failure.problem;
      return read();
    }
    // The keys at hand serve on, and the failure is logged.
    if (age > refreshMs && !failedJustNow) read().catch(() => {});
    return keys;
  };

  const mayLookUp = (): boolean => {
    const now = performance.now();
    const left = Math.min(lookups.burst, budget.left + (now - budget.at) / lookups.refillMs);
    budget = { left: left >= 1 ? left - 1 : left, at: now };
    return left >= 1;
  };

  const check = (token: string, by: Keys): Promise<JWTVerifyResult> =>
    jwtVerify(token, by.find, {
      algorithms,
      issuer: by.issuer,
      audience,
      requiredClaims: ['exp'],
      clockTolerance: clockToleranceS,
    });

  return async (token): Promise<VerifiedToken> => {
    const known = await current();
    const result = await check(token, known)
      .catch(async (error) => {
        if (!(error instanceof errors.JWKSNoMatchingKey) || !mayLookUp()) throw error;
        return check(token, await read());
      })
      .catch((error) => {
        throw error instanceof Problem ? error : rejectedToken(error);
      });
    const { payload, protectedHeader } = result;
    if (!types.has(protectedHeader.typ?.toLowerCase())) {
      throw rejectedToken(new Error(`The token is of type ${protectedHeader.typ}.`));
    }
    return toVerified(payload, payload.client_id ?? payload.azp, payload.scope ?? payload.scp);
  };
}

async function readKeys(issuer: string, closing: AbortSignal): Promise<Keys> {
  const metadata = await discover(issuer, closing);
  const keySet = await readJson(metadata.keysUrl, closing);
  const find = createLocalJWKSet(keySet as unknown as JSONWebKeySet);
  return { issuer: metadata.issuer, find, readAt: performance.now() };
}

/** Reads the issuer's metadata (OpenID Connect Discovery §4, else RFC 8414 §3). */
async function discover(issuer: string, closing: AbortSignal): Promise<{ issuer: string; keysUrl: URL }> {
  const base = issuer.replace(/\/$/, '');
  const { origin, pathname } = new URL(base);
  const openId = new URL(`${base}/.well-known/openid-configuration`);
  const oauth = new URL(`${origin}/.well-known/oauth-authorization-server${pathname.replace(/\/$/, '')}`);
  const document = await readJson(openId, closing).catch((first: Error) =>
    readJson(oauth, closing).catch((second: Error) => {
      throw new AggregateError([first, second], `${first.message} ${second.message}`);
    }),
  );
  const { issuer: named, jwks_uri: keysUri } = document;
  // A slash at the end is all that may differ: some issuers have one that nobody writes into a configuration.
  if (typeof named !== 'string' || named.replace(/\/$/, '') !== base) {
    throw new Error(`The metadata of ${issuer} are those of another issuer.`);
  }
  if (typeof keysUri !== 'string') throw new Error(`The metadata of ${issuer} name no keys (jwks_uri).`);
  const keysUrl = new URL(keysUri);
  if (keysUrl.protocol !== 'https:' && keysUrl.protocol !== new URL(issuer).protocol) {
    throw new Error(`The keys of ${issuer} are not at an https address.`);
  }
  return { issuer: named, keysUrl };
}

async function readJson(url: URL, closing: AbortSignal): Promise<Record<string, unknown>> {
  const response = await fetch(url, {
    headers: { accept: 'application/json' },
    signal: AbortSignal.any([closing, AbortSignal.timeout(timeoutMs)]),
  });
  if (!response.ok) {
    await response.body?.cancel();
    throw new Error(`${url} answered ${response.status}.`);
  }
  const value: unknown = await response.json();
  if (typeof value !== 'object' || value === null) throw new Error(`${url} did not answer a JSON object.`);
  return value as Record<string, unknown>;
}
