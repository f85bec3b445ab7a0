import { isDeepStrictEqual } from 'node:util';
import type { Tx } from '../db/database.ts';
import { sealSecret } from '../db/master-key.ts';
import { checkVersion } from '../http/headers.ts';
import type { Call } from '../http/operation.ts';
import type { Findings } from '../http/validate.ts';
import type { Sealed } from '../lib/crypto.ts';
import { newId } from '../lib/id.ts';
import { conflict, notFound, rejected } from '../lib/problem.ts';
import { inspectBody, providerOf } from './inspect.ts';
import type { CredentialDeps } from './open.ts';
import {
  deleteCredential,
  findCredential,
  insertCredential,
  isInUse,
  lockCredential,
  type StoredCredential,
  secretContext,
  updateCredential,
} from './queries.ts';
import type { Provider } from './schemas.ts';

type Json = Record<string, unknown>;
type Asked = Pick<Call, 'ifMatch' | 'faults'>;

/** A body after its inspection. */
interface Body {
  name: string;
  settings: Json;
  secret?: Json;
}

interface Created extends StoredCredential {
  credentialId: string;
}

export async function createCredential(
  tx: Tx,
  deps: CredentialDeps,
  given: object,
  { faults }: Pick<Asked, 'faults'>,
): Promise<Created> {
  const provider = providerOf(given);
  const { malformed, broken } = inspectBody('create', given, provider, deps);
  if (malformed.length > 0 || !provider) throw rejected('bad-request', [...malformed, ...broken]);
  refuse([...faults, ...broken]);
  const { name, settings, secret } = given as Body;
  const credentialId = newId();
  const sealed = secret ? await sealedSecret(tx, deps, credentialId, secret) : null;
  await insertCredential(tx, credentialId, provider, { name, settings: JSON.stringify(settings), secret: sealed });
  return { credentialId, ...((await findCredential(tx, credentialId)) as StoredCredential) };
}

/** PUT: a full update, but for the secret, which stays where the body has none (decisions §5). */
export async function replaceCredential(
  tx: Tx,
  deps: CredentialDeps,
  credentialId: string,
  given: object,
  { ifMatch, faults }: Asked,
): Promise<StoredCredential & { changes: unknown }> {
  const inspect = (provider: Provider | null) => judge(inspectBody('update', given, provider, deps));
  // What names its provider is judged before the record is looked for, as everywhere (decisions §8).
  const named = 'provider' in given ? inspect(providerOf(given)) : null;
  const stored = await locked(tx, credentialId);
  const before = JSON.parse(stored.record) as Body & { provider: Provider };
  const broken = named ?? inspect(before.provider);
  checkVersion(ifMatch, stored.version);
  if (named && providerOf(given) !== before.provider) {
    broken.push({ pointer: '/provider', detail: `is fixed after creation: ${before.provider}` });
  }
  refuse([...faults, ...broken]);
  await requireUnused(tx, credentialId);
  const { name, settings, secret } = given as Body;
  const sealed = secret ? await sealedSecret(tx, deps, credentialId, secret) : null;
  const moved = !isDeepStrictEqual(settings, before.settings);
  const written = { name, settings: JSON.stringify(settings), secret: sealed };
  await updateCredential(tx, credentialId, written, moved || sealed !== null);
  const changes = changesOf([
    ['name', before.name, name, name !== before.name],
    ['settings', before.settings, settings, moved],
    // No more than that it was changed: not even a hash of it belongs into the log.
    ['secret', '(not shown)', '(changed)', sealed !== null],
  ]);
  return { ...((await findCredential(tx, credentialId)) as StoredCredential), changes };
}

/** The members that changed, on both sides (decisions §7). */
function changesOf(members: [name: string, before: unknown, after: unknown, changed: boolean][]) {
  const changed = members.filter(([, , , is]) => is);
  return {
    before: Object.fromEntries(changed.map(([name, before]) => [name, before])),
    after: Object.fromEntries(changed.map(([name, , after]) => [name, after])),
  };
}

export async function removeCredential(
  tx: Tx,
  credentialId: string,
  { ifMatch, faults }: Asked,
): Promise<{ changes: unknown }> {
  const { record, version } = await locked(tx, credentialId);
  checkVersion(ifMatch, version);
  refuse(faults);
  await requireUnused(tx, credentialId);
  await deleteCredential(tx, credentialId);
  return { changes: { before: JSON.parse(record), after: null } };
}

async function locked(tx: Tx, credentialId: string): Promise<StoredCredential> {
  await lockCredential(tx, credentialId);
  const stored = await findCredential(tx, credentialId);
  if (!stored) throw notFound('credential');
  return stored;
}

/** Throws the 400; hands back what is a 422 later. */
function judge({ malformed, broken }: Findings) {
  if (malformed.length > 0) throw rejected('bad-request', [...malformed, ...broken]);
  return broken;
}

function refuse(faults: Findings['broken']): void {
  if (faults.length > 0) throw rejected('validation-failed', faults);
}

/** A job that starts meanwhile holds the credential's row from before its own record exists, so one of both waits. */
async function requireUnused(tx: Tx, credentialId: string): Promise<void> {
  if (await isInUse(tx, credentialId)) {
    throw conflict('An image job that is not finished uses the credential; wait for it or cancel it.');
  }
}

function sealedSecret(tx: Tx, { masterKey }: CredentialDeps, credentialId: string, secret: Json): Promise<Sealed> {
  return sealSecret(tx, masterKey, JSON.stringify(secret), secretContext(credentialId));
}
