import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { ConfigError, readEnv, variableNames } from './config.ts';

const key = Buffer.alloc(32, 7);

function config(env: Record<string, string> = {}) {
  return readEnv(env, '/srv/sds').config;
}

function secrets(env: Record<string, string> = {}) {
  return readEnv(env, '/srv/sds').secrets;
}

/** The faults of an environment, which must have some. */
function faults(env: Record<string, string>): string[] {
  try {
    readEnv(env, '/srv/sds');
  } catch (error) {
    if (error instanceof ConfigError) return error.faults;
    throw error;
  }
  throw new Error('no fault was found');
}

test('an empty environment is the documented default: embedded database, all data below ./data', () => {
  expect(readEnv({}, '/srv/sds')).toEqual({
    config: {
      host: '127.0.0.1',
      port: 8080,
      publicUrl: null,
      dataDir: '/srv/sds/data',
      database: { kind: 'embedded', dir: '/srv/sds/data' },
      objectStore: 'file:///srv/sds/data/objects',
      workers: 2,
      logLevel: 'info',
      bodyLimitBytes: 8_388_608,
      tokenTtlS: 3600,
      retiredVersions: ['v0'],
      requireChangeReason: false,
      oidc: null,
      fileRoots: [],
      cloudEndpoints: [],
      cloudIdleTimeoutMs: 30_000,
      imageJobsPerClient: 10,
      filesInParallel: 4,
      downloadRedirect: false,
    },
    secrets: {
      databaseUrl: null,
      masterKey: { kind: 'file', path: '/srv/sds/data/master.key', create: true },
      bootstrapClient: null,
      metricsToken: null,
    },
  });
});

test('an empty variable is an unset one', () => {
  const empty = Object.fromEntries(variableNames.map((name) => [name, '']));
  expect(readEnv(empty, '/srv/sds')).toEqual(readEnv({}, '/srv/sds'));
});

test('every variable that exists is read, and no other', () => {
  const read = new Set<string>();
  const env = new Proxy({}, { get: (_, name) => void read.add(String(name)) });
  readEnv(env, '/srv/sds');
  expect([...read].sort()).toEqual([...variableNames].sort());
});

test('.env.example lists every variable that exists, each with a comment, and no other', () => {
  const lines = readFileSync(new URL('../.env.example', import.meta.url), 'utf8').split('\n');
  const listed = lines.flatMap((line, i) => {
    const name = /^#?(SDS_\w+)=/.exec(line)?.[1];
    return name ? [{ name, comment: lines[i - 1] }] : [];
  });
  expect(listed.map(({ name }) => name)).toEqual([...variableNames]);
  expect(listed.filter(({ comment }) => !/^# \w/.test(comment ?? ''))).toEqual([]);
});

test('all faults are listed at once, one line each, naming the variable and an example', () => {
  const found = faults({ SDS_PORT: '65536', SDS_WORKERS: '-1', SDS_LOG_LEVEL: 'loud', SDS_PROT: '1' });
  expect(found.map((line) => line.split(' ')[0]).sort()).toEqual([
    'SDS_LOG_LEVEL',
    'SDS_PORT',
    'SDS_PROT',
    'SDS_WORKERS',
  ]);
  expect(found).toContain('SDS_PORT must be a whole number from 0 to 65535, such as 8080.');
  expect(new ConfigError(found).message.split('\n')).toHaveLength(5);
});

test('a variable that does not exist is a fault that names the one that was meant; SDS_TEST_ is left to tests', () => {
  expect(faults({ SDS_DATABSE_URL: 'x' })).toEqual([
    'SDS_DATABSE_URL is not a variable of this service; SDS_DATABASE_URL is.',
  ]);
  expect(config({ SDS_TEST_ANYTHING: 'x', PATH: '/bin' }).port).toBe(8080);
});

test('no fault shows the value of a variable', () => {
  const secret = 'hunter2 é';
  const env = Object.fromEntries(variableNames.map((name) => [name, secret]));
  const found = faults(env);
  expect(found.length).toBeGreaterThan(15);
  expect(found.join()).not.toContain('hunter2');
});

test.each(['true', '1'])('a switch is on by %s', (value) => {
  expect(config({ SDS_DOWNLOAD_REDIRECT: value, SDS_REQUIRE_CHANGE_REASON: value })).toMatchObject({
    downloadRedirect: true,
    requireChangeReason: true,
  });
});

test('a switch is off by false and 0, and anything else is a fault', () => {
  expect(config({ SDS_DOWNLOAD_REDIRECT: 'false' }).downloadRedirect).toBe(false);
  expect(config({ SDS_DOWNLOAD_REDIRECT: '0' }).downloadRedirect).toBe(false);
  expect(faults({ SDS_DOWNLOAD_REDIRECT: 'yes' })).toHaveLength(1);
});

test.each([
  ['8388608', 8_388_608],
  ['8MiB', 8_388_608],
  ['16 MiB', 16_777_216],
  ['512kib', 524_288],
])('a body limit of %s is %i bytes', (text, bytes) => {
  expect(config({ SDS_BODY_LIMIT: text }).bodyLimitBytes).toBe(bytes);
});

test.each(['8MB', '0', '1.5MiB', '300MiB', '8MiBs'])('a body limit of %s is a fault', (text) => {
  expect(faults({ SDS_BODY_LIMIT: text })).toHaveLength(1);
});

test.each([
  ['hexadecimal', key.toString('hex')],
  ['base64', key.toString('base64')],
  ['base64url', key.toString('base64url')],
])('the master key is 32 bytes as %s', (_, text) => {
  expect(secrets({ SDS_MASTER_KEY: text }).masterKey).toEqual({ kind: 'inline', key });
});

test.each([key.toString('hex').slice(2), key.toString('base64').slice(4), 'é'.repeat(32)])(
  'a master key of another length or form is a fault (%#)',
  (text) => {
    expect(faults({ SDS_MASTER_KEY: text })).toHaveLength(1);
  },
);

test('several master keys are separated by commas: the first is the one to encrypt by', () => {
  const next = Buffer.alloc(32, 9);
  const SDS_MASTER_KEY = `${next.toString('base64')}, ${key.toString('hex')}`;
  expect(secrets({ SDS_MASTER_KEY }).masterKey).toEqual({ kind: 'inline', key: next, others: [key] });
});

test('a master key file is taken from the working directory and never made', () => {
  const masterKey = secrets({ SDS_MASTER_KEY_FILE: 'keys/master' }).masterKey;
  expect(masterKey).toEqual({ kind: 'file', path: '/srv/sds/keys/master', create: false });
});

test('the master key and its file exclude each other', () => {
  expect(faults({ SDS_MASTER_KEY: key.toString('hex'), SDS_MASTER_KEY_FILE: '/k' })).toHaveLength(1);
});

test('a database by URL needs a master key, as every node must have the same', () => {
  const SDS_DATABASE_URL = 'postgres://sds:pw@db.example.org/sds';
  expect(faults({ SDS_DATABASE_URL })).toEqual([expect.stringMatching(/^SDS_MASTER_KEY or SDS_MASTER_KEY_FILE must/)]);
  const given = readEnv({ SDS_DATABASE_URL, SDS_MASTER_KEY_FILE: '/run/secrets/master' }, '/srv/sds');
  expect(given.config.database).toEqual({ kind: 'url' });
  expect(given.secrets.databaseUrl).toBe(SDS_DATABASE_URL);
});

test('a database URL may name the directory of a Unix socket, and must be one of PostgreSQL', () => {
  const url = 'postgresql://sds@/postgres?host=%2Frun%2Fpg';
  expect(secrets({ SDS_DATABASE_URL: url, SDS_MASTER_KEY_FILE: '/k' }).databaseUrl).toBe(url);
  expect(faults({ SDS_DATABASE_URL: 'mysql://db/sds', SDS_MASTER_KEY_FILE: '/k' })).toHaveLength(1);
});

test.each([
  ['file:/mnt/objects', 'file:///mnt/objects'],
  ['file:///mnt/with%20space', 'file:///mnt/with%20space'],
  ['file:objects', 'file:///srv/sds/objects'],
  ['s3://slides', 's3://slides'],
  [
    's3://slides/sds?region=eu-central-1&endpoint=http://127.0.0.1:9000&forcePathStyle=true',
    's3://slides/sds?region=eu-central-1&endpoint=http://127.0.0.1:9000&forcePathStyle=true',
  ],
])('the object store %s is taken', (text, url) => {
  expect(config({ SDS_OBJECT_STORE: text }).objectStore).toBe(url);
});

test.each([
  '/mnt/objects',
  'file:',
  'file://host/share',
  's3://',
  's3://key:secret@slides',
  's3://slides?acl=public',
  's3://slides?endpoint=minio:9000',
  's3://slides?forcePathStyle=yes',
  'gs://slides',
])('the object store %s is a fault', (text) => {
  expect(faults({ SDS_OBJECT_STORE: text })).toHaveLength(1);
});

test('file roots are opened by name, for reading alone where they end in :ro', () => {
  expect(config({ SDS_FILE_ROOTS: 'scanner=/mnt/scanner:ro, archive=/mnt/archive/' }).fileRoots).toEqual([
    { name: 'scanner', path: '/mnt/scanner', readOnly: true },
    { name: 'archive', path: '/mnt/archive', readOnly: false },
  ]);
});

test.each(['scanner', 'scanner=relative', '=/mnt', 'a=/x,a=/y', 'a=/x,', 'a b=/x'])(
  'the file roots %s are a fault',
  (text) => {
    expect(faults({ SDS_FILE_ROOTS: text })).toHaveLength(1);
  },
);

test('cloud endpoints are origins, loopback ones too', () => {
  expect(
    config({ SDS_CLOUD_ENDPOINTS: 'http://127.0.0.1:9000,https://MinIO.example.org:443/' }).cloudEndpoints,
  ).toEqual(['http://127.0.0.1:9000', 'https://minio.example.org']);
  expect(faults({ SDS_CLOUD_ENDPOINTS: 'https://minio.example.org/path' })).toHaveLength(1);
  expect(faults({ SDS_CLOUD_ENDPOINTS: 'minio.example.org' })).toHaveLength(1);
});

test('the public URL loses its last slash and must not hold the version', () => {
  expect(config({ SDS_PUBLIC_URL: 'https://lab.example.org/sds/' }).publicUrl).toBe('https://lab.example.org/sds');
  expect(faults({ SDS_PUBLIC_URL: 'https://lab.example.org/api/v1' })).toHaveLength(1);
  expect(faults({ SDS_PUBLIC_URL: 'lab.example.org' })).toHaveLength(1);
});

test('a foreign issuer is kept letter by letter, and speaks https unless it is on this machine', () => {
  const SDS_OIDC_ISSUER = 'https://login.example.org/realms/lab/';
  expect(config({ SDS_OIDC_ISSUER, SDS_OIDC_AUDIENCE: 'sds' }).oidc).toEqual({
    issuer: SDS_OIDC_ISSUER,
    audience: 'sds',
  });
  expect(config({ SDS_OIDC_ISSUER: 'http://127.0.0.1:4000' }).oidc).toEqual({
    issuer: 'http://127.0.0.1:4000',
    audience: null,
  });
  expect(faults({ SDS_OIDC_ISSUER: 'http://login.example.org' })).toHaveLength(1);
  expect(faults({ SDS_OIDC_AUDIENCE: 'sds' })).toHaveLength(1);
});

test('the secret of the first client may hold colons', () => {
  expect(secrets({ SDS_BOOTSTRAP_CLIENT: 'first:se:cret' }).bootstrapClient).toEqual({
    clientId: 'first',
    clientSecret: 'se:cret',
  });
  expect(faults({ SDS_BOOTSTRAP_CLIENT: 'first' })).toHaveLength(1);
  expect(faults({ SDS_BOOTSTRAP_CLIENT: ':secret' })).toHaveLength(1);
});

test('the version in use cannot be retired', () => {
  expect(config({ SDS_RETIRED_VERSIONS: 'v0,v2' }).retiredVersions).toEqual(['v0', 'v2']);
  expect(faults({ SDS_RETIRED_VERSIONS: 'v0,v1' })).toHaveLength(1);
});

test.each([
  ['[::1]', '::1'],
  ['::', '::'],
  ['0.0.0.0', '0.0.0.0'],
  ['localhost', 'localhost'],
])('the host %s is taken', (text, host) => {
  expect(config({ SDS_HOST: text }).host).toBe(host);
});

test.each(['http://localhost', 'a b', '127.0.0.1:8080', '-x'])('the host %s is a fault', (text) => {
  expect(faults({ SDS_HOST: text })).toHaveLength(1);
});
