import { join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { type MasterKeySource, parseMasterKey } from './lib/master-key.ts';
import { nearest } from './lib/nearest.ts';
import {
  bytesOf,
  type ClientPair,
  clientOf,
  databaseUrlOf,
  type FileRoot,
  fileRootOf,
  hostOf,
  inRange,
  issuerOf,
  objectStoreOf,
  originOf,
  publicUrlOf,
  switches,
} from './lib/settings.ts';

/** Everything that may be shown; see `.env.example` for the variables. */
export interface Config {
  /** Address to listen on. */
  host: string;
  /** TCP port; 0 = any that is free. */
  port: number;
  /** Address that clients reach the service by, without a slash at its end; null = taken from the request. */
  publicUrl: string | null;
  /** Absolute path. */
  dataDir: string;
  /** The URL of a database holds its password, so it is in {@link Secrets}. */
  database: { kind: 'embedded'; dir: string /* the data directory */ } | { kind: 'url' };
  /** `file:///absolute/path` or `s3://bucket/prefix?…`. */
  objectStore: string;
  /** Export and image jobs at once in this process; 0 = API only. */
  workers: number;
  logLevel: LogLevel;
  bodyLimitBytes: number;
  /** Lifetime of an access token in seconds. */
  tokenTtlS: number;
  /** Path segments that answer 410 (decisions §3). */
  retiredVersions: string[];
  /** Whether PUT and DELETE of study data need X-Change-Reason (decisions §7). */
  requireChangeReason: boolean;
  /** The foreign issuer whose tokens are accepted instead of our own (decisions §6). */
  oidc: { issuer: string; audience: string | null } | null;
  /** Directory trees that credentials of the provider FILE may name (decisions §5). */
  fileRoots: FileRoot[];
  /** Origins that credentials may give as their endpoint (decisions §5). */
  cloudEndpoints: string[];
  cloudIdleTimeoutMs: number;
  /** CREATED or RUNNING image jobs that one client may have. */
  imageJobsPerClient: number;
  /** Files that one image job copies at once. */
  filesInParallel: number;
  /** Whether downloads redirect to the object store where it can sign URLs. */
  downloadRedirect: boolean;
}

/** What must never be shown, logged or answered. */
export interface Secrets {
  databaseUrl: string | null;
  masterKey: MasterKeySource;
  /** A first client with all scopes, made only while there is none. */
  bootstrapClient: ClientPair | null;
  /** Bearer token that `/metrics` asks for; null = open. */
  metricsToken: string | null;
}

export interface Settings {
  config: Config;
  secrets: Secrets;
}

const logLevels = ['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent'] as const;
export type LogLevel = (typeof logLevels)[number];

/** Every variable of the service, in the order of `.env.example`. */
export const variableNames = [
  'SDS_HOST',
  'SDS_PORT',
  'SDS_PUBLIC_URL',
  'SDS_DATA_DIR',
  'SDS_DATABASE_URL',
  'SDS_OBJECT_STORE',
  'SDS_MASTER_KEY',
  'SDS_MASTER_KEY_FILE',
  'SDS_WORKERS',
  'SDS_LOG_LEVEL',
  'SDS_BODY_LIMIT',
  'SDS_TOKEN_TTL_S',
  'SDS_RETIRED_VERSIONS',
  'SDS_REQUIRE_CHANGE_REASON',
  'SDS_OIDC_ISSUER',
  'SDS_OIDC_AUDIENCE',
  'SDS_BOOTSTRAP_CLIENT',
  'SDS_FILE_ROOTS',
  'SDS_CLOUD_ENDPOINTS',
  'SDS_CLOUD_IDLE_TIMEOUT_S',
  'SDS_IMAGE_JOBS_PER_CLIENT',
  'SDS_FILES_IN_PARALLEL',
  'SDS_DOWNLOAD_REDIRECT',
  'SDS_METRICS_TOKEN',
] as const;
type Variable = (typeof variableNames)[number];

/** All faults of the environment at once, one a line; names variables and never shows their values. */
export class ConfigError extends Error {
  readonly faults: string[];

  constructor(faults: string[]) {
    super(
      `The configuration has ${faults.length === 1 ? 'a fault' : `${faults.length} faults`}:\n${faults.join('\n')}`,
    );
    this.name = 'ConfigError';
    this.faults = faults;
  }
}

/** Turns the text of a variable into its value, or returns undefined where it is at fault. */
type Parse<T> = (text: string) => T | undefined;

/**
 * Reads the whole configuration from an environment; relative paths are taken from `cwd`. An empty variable is an unset
 * one. Throws {@link ConfigError} for values at fault and for variables called `SDS_…` that do not exist, as a misspelt
 * one must not be ignored; `SDS_TEST_…` is left to tests.
 */
export function readEnv(env: Record<string, string | undefined>, cwd: string): Settings {
  const faults: string[] = [];
  const fault = (name: string, what: string) => faults.push(`${name} ${what}`);
  const text = (name: Variable): string | null => env[name] || null;

  /** The variable's value, or `fallback` where it is unset or at fault; `rule` says what it must be, with an example. */
  function read<T, F>(name: Variable, fallback: F, parse: Parse<T>, rule: string): T | F {
    const given = text(name);
    if (given === null) return fallback;
    const value = parse(given);
    if (value === undefined) fault(name, `must be ${rule}.`);
    return value ?? fallback;
  }
  function integer(name: Variable, fallback: number, min: number, max: number): number {
    const rule = `a whole number from ${min} to ${max}, such as ${fallback}`;
    return read(name, fallback, (given) => inRange(/^\d{1,15}$/.test(given) ? Number(given) : NaN, min, max), rule);
  }
  function flag(name: Variable): boolean {
    return read(name, false, (given) => switches.get(given), 'true or false (1 or 0), such as true');
  }
  /** The items of a list separated by commas. */
  function list<T>(name: Variable, fallback: T[], parse: Parse<T>, rule: string): T[] {
    const all: Parse<T[]> = (given) => {
      const items = given.split(',').map((item) => parse(item.trim()));
      return items.every((item) => item !== undefined) ? items : undefined;
    };
    return read(name, fallback, all, rule);
  }

  for (const name of Object.keys(env)) {
    if (!name.startsWith('SDS_') || name.startsWith('SDS_TEST_') || isVariable(name)) continue;
    const meant = nearest(name, variableNames);
    fault(name, `is not a variable of this service${meant ? `; ${meant} is` : ': see .env.example'}.`);
  }

  const dataDir = resolve(cwd, text('SDS_DATA_DIR') ?? 'data');
  const databaseUrl = read(
    'SDS_DATABASE_URL',
    null,
    databaseUrlOf,
    'a URL such as postgres://user:password@host:5432/sds',
  );
  const embedded = text('SDS_DATABASE_URL') === null;

  const [masterKey, ...otherMasterKeys] = list(
    'SDS_MASTER_KEY',
    [],
    (given) => parseMasterKey(given) ?? undefined,
    '32 bytes as base64 or hexadecimal, such as the output of: openssl rand -base64 32 ' +
      '(several, separated by commas, while it is replaced)',
  );
  const masterKeyFile = text('SDS_MASTER_KEY_FILE');
  if (text('SDS_MASTER_KEY') !== null && masterKeyFile !== null) {
    fault('SDS_MASTER_KEY', 'and SDS_MASTER_KEY_FILE exclude each other: set one of them.');
  } else if (text('SDS_MASTER_KEY') === null && masterKeyFile === null && !embedded) {
    fault(
      'SDS_MASTER_KEY',
      'or SDS_MASTER_KEY_FILE must be set along with SDS_DATABASE_URL, the same on every node, ' +
        'such as the output of: openssl rand -base64 32',
    );
  }

  const issuer = read('SDS_OIDC_ISSUER', null, issuerOf, 'an https URL, such as https://login.example.org/realms/lab');
  const audience = text('SDS_OIDC_AUDIENCE');
  if (audience !== null && text('SDS_OIDC_ISSUER') === null) {
    fault('SDS_OIDC_AUDIENCE', 'means nothing without SDS_OIDC_ISSUER, such as https://login.example.org/realms/lab.');
  }

  const fileRoots = list(
    'SDS_FILE_ROOTS',
    [],
    fileRootOf,
    'name=/path or name=/path:ro, such as scanner=/mnt/scanner:ro',
  );
  if (new Set(fileRoots.map((root) => root.name)).size < fileRoots.length) {
    fault('SDS_FILE_ROOTS', 'must name every root once, such as scanner=/mnt/scanner,archive=/mnt/archive:ro.');
  }

  const config: Config = {
    host: read('SDS_HOST', '127.0.0.1', hostOf, 'an address or a host name, such as 0.0.0.0'),
    port: integer('SDS_PORT', 8080, 0, 65_535),
    publicUrl: read(
      'SDS_PUBLIC_URL',
      null,
      publicUrlOf,
      'an http or https URL without /api/v1, query or user, such as https://sds.example.org',
    ),
    dataDir,
    database: embedded ? { kind: 'embedded', dir: dataDir } : { kind: 'url' },
    objectStore: read(
      'SDS_OBJECT_STORE',
      pathToFileURL(join(dataDir, 'objects')).href,
      (given) => objectStoreOf(given, cwd),
      'file:/path or s3://bucket/prefix with region, endpoint, forcePathStyle as its query and no keys in it, ' +
        'such as s3://slides/sds?region=eu-central-1',
    ),
    // 2: an export and an image job side by side do not starve the API on two cores. 64: more is a slip of the hand.
    workers: integer('SDS_WORKERS', 2, 0, 64),
    logLevel: read(
      'SDS_LOG_LEVEL',
      'info',
      (given) => logLevels.find((level) => level === given),
      `one of ${logLevels.join(', ')}`,
    ),
    // 1 KiB holds a small record; 256 MiB is what JavaScript can hold as text and its parsed value in ordinary memory.
    bodyLimitBytes: read(
      'SDS_BODY_LIMIT',
      8 * 2 ** 20,
      (given) => inRange(bytesOf(given), 2 ** 10, 2 ** 28),
      'bytes, KiB or MiB from 1KiB to 256MiB, such as 8MiB',
    ),
    // 30 days: a token that lives longer is a password.
    tokenTtlS: integer('SDS_TOKEN_TTL_S', 3600, 1, 30 * 86_400),
    retiredVersions: list(
      'SDS_RETIRED_VERSIONS',
      ['v0'],
      (item) => (/^v\d{1,4}$/.test(item) && item !== 'v1' ? item : undefined),
      'versions other than v1 separated by commas, such as v0',
    ),
    requireChangeReason: flag('SDS_REQUIRE_CHANGE_REASON'),
    oidc: issuer === null ? null : { issuer, audience },
    fileRoots,
    cloudEndpoints: list(
      'SDS_CLOUD_ENDPOINTS',
      [],
      originOf,
      'origins separated by commas, without a path, such as https://minio.example.org:9000',
    ),
    // An hour: past that a stalled connection is as good as hanging.
    cloudIdleTimeoutMs: integer('SDS_CLOUD_IDLE_TIMEOUT_S', 30, 1, 3600) * 1000,
    imageJobsPerClient: integer('SDS_IMAGE_JOBS_PER_CLIENT', 10, 1, 10_000),
    // 64 connections to one provider: more brings SlowDown instead of speed.
    filesInParallel: integer('SDS_FILES_IN_PARALLEL', 4, 1, 64),
    downloadRedirect: flag('SDS_DOWNLOAD_REDIRECT'),
  };
  const secrets: Secrets = {
    databaseUrl,
    masterKey: masterKey
      ? { kind: 'inline', key: masterKey, ...(otherMasterKeys.length > 0 && { others: otherMasterKeys }) }
      : masterKeyFile !== null
        ? { kind: 'file', path: resolve(cwd, masterKeyFile), create: false }
        : { kind: 'file', path: join(dataDir, 'master.key'), create: embedded },
    bootstrapClient: read(
      'SDS_BOOTSTRAP_CLIENT',
      null,
      clientOf,
      'clientId:clientSecret in ASCII, such as first-client:a-long-random-secret',
    ),
    metricsToken: read(
      'SDS_METRICS_TOKEN',
      null,
      (given) => (/^[\x21-\x7e]+$/.test(given) ? given : undefined),
      'ASCII without spaces, such as the output of: openssl rand -hex 24',
    ),
  };
  if (faults.length > 0) throw new ConfigError(faults);
  return { config, secrets };
}

function isVariable(name: string): name is Variable {
  return (variableNames as readonly string[]).includes(name);
}
