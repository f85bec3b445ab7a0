import type { FastifyBaseLogger, FastifyPluginAsync } from 'fastify';
import type { Db } from '../db/database.ts';
import type { Gate } from '../http/gate.ts';
import type { MasterKeys } from '../lib/master-keys.ts';
import { createAuthenticate } from './bearer.ts';
import { ClientStates } from './client-states.ts';
import { readState } from './clients.ts';
import { verifyForeign } from './issuer.ts';
import { Keyring } from './keys.ts';
import { authRoutes, foreignAuthRoutes, type TokenOutcome } from './routes.ts';
import { SecretChecker } from './secrets.ts';
import { Throttle } from './throttle.ts';
import { apiAudience, defaultIssuer, verifyOwn } from './tokens.ts';

export interface AuthOptions {
  db: Db;
  /** Encrypts and decrypts the signing keys. */
  masterKey: MasterKeys;
  /** SDS_PUBLIC_URL: the name in `iss` of our tokens; null: a fixed one, and addresses are those of the request. */
  publicUrl: string | null;
  /** SDS_TOKEN_TTL_S. */
  tokenTtlS: number;
  /** SDS_OIDC_ISSUER: its tokens are accepted instead of our own. Its audience is, by default, that of our own. */
  oidc: { issuer: string; audience: string | null } | null;
  log: Pick<FastifyBaseLogger, 'info' | 'warn'>;
  /** Called once for each token request, for metrics. */
  onTokenRequest?: (outcome: TokenOutcome) => void;
}

export interface Auth {
  authenticate: Gate['authenticate'];
  /** To be registered at the root, without a prefix: `/oauth/token` (also below `/api/v1`) and `/.well-known`. */
  routes: FastifyPluginAsync;
  /** Makes the signing key where there is none, and fails where it cannot be decrypted: better now than at a request. */
  start(): Promise<void>;
  close(): void;
}

/** Authentication by our own tokens or by those of a foreign issuer (decisions §6). */
export function createAuth(options: AuthOptions): Auth {
  const { db, masterKey, publicUrl, tokenTtlS, oidc, log, onTokenRequest = () => {} } = options;
  const states = new ClientStates((clientId) => readState(db, clientId));
  if (oidc) {
    const closing = new AbortController();
    const foreign = { issuer: oidc.issuer, audience: oidc.audience ?? publicUrl ?? apiAudience };
    return {
      authenticate: createAuthenticate({
        verify: verifyForeign(foreign, log, closing.signal),
        states,
        allowUnregistered: true,
      }),
      routes: foreignAuthRoutes(oidc.issuer, onTokenRequest),
      // The issuer may come up after us.
      start: async () => {},
      close: () => closing.abort(),
    };
  }
  const issuer = publicUrl ?? defaultIssuer;
  const keys = new Keyring({ db, masterKey, issuer, tokenTtlS });
  return {
    authenticate: createAuthenticate({ verify: verifyOwn(keys), states, allowUnregistered: false }),
    routes: authRoutes({
      db,
      keys,
      secrets: new SecretChecker(),
      throttle: new Throttle(),
      issuer,
      publicUrl,
      tokenTtlS,
      onTokenRequest,
    }),
    start: async () => {
      await keys.signer();
    },
    close: () => keys.close(),
  };
}
