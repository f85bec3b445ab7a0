import { createPrivateKey } from 'node:crypto';
import { type Findings, Inspection } from '../http/validate.ts';
import type { Fault } from '../lib/problem.ts';
import type { FileRoot } from '../lib/settings.ts';
import { checkEndpoint } from '../objects/egress.ts';
import { BodyOfUnknown, bodies, type Provider, providers } from './schemas.ts';

/** What the administrator opened to credentials. */
interface Allowed {
  fileRoots: readonly FileRoot[];
  cloudEndpoints: readonly string[];
}

/** The provider that a body names, if it is one. */
export function providerOf(body: object): Provider | null {
  const given = 'provider' in body ? body.provider : undefined;
  return providers.find((one) => one === given) ?? null;
}

/** All faults of a body, judged as that of `provider` (null: it names none that exists). */
export function inspectBody(
  kind: 'create' | 'update',
  body: object,
  provider: Provider | null,
  allowed: Allowed,
): Findings {
  const findings = new Inspection();
  findings.body(provider ? bodies[kind][provider] : BodyOfUnknown, body);
  if (!provider) return findings;
  const known = new Set([...findings.malformed, ...findings.broken].map(({ pointer }) => pointer));
  for (const [pointer, check] of Object.entries(rules[provider])) {
    const value = textAt(body, pointer);
    const detail = value === null || known.has(pointer) ? null : check(value, allowed);
    if (detail) findings.broken.push({ pointer, detail });
  }
  if (provider === 'AZURE_BLOB') findings.malformed.push(...eitherSecret(body));
  return findings;
}

/** The string at a pointer without escapes; null where there is none. */
function textAt(body: object, pointer: string): string | null {
  let value: unknown = body;
  for (const name of pointer.slice(1).split('/')) {
    if (typeof value !== 'object' || value === null || !Object.hasOwn(value, name)) return null;
    value = (value as Record<string, unknown>)[name];
  }
  return typeof value === 'string' ? value : null;
}

/** What is wrong with a well-formed value, or null. */
type Rule = (value: string, allowed: Allowed) => string | null;

function form(pattern: RegExp, detail: string): Rule {
  return (value) => (pattern.test(value) ? null : detail);
}

const endpointOf =
  (provider: 'S3' | 'AZURE_BLOB' | 'GCS'): Rule =>
  (value, { cloudEndpoints }) => {
    // The URL standard drops what is not printable; those who put paths behind the text would not.
    if (!/^https?:\/\/[!-[\]-~]+$/i.test(value)) return 'must be an http or https URL in printable ASCII';
    const checked = checkEndpoint(provider, value, cloudEndpoints);
    return checked.ok ? null : checked.detail;
  };

/** Printable ASCII: what an HTTP header can hold. */
const printable = form(/^[\x21-\x7e]+$/, 'must have printable ASCII characters only, without spaces');

/**
 * Rules beyond types and lengths, by pointer. Names of buckets, accounts and regions become parts of host names and
 * paths, so nothing but what the providers allow in them may pass.
 */
const rules: Record<Provider, Record<string, Rule>> = {
  S3: {
    '/settings/region': form(/^[0-9A-Za-z]([0-9A-Za-z_-]*[0-9A-Za-z])?$/, 'must have letters, digits, - and _ only'),
    '/settings/bucket': form(
      /^[0-9A-Za-z][0-9A-Za-z._-]+[0-9A-Za-z]$/,
      'must be the name of a bucket: 3 to 63 letters, digits, dots and hyphens',
    ),
    '/settings/endpoint': endpointOf('S3'),
    '/settings/accessKeyId': printable,
    '/secret/secretAccessKey': printable,
    '/secret/sessionToken': printable,
  },
  AZURE_BLOB: {
    '/settings/account': form(
      /^[0-9a-z]{3,24}$/,
      'must be the name of an account: 3 to 24 digits and lower-case letters',
    ),
    '/settings/container': form(
      /^(\$root|\$web|\$logs|[0-9a-z](-?[0-9a-z]){2,62})$/,
      'must be the name of a container: 3 to 63 digits, lower-case letters and single hyphens',
    ),
    '/settings/endpoint': endpointOf('AZURE_BLOB'),
    '/secret/accountKey': form(/^([0-9A-Za-z+/]{4})+([0-9A-Za-z+/]{2}==|[0-9A-Za-z+/]{3}=)?$/, 'must be base64'),
    '/secret/sasToken': form(
      /^\??([\w-]+=[^&\s#]*&)*[\w-]+=[^&\s#]*$/,
      'must be the query string of a shared access signature',
    ),
  },
  GCS: {
    '/settings/bucket': form(
      /^[0-9a-z][0-9a-z._-]+[0-9a-z]$/,
      'must be the name of a bucket: 3 to 222 digits, lower-case letters, dots, hyphens and underscores',
    ),
    '/settings/endpoint': endpointOf('GCS'),
    '/settings/clientEmail': form(/^[\x21-\x3f\x41-\x7e]+@[0-9A-Za-z.-]+$/, 'must be an e-mail address'),
    '/secret/privateKey': (value) => (isRsaKey(value) ? null : 'must be a private RSA key in PEM form'),
  },
  FILE: {
    '/settings/root': (value, { fileRoots }) =>
      fileRoots.some(({ name }) => name === value) ? null : 'is not the name of a root that the administrator opened',
  },
};

/** As Google hands keys out: PEM, whose line ends may be written `\n`. */
function isRsaKey(text: string): boolean {
  try {
    return createPrivateKey(text.replaceAll('\\n', '\n')).asymmetricKeyType === 'rsa';
  } catch {
    return false;
  }
}

/** Azure takes exactly one of two secrets (decisions §5). */
function eitherSecret(body: object): Fault[] {
  const secret = 'secret' in body ? body.secret : undefined;
  if (typeof secret !== 'object' || secret === null) return [];
  const given = ['accountKey', 'sasToken'].filter((name) => Object.hasOwn(secret, name));
  if (given.length === 1) return [];
  return [{ pointer: '/secret', detail: 'must have exactly one of accountKey and sasToken' }];
}
