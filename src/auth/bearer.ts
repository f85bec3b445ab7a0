import type { Caller, Gate } from '../http/gate.ts';
import { Problem } from '../lib/problem.ts';
import type { ClientStates } from './client-states.ts';
import type { ClientState } from './clients.ts';
import { Recent } from './recent.ts';
import { isScope } from './scopes.ts';
import { invalidToken, type VerifiedToken, type VerifyToken } from './tokens.ts';

/** 8 KiB: ours have some 600 bytes, those of other issuers rarely 4,000. */
const maxTokenBytes = 8_192;
/** Some 10 MB of tokens at most. */
const keptTokens = 5_000;
/** A verified token is verified anew after this, so that one by a key that was withdrawn does not live on in memory. */
const trustMs = 5 * 60_000;

interface Known {
  token: VerifiedToken;
  verifiedUntil: number;
  /** The state of the client that `caller` was made from. */
  state: ClientState | null | undefined;
  caller: Caller | null;
}

/**
 * Makes `Gate.authenticate`. A token seen before costs a look-up and is answered at once; its expiry and its client's
 * state are checked each time.
 */
export function createAuthenticate(options: {
  verify: VerifyToken;
  states: ClientStates;
  /** Whether a token of a client that is not registered here is good: that of a foreign issuer is. */
  allowUnregistered: boolean;
}): Gate['authenticate'] {
  const { verify, states, allowUnregistered } = options;
  /** By the header's whole value, which saves cutting it up. */
  const knownTokens = new Recent<Known>(keptTokens);

  const admit = (known: Known): Caller | Promise<Caller> => {
    const state = states.get(known.token.clientId);
    return state instanceof Promise ? state.then((one) => callerOf(known, one)) : callerOf(known, state);
  };

  const callerOf = (known: Known, state: ClientState | null): Caller => {
    if (known.caller && known.state === state) return known.caller;
    const { clientId, scopes, expiresAt } = known.token;
    if (!state && !allowUnregistered) throw invalidToken('The client of this access token does not exist any more.');
    if (state?.disabled) throw invalidToken('The client of this access token is disabled.');
    const effective = new Set([...scopes].filter((name) => isScope(name) && (!state || state.scopes.has(name))));
    known.state = state;
    known.caller = { clientId, scopes: effective, expiresAt };
    return known.caller;
  };

  const learn = async (authorization: string): Promise<Caller> => {
    const token = await verify(bearerToken(authorization));
    const now = Date.now();
    // Some issuers' tokens are verified with a tolerance for clocks; the end of a token has none.
    if (token.expiresAt <= now) throw invalidToken('The access token has expired.');
    const known = { token, verifiedUntil: now + trustMs, state: undefined, caller: null };
    knownTokens.set(authorization, known);
    return admit(known);
  };

  return (authorization) => {
    const header = authorization ?? '';
    const known = knownTokens.get(header);
    if (!known) return learn(header);
    const now = Date.now();
    if (known.token.expiresAt <= now) throw invalidToken('The access token has expired.');
    return now < known.verifiedUntil ? admit(known) : learn(header);
  };
}

/** The token of an Authorization header (RFC 6750 §2.1); throws the 401 problem. */
function bearerToken(authorization: string): string {
  if (!/^bearer(\s|$)/i.test(authorization)) {
    throw new Problem('unauthorized', 'An access token is required: Authorization: Bearer ACCESS_TOKEN.', {
      headers: { 'WWW-Authenticate': 'Bearer' },
    });
  }
  const token = authorization.slice(7).trim();
  if (token.length > maxTokenBytes) throw invalidToken('The access token is too long.');
  if (!/^[\w.~+/-]+=*$/.test(token)) throw invalidToken('The access token is not valid.');
  return token;
}
