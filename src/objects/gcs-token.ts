import { createPrivateKey } from 'node:crypto';
import { SignJWT } from 'jose';
import { ObjectError } from './store.ts';

/** A service account of Google, as its JSON key names it. */
export interface ServiceAccount {
  clientEmail: string;
  /** RSA key, PEM; line ends may be written `\n`, as JSON does. */
  privateKey: string;
}

/** What the token endpoint said. */
export interface TokenAnswer {
  status: number;
  text: string;
}

const scope = 'https://www.googleapis.com/auth/devstorage.read_write';
const grantType = 'urn:ietf:params:oauth:grant-type:jwt-bearer';

/** 60 s before its end a token is renewed, so that no request arrives with one that has just expired. */
const renewalMs = 60_000;

/**
 * Access tokens for a service account by a signed assertion (RFC 7523 §2.1). `post` sends a form to `tokenUrl`.
 * Keeps a token until shortly before its end; `forget` drops it where the service refused it.
 */
export function tokenSource(account: ServiceAccount, tokenUrl: URL) {
  let token: { value: string; renewAt: number } | undefined;
  return {
    async get(post: (form: string) => Promise<TokenAnswer>): Promise<string> {
      if (token && Date.now() < token.renewAt) return token.value;
      const form = new URLSearchParams({ grant_type: grantType, assertion: await assertion(account, tokenUrl) });
      const answer = await post(form.toString());
      const { accessToken, expiresInS, error } = parseAnswer(answer.text);
      if (accessToken === undefined) {
        const kind = answer.status >= 500 || answer.status === 429 ? 'transient' : 'denied';
        throw new ObjectError(kind, `Google gave no token for ${account.clientEmail} (${error ?? answer.status}).`);
      }
      token = { value: accessToken, renewAt: Date.now() + expiresInS * 1000 - renewalMs };
      return accessToken;
    },
    forget(): void {
      token = undefined;
    },
  };
}

async function assertion({ clientEmail, privateKey }: ServiceAccount, tokenUrl: URL): Promise<string> {
  try {
    return await new SignJWT({ scope })
      .setProtectedHeader({ alg: 'RS256', typ: 'JWT' })
      .setIssuer(clientEmail)
      .setAudience(tokenUrl.href)
      .setIssuedAt()
      .setExpirationTime('1 hour') // the longest that Google accepts
      .sign(createPrivateKey(privateKey.replaceAll('\\n', '\n')));
  } catch {
    // Without its cause, which may quote the key.
    throw new ObjectError('denied', `The private key of ${clientEmail} is not an RSA key in PEM form.`);
  }
}

function parseAnswer(text: string): { accessToken?: string; expiresInS: number; error?: string } {
  const answer: unknown = parseJson(text);
  if (typeof answer !== 'object' || answer === null) return { expiresInS: 0 };
  const { access_token: accessToken, expires_in: expiresIn, error } = answer as Record<string, unknown>;
  return {
    expiresInS: typeof expiresIn === 'number' ? expiresIn : 0,
    ...(typeof accessToken === 'string' && { accessToken }),
    ...(typeof error === 'string' && /^\w{1,50}$/.test(error) && { error }),
  };
}

/** The value of a JSON text; undefined where it is none. */
export function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
