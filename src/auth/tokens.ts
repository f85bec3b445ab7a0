import { decodeJwt, decodeProtectedHeader, errors, jwtVerify, SignJWT } from 'jose';
import { newId } from '../lib/id.ts';
import { Problem } from '../lib/problem.ts';
import { isClientId } from './clients.ts';
import { algorithm, type Keyring } from './keys.ts';
import { formatScopes, type Scope } from './scopes.ts';

/** What a verified token says of its bearer. */
export interface VerifiedToken {
  clientId: string;
  /** As the token says; the client's own scopes bound them. */
  scopes: ReadonlySet<string>;
  /** In milliseconds since 1970. */
  expiresAt: number;
}

/** Verifies everything of a token but what may change while it lives; throws the 401 problem. */
export type VerifyToken = (token: string) => Promise<VerifiedToken>;

/** The name in `iss` where no SDS_PUBLIC_URL is set: nodes may have any address, and another one after a restart. */
export const defaultIssuer = 'urn:study-data-service:issuer';
/** The one audience of our own tokens, whatever the address (RFC 9068 §3). */
export const apiAudience = 'urn:study-data-service:api';

/** A 401 for a request that did send a token (RFC 6750 §3.1). `reason` goes into a quoted string. */
export function invalidToken(reason: string, cause?: unknown): Problem {
  return new Problem('unauthorized', reason, {
    headers: { 'WWW-Authenticate': `Bearer error="invalid_token", error_description="${reason}"` },
    cause,
  });
}

/** The 401 that a fault of the token itself leads to; says only of expiry what it is, as that helps to find a clock. */
export function rejectedToken(cause: unknown): Problem {
  return invalidToken(
    cause instanceof errors.JWTExpired ? 'The access token has expired.' : 'The access token is not valid.',
    cause,
  );
}

export interface IssuedToken {
  token: string;
  expiresInS: number;
  tokenId: string;
}

/** Signs an access token by RFC 9068. */
export async function issueToken(
  keys: Keyring,
  { issuer, tokenTtlS }: { issuer: string; tokenTtlS: number },
  { clientId, scopes }: { clientId: string; scopes: Scope[] },
): Promise<IssuedToken> {
  const { keyId, key } = await keys.signer();
  const now = Math.floor(Date.now() / 1000);
  const tokenId = newId();
  const token = await new SignJWT({ client_id: clientId, scope: formatScopes(scopes) })
    .setProtectedHeader({ alg: algorithm, typ: 'at+jwt', kid: keyId })
    .setIssuer(issuer)
    .setAudience(apiAudience)
    .setSubject(clientId)
    .setJti(tokenId)
    .setIssuedAt(now)
    .setExpirationTime(now + tokenTtlS)
    .sign(key);
  return { token, expiresInS: tokenTtlS, tokenId };
}

/** Verifies tokens that a node of this service issued. Faults of the database pass through. */
export function verifyOwn(keys: Keyring): VerifyToken {
  return async (token) => {
    const { keyId, issuer } = claimed(token);
    const verifier = await keys.verifier(keyId);
    if (!verifier) throw rejectedToken(new errors.JWKSNoMatchingKey());
    const { payload } = await jwtVerify(token, verifier.key, {
      algorithms: [algorithm],
      typ: 'at+jwt',
      audience: apiAudience,
      requiredClaims: ['iss', 'sub', 'iat', 'jti', 'exp', 'client_id'],
    }).catch((cause) => {
      throw rejectedToken(cause);
    });
    // Only a token that we did sign makes us look for nodes that joined since.
    if (!verifier.issuers.includes(issuer) && !(await keys.verifier(keyId, issuer))) {
      throw rejectedToken(new Error(`The token names the issuer ${issuer}.`));
    }
    return toVerified(payload, payload.client_id, payload.scope);
  };
}

/** What an unverified token says of its key and issuer. */
function claimed(token: string): { keyId: string; issuer: string } {
  try {
    const keyId: unknown = decodeProtectedHeader(token).kid;
    const issuer: unknown = decodeJwt(token).iss;
    if (typeof keyId === 'string' && typeof issuer === 'string') return { keyId, issuer };
    throw new Error('The token does not name its key and its issuer.');
  } catch (cause) {
    throw rejectedToken(cause);
  }
}

/** Picks the claims that count from a verified token; throws the 401 problem where they are missing. */
export function toVerified(payload: { exp?: number }, clientId: unknown, scope: unknown): VerifiedToken {
  const { exp } = payload;
  if (exp === undefined || typeof clientId !== 'string' || !isClientId(clientId)) {
    throw rejectedToken(new Error('The token has no end, or names no client.'));
  }
  const names = typeof scope === 'string' ? scope.split(' ') : Array.isArray(scope) ? scope : [];
  return { clientId, scopes: new Set(names.filter((name) => typeof name === 'string')), expiresAt: exp * 1000 };
}
