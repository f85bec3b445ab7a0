import { Readable } from 'node:stream';
import { newId } from '../lib/id.ts';
import { checkEndpoint } from '../objects/egress.ts';
import { ObjectError, type ObjectInfo, type ObjectStore } from '../objects/store.ts';
import { isKey } from './object-keys.ts';
import { type CredentialDeps, connectionOf, openStoreOf } from './open.ts';
import type { SealedCredential } from './queries.ts';
import { addressOf, connectTo, resolveHost } from './reach.ts';
import type { CloudSettings, Provider, StepName } from './schemas.ts';

/** One step and what came of it. */
interface Check {
  name: StepName;
  ok: boolean;
  detail: string;
}

interface Outcome {
  valid: boolean;
  detail: string;
  /** In their order, up to the step that failed. */
  checks: Check[];
}

/** What a client asks for: where to look, and whether to write. */
interface Asked {
  prefix?: string;
  write?: boolean;
}

/** 12 s for the steps and 2 s to take away what a step left: with the answer, that is below 15 s (decisions §5). */
const stepsMs = 12_000;
const cleaningMs = 2_000;

const probe = Buffer.from('Written by a validation of the study data service, which deletes it at once.\n');

/**
 * Tries a credential with real calls, and with no more rights than a job needs: look below the prefix, read the first
 * byte of an object there, and on request write a small object and delete it. Ends in time whatever the endpoint does,
 * and never rejects for what the endpoint does.
 */
export async function validateCredential(
  credentialId: string,
  sealed: SealedCredential,
  asked: Asked,
  deps: CredentialDeps,
): Promise<Outcome> {
  const checks: Check[] = [];
  const { signal, inTime } = deadline(stepsMs);
  let current: StepName = 'resolve';
  const step: Step = async (name, work) => {
    current = name;
    checks.push({ name, ok: true, detail: await inTime(work()) });
  };
  let opening: Promise<ObjectStore> | undefined;
  const open = () => {
    opening = connectionOf(credentialId, sealed, deps.masterKey).then((connection) => openStoreOf(connection, deps));
    return opening;
  };
  try {
    await takeSteps(step, open, { ...asked, sealed, deps, signal });
  } catch (error) {
    checks.push({ name: current, ok: false, detail: told(error, signal) });
  } finally {
    opening?.then((store) => store.close()).catch(() => {});
  }
  const failed = checks.find(({ ok }) => !ok);
  const detail = failed ? `The step ${failed.name} failed. ${failed.detail}` : 'Everything that was tried works.';
  return { valid: !failed, detail, checks };
}

/** Runs one step; `work` tells what it found. */
type Step = (name: StepName, work: () => Promise<string>) => Promise<void>;

interface Trial extends Asked {
  sealed: SealedCredential;
  deps: CredentialDeps;
  signal: AbortSignal;
}

async function takeSteps(step: Step, open: () => Promise<ObjectStore>, trial: Trial): Promise<void> {
  const { sealed, deps, signal, prefix = '' } = trial;
  let store: ObjectStore | undefined;
  if (sealed.provider === 'FILE') {
    const { root } = sealed.settings as { root: string };
    await step('resolve', async () => {
      if (deps.fileRoots.some(({ name }) => name === root)) return `The administrator opened the root ${root}.`;
      throw new ObjectError('failed', `The administrator has not opened a root ${root}.`);
    });
    await step('connect', async () => {
      store = await open();
      return 'The directory is there.';
    });
  } else {
    const cloud = { provider: sealed.provider, settings: sealed.settings } as CloudSettings;
    const { endpoint } = cloud.settings;
    const allowedOrigins = deps.cloudEndpoints;
    await step('resolve', async () => {
      const allowed = endpoint === undefined ? null : checkEndpoint(cloud.provider, endpoint, allowedOrigins);
      if (allowed && !allowed.ok) throw new ObjectError('denied', allowed.detail);
      return resolveHost(addressOf(cloud));
    });
    const rules = { provider: cloud.provider, endpoint, allowedOrigins };
    await step('connect', () => connectTo(addressOf(cloud), rules, signal));
  }
  let page: ObjectInfo[] | ObjectError = [];
  await step('authenticate', async () => {
    store ??= await open();
    page = await firstPage(store, prefix, signal).catch((error: unknown) => {
      if (error instanceof ObjectError && knowsCaller(sealed.provider, error)) return error;
      throw error;
    });
    return 'The store knows the credential.';
  });
  const found = page as ObjectInfo[] | ObjectError;
  await step('list', async () => {
    if (found instanceof ObjectError) throw found;
    return found.length > 0 ? 'There are objects.' : 'There are no objects.';
  });
  await step('read', () => readOne(store as ObjectStore, found as ObjectInfo[], signal));
  if (trial.write) await writeProbe(step, store as ObjectStore, probeKey(sealed.provider, prefix), signal);
}

async function firstPage(store: ObjectStore, prefix: string, signal: AbortSignal): Promise<ObjectInfo[]> {
  for await (const page of store.list({ prefix, signal })) return page;
  return [];
}

/** Reads the first byte of an object, where there is one. */
async function readOne(store: ObjectStore, page: ObjectInfo[], signal: AbortSignal): Promise<string> {
  // Folder markers are empty, and to read nothing proves little.
  const object = page.find(({ sizeBytes }) => sizeBytes > 0) ?? page[0];
  if (!object) return 'There is no object to read.';
  const body = await store.read(object.key, { start: 0, end: 0, signal });
  for await (const _ of body);
  return `${JSON.stringify(object.key)} can be read.`;
}

/**
 * A key below the prefix that no object has. Where a telling name does not fit, it is 8 random characters (48 bits), and
 * where not even they do, it lies in the nearest folder above.
 */
function probeKey(provider: Provider, prefix: string): string {
  const id = newId();
  const fitting = [`${prefix}sds-validate-${id}.txt`, prefix + id.slice(-8)].find((key) => isKey(provider, key));
  return fitting ?? probeKey(provider, prefix.slice(0, prefix.lastIndexOf('/', prefix.length - 2) + 1));
}

async function writeProbe(step: Step, store: ObjectStore, key: string, signal: AbortSignal): Promise<void> {
  const body = Readable.from([probe], { objectMode: false });
  const options = { contentType: 'text/plain', sizeBytes: probe.length, signal };
  try {
    await step('write', async () => {
      await store.write(key, body, options);
      return `${JSON.stringify(key)} was written.`;
    });
  } catch (error) {
    // It may be there all the same: the answer was lost, or too late.
    const late = deadline(cleaningMs);
    await late.inTime(store.delete(key, { signal: late.signal })).catch(() => {});
    throw error;
  }
  await step('delete', async () => {
    await store.delete(key, { signal });
    return `${JSON.stringify(key)} was deleted.`;
  });
}

/** An end to what may not heed its signal: `inTime` rejects with the signal's reason when it comes first. */
function deadline(ms: number): { signal: AbortSignal; inTime: <T>(work: Promise<T>) => Promise<T> } {
  const signal = AbortSignal.timeout(ms);
  const over = new Promise<never>((_, reject) => {
    signal.addEventListener('abort', () => reject(signal.reason), { once: true });
  });
  // It may come when nobody waits any more.
  over.catch(() => {});
  return { signal, inTime: (work) => Promise.race([work, over]) };
}

/** Codes of S3 for a caller that it does not know. */
const strangers =
  /^(InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|InvalidToken|TokenRefreshRequired|RequestTimeTooSkewed)$/;

/**
 * Whether the refusal of a list shows that the store knows who asks, who only may not list this, or asks for what is not
 * there. Told by the facts in parentheses at the message's end, the status and the provider's code.
 */
function knowsCaller(provider: Provider, { kind, message }: ObjectError): boolean {
  const facts = (/\(([^()]*)\)$/.exec(message)?.[1] ?? '').split(' ');
  if (facts.some((fact) => /^(NoSuchBucket|BucketNotFound|ContainerNotFound)$/.test(fact))) return true;
  if (kind !== 'denied') return false;
  if (provider === 'S3') return facts.includes('AccessDenied') || !facts.some((fact) => strangers.test(fact));
  if (provider === 'AZURE_BLOB') return facts.some((fact) => /^Authorization\w+Mismatch$/.test(fact));
  return provider === 'GCS' && facts.includes('403');
}

/** What went wrong, for a person. Only our own errors speak for themselves: others may quote a secret. */
function told(error: unknown, signal: AbortSignal): string {
  if (error instanceof ObjectError) return error.message;
  if (signal.aborted) return `There was no answer within ${stepsMs / 1_000} s.`;
  return `It met an unexpected error${error instanceof Error ? ` (${error.name})` : ''}.`;
}
