import { generateKeyPairSync } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Writable } from 'node:stream';
import { pino } from 'pino';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { readEnv } from '../src/config.ts';
import { serve } from '../src/serve.ts';
import { type Json, startService, type TestService } from './service.ts';

const path = '/cloud/credentials';
/** An id that no record has. */
const nobody = '0'.repeat(24);
const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
const pem = privateKey.export({ type: 'pkcs8', format: 'pem' }).toString();

/** A good body of each provider. */
const good = {
  S3: {
    name: 'Scanner room',
    provider: 'S3',
    settings: { region: 'eu-central-1', bucket: 'scanner-output', accessKeyId: 'AKIDEXAMPLE' },
    secret: { secretAccessKey: 'wJalrXUtnFEMI/K7MDENG', sessionToken: 'FwoGZXIvYXdzEBYaD' },
  },
  AZURE_BLOB: {
    name: 'Lab account',
    provider: 'AZURE_BLOB',
    settings: { account: 'labslides', container: 'scanner-output', endpoint: 'http://127.0.0.1:10000/labslides' },
    secret: { accountKey: 'c2VjcmV0LW9mLXRoZS1henVyZS1hY2NvdW50' },
  },
  GCS: {
    name: 'Lab project',
    provider: 'GCS',
    settings: { bucket: 'scanner-output', clientEmail: 'slides@lab.iam.gserviceaccount.com' },
    secret: { privateKey: pem },
  },
  FILE: { name: 'Share', provider: 'FILE', settings: { root: 'share' } },
} as const satisfies Record<string, Json>;

let dir: string;
let env: Record<string, string>;
let service: TestService;
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'sds-credentials-'));
  env = { SDS_FILE_ROOTS: `share=${dir}`, SDS_CLOUD_ENDPOINTS: 'http://127.0.0.1:10000', SDS_WORKERS: '0' };
  service = await startService(env);
});
afterAll(async () => {
  await service.close();
  await rm(dir, { recursive: true, force: true });
});

const create = async (body: Json): Promise<Json> => {
  const answer = await service.call('POST', path, body);
  expect(answer.status, answer.text).toBe(201);
  return answer.body;
};

/** Where the faults of an answer lie, in order. */
const pointers = (answer: Json): string[] => answer.body.errors.map((fault: Json) => fault.pointer).sort();

describe('a credential', () => {
  test.each(Object.values(good))('of $provider is created, read, updated and deleted', async (body) => {
    const answer = await service.call('POST', path, body);
    expect(answer.status, answer.text).toBe(201);
    const { credentialId } = answer.body;
    expect(answer.headers.get('location')).toBe(`/api/v1${path}/${credentialId}`);
    expect(answer.headers.get('etag')).toBe('"1"');
    const date = expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/);
    const { name, provider, settings } = body;
    const record = { credentialId, name, provider, settings, lastValidation: null, version: 1 };
    expect(answer.body).toEqual({ ...record, createdDate: date, updatedDate: date });

    const read = await service.call('GET', `${path}/${credentialId}`);
    expect(read.body).toEqual(answer.body);
    expect(read.headers.get('etag')).toBe('"1"');

    // As it was read, with one change: nothing of it is in the way.
    const written = await service.call('PUT', `${path}/${credentialId}`, { ...read.body, name: 'Another name' });
    expect(written.status, written.text).toBe(200);
    expect(written.headers.get('etag')).toBe('"2"');
    expect(written.body).toMatchObject({ name: 'Another name', provider, settings, version: 2 });

    expect((await service.call('DELETE', `${path}/${credentialId}`)).status).toBe(204);
    expect((await service.call('GET', `${path}/${credentialId}`)).status).toBe(404);
  });

  test('may have the name of another', async () => {
    await create(good.FILE);
    await create(good.FILE);
  });

  test('keeps its provider: a PUT may leave it out or repeat it, and another one is 422', async () => {
    const { credentialId } = await create(good.S3);
    const { provider, ...without } = good.S3;
    expect((await service.call('PUT', `${path}/${credentialId}`, without)).status).toBe(200);
    const other = await service.call('PUT', `${path}/${credentialId}`, good.FILE);
    expect(other.status).toBe(422);
    expect(pointers(other)).toEqual(['/provider']);
    const unfit = await service.call('PUT', `${path}/${credentialId}`, { name: 'x', settings: { root: 'share' } });
    expect(unfit.status).toBe(400);
  });

  test('keeps its secret in a PUT without one, and takes another', async () => {
    const { credentialId } = await create(good.S3);
    const stored = async () =>
      (
        await service.pool.query('select encrypted_secret from credentials where credential_id = $1', [credentialId])
      ).rows[0].encrypted_secret.toString('hex');
    const before = await stored();
    const { secret, ...without } = good.S3;
    await service.call('PUT', `${path}/${credentialId}`, without);
    expect(await stored()).toBe(before);
    await service.call('PUT', `${path}/${credentialId}`, { ...without, secret: { secretAccessKey: 'another' } });
    expect(await stored()).not.toBe(before);
  });

  test('is changed and deleted only in the version that If-Match names', async () => {
    const { credentialId } = await create(good.FILE);
    const one = `${path}/${credentialId}`;
    const stale = { headers: { 'if-match': '"7"' } };
    expect((await service.call('PUT', one, { ...good.FILE, name: '' }, stale)).status).toBe(412);
    expect((await service.call('DELETE', one, undefined, stale)).status).toBe(412);
    expect((await service.call('GET', one)).body.version).toBe(1);
    const fresh = { headers: { 'if-match': '"1"' } };
    expect((await service.call('PUT', one, good.FILE, fresh)).status).toBe(200);
  });

  test('that is not there is 404, whatever is asked of it', async () => {
    const one = `${path}/${nobody}`;
    expect((await service.call('GET', one)).status).toBe(404);
    expect((await service.call('PUT', one, good.FILE)).status).toBe(404);
    expect((await service.call('PUT', one, { name: 'x', settings: {} })).status).toBe(404);
    expect((await service.call('DELETE', one)).status).toBe(404);
    expect((await service.call('POST', `${one}:validate`)).status).toBe(404);
    expect((await service.call('POST', `${one}:validate`, { prefix: 'x'.repeat(1_025) })).status).toBe(404);
  });

  test('of two PUTs at once with one version, one is 412', async () => {
    const { credentialId } = await create(good.FILE);
    const put = (name: string) =>
      service.call('PUT', `${path}/${credentialId}`, { ...good.FILE, name }, { headers: { 'if-match': '"1"' } });
    const answers = await Promise.all(['a', 'b', 'c', 'd'].map(put));
    expect(answers.map(({ status }) => status).sort()).toEqual([200, 412, 412, 412]);
  });
});

describe('a body', () => {
  const malformed: [string, Json, string[]][] = [
    ['nothing', {}, ['/name', '/provider', '/settings']],
    ['an unknown provider', { ...good.S3, provider: 'FTP' }, ['/provider']],
    ['a provider that is no text', { ...good.S3, provider: ['S3'] }, ['/provider']],
    ['no settings', { name: 'x', provider: 'FILE' }, ['/settings']],
    ['settings that are no object', { name: 'x', provider: 'FILE', settings: 'share' }, ['/settings']],
    ['no secret', { ...good.GCS, secret: undefined }, ['/secret']],
    ['a secret of null', { ...good.GCS, secret: null }, ['/secret']],
    ['a secret where none is needed', { ...good.FILE, secret: {} }, ['/secret']],
    [
      'members of another provider, and faults in every part',
      {
        name: 7,
        provider: 'S3',
        setings: {},
        settings: { root: 'share', bucket: 1, region: '' },
        secret: { accountKey: 'x' },
      },
      [
        '/name',
        '/secret/accountKey',
        '/secret/secretAccessKey',
        '/setings',
        '/settings/accessKeyId',
        '/settings/bucket',
        '/settings/region',
        '/settings/root',
      ],
    ],
    ['neither of two secrets', { ...good.AZURE_BLOB, secret: {} }, ['/secret']],
    [
      'both of two secrets',
      { ...good.AZURE_BLOB, secret: { ...good.AZURE_BLOB.secret, sasToken: 'sv=2026&sig=x' } },
      ['/secret'],
    ],
  ];
  test.each(malformed)('with %s is 400 and names all its faults', async (_, body, expected) => {
    const answer = await service.call('POST', path, body);
    expect(answer.status, answer.text).toBe(400);
    expect(pointers(answer)).toEqual(expected);
  });

  const s3 = (settings: Json) => ({ ...good.S3, settings: { ...good.S3.settings, ...settings } });
  const azure = (settings: Json) => ({ ...good.AZURE_BLOB, settings: { ...good.AZURE_BLOB.settings, ...settings } });
  const broken: [string, Json, string[]][] = [
    ['an empty name', { ...good.FILE, name: '' }, ['/name']],
    ['a long name', { ...good.FILE, name: 'x'.repeat(256) }, ['/name']],
    ['a root that is not opened', { ...good.FILE, settings: { root: 'other' } }, ['/settings/root']],
    ['a root that is a path', { ...good.FILE, settings: { root: '../etc' } }, ['/settings/root']],
    ['a bucket that is a host', s3({ bucket: 'evil.example/x' }), ['/settings/bucket']],
    ['a region that is a host', s3({ region: 'evil.example/' }), ['/settings/region']],
    ['an access key with a line end', s3({ accessKeyId: 'A\r\nHost: x' }), ['/settings/accessKeyId']],
    ['an endpoint that is not allowed', s3({ endpoint: 'http://127.0.0.1:9' }), ['/settings/endpoint']],
    ['an endpoint that is no URL', s3({ endpoint: 'minio' }), ['/settings/endpoint']],
    ['an endpoint with a space', s3({ endpoint: 'http://127.0.0.1:10000 ' }), ['/settings/endpoint']],
    ['an endpoint with a backslash', s3({ endpoint: 'http:\\\\127.0.0.1:10000' }), ['/settings/endpoint']],
    ['an endpoint with a user', s3({ endpoint: 'http://u:p@127.0.0.1:10000' }), ['/settings/endpoint']],
    ['a metadata endpoint', s3({ endpoint: 'http://169.254.169.254/' }), ['/settings/endpoint']],
    [
      'the public endpoint of another provider',
      azure({ endpoint: 'https://s3.amazonaws.com' }),
      ['/settings/endpoint'],
    ],
    ['an account that is a host', azure({ account: 'evil.example/' }), ['/settings/account']],
    ['a container with capitals', azure({ container: 'Slides' }), ['/settings/container']],
    ['an account key that is not base64', { ...good.AZURE_BLOB, secret: { accountKey: 'ä' } }, ['/secret/accountKey']],
    ['a signature with a fragment', { ...good.AZURE_BLOB, secret: { sasToken: 'sv=1#x' } }, ['/secret/sasToken']],
    ['a private key that is none', { ...good.GCS, secret: { privateKey: 'secret' } }, ['/secret/privateKey']],
    [
      'several faults',
      { ...s3({ region: '!', endpoint: 'http://127.0.0.1:9' }), name: '' },
      ['/name', '/settings/endpoint', '/settings/region'],
    ],
  ];
  test.each(broken)('with %s is 422 and names all its faults', async (_, body, expected) => {
    const answer = await service.call('POST', path, body);
    expect(answer.status, answer.text).toBe(422);
    expect(pointers(answer)).toEqual(expected);
  });

  test('of a PUT is judged in the same way', async () => {
    const { credentialId } = await create(good.S3);
    const put = (body: Json) => service.call('PUT', `${path}/${credentialId}`, body);
    expect(pointers(await put({ name: 'x' }))).toEqual(['/settings']);
    const answer = await put({ ...s3({ endpoint: 'http://127.0.0.1:9' }), name: '' });
    expect(answer.status).toBe(422);
    expect(pointers(answer)).toEqual(['/name', '/settings/endpoint']);
  });

  test('never comes back with its secret in a problem', async () => {
    const secret = 'hunter2-hunter2';
    const answers = await Promise.all([
      service.call('POST', path, { ...good.AZURE_BLOB, secret: { accountKey: `${secret}ä` } }),
      service.call('POST', path, { ...good.GCS, secret: { privateKey: secret } }),
      service.call('POST', path, { ...good.S3, secret: { secretAccessKey: `${secret} ` } }),
      service.call('POST', path, { ...good.S3, secret }),
      service.call('POST', path, undefined, { raw: `{"secret": "${secret}"` }),
    ]);
    expect(answers.map(({ status }) => status)).toEqual([422, 422, 422, 400, 400]);
    for (const { text } of answers) expect(text).not.toContain(secret);
  });
});

describe('the list', () => {
  test('is sorted by date or name, and filtered by provider', async () => {
    const named = await Promise.all(['b', 'a', 'c'].map((name) => create({ ...good.GCS, name: `list ${name}` })));
    const ids = async (query: string): Promise<string[]> => {
      const answer = await service.call('GET', `${path}?pageSize=100&${query}`);
      expect(answer.status, answer.text).toBe(200);
      return answer.body.items.map((item: Json) => item.credentialId);
    };
    const gcs = await ids('provider=GCS');
    expect(gcs.sort()).toEqual(named.map((one) => one.credentialId).sort());
    const byName = await ids('provider=GCS&sort=name');
    expect(byName).toEqual(
      ['list a', 'list b', 'list c'].map((name) => named.find((one) => one.name === name)?.credentialId),
    );
    expect(await ids('provider=GCS&sort=name&sortDirection=DESC')).toEqual(byName.toReversed());
    const all = await service.call('GET', `${path}?pageSize=100`);
    const dates = all.body.items.map((item: Json) => item.createdDate);
    expect(dates).toEqual([...dates].sort());
    expect(all.body.paging.totalItems).toBeGreaterThan(gcs.length);
    const first = await service.call('GET', `${path}?pageSize=2&sort=name&provider=GCS`);
    const next = first.body.paging.links.next.split('/api/v1')[1];
    expect((await service.call('GET', next)).body.items.map((item: Json) => item.name)).toEqual(['list c']);
    expect((await service.call('GET', `${path}?provider=FTP`)).status).toBe(400);
    expect((await service.call('GET', `${path}?sort=updatedDate`)).status).toBe(400);
  });
});

describe('scopes', () => {
  test.each([
    ['GET', path, 'Credential:Read', undefined],
    ['POST', path, 'Credential:Write', good.FILE],
    ['GET', `${path}/${nobody}`, 'Credential:Read', undefined],
    ['PUT', `${path}/${nobody}`, 'Credential:Write', good.FILE],
    ['POST', `${path}/${nobody}:validate`, 'Credential:Write', undefined],
    ['DELETE', `${path}/${nobody}`, 'Credential:Delete', undefined],
  ] as const)('%s %s needs %s', async (method, url, scope, body) => {
    const others = (['Credential:Read', 'Credential:Write', 'Credential:Delete'] as const).filter(
      (one) => one !== scope,
    );
    const { token } = await service.client(...others);
    const answer = await service.call(method, url, body, { token });
    expect(answer.status).toBe(403);
    expect(answer.body.detail).toBe(`Missing scope ${scope.replace(':', '_').toUpperCase()}.`);
    const { token: fit } = await service.client(scope);
    expect((await service.call(method, url, body, { token: fit })).status).not.toBe(403);
  });
});

describe('events', () => {
  test('tell of every write what changed, and of a secret only that it did', async () => {
    const { credentialId } = await create(good.S3);
    const one = `${path}/${credentialId}`;
    await service.call('PUT', one, { ...good.S3, name: 'New', settings: { ...good.S3.settings, bucket: 'another' } });
    await service.call('DELETE', one);
    const { body } = await service.call('GET', `/audit/events?resourceId=${credentialId}`);
    const written = body.items.filter((event: Json) => event.event.startsWith('CLOUD_'));
    expect(written.map((event: Json) => [event.event, event.status, event.resourceType])).toEqual([
      ['CLOUD_CREDENTIAL_CREATED', 201, 'credential'],
      ['CLOUD_CREDENTIAL_UPDATED', 200, 'credential'],
      ['CLOUD_CREDENTIAL_DELETED', 204, 'credential'],
    ]);
    expect(written[1].changes).toEqual({
      before: { name: 'Scanner room', settings: good.S3.settings, secret: '(not shown)' },
      after: { name: 'New', settings: { ...good.S3.settings, bucket: 'another' }, secret: '(changed)' },
    });
    expect(written[2].changes).toMatchObject({ before: { name: 'New' }, after: null });
  });
});

test('a secret is in no answer, log line, event or row, whatever is done with its credential', async () => {
  const lines: string[] = [];
  const sink = new Writable({
    write(chunk, _encoding, done) {
      lines.push(String(chunk));
      done();
    },
  });
  const settings = { ...env, SDS_PORT: '0', SDS_DATABASE_URL: service.databaseUrl, SDS_DATA_DIR: dir };
  const masterKey = Buffer.alloc(32, 7).toString('base64');
  const node = await serve(readEnv({ ...settings, SDS_MASTER_KEY: masterKey }, dir), pino({ level: 'trace' }, sink));
  const { token } = await service.client();
  const answers: string[] = [];
  const call = async (method: string, url: string, body?: Json) => {
    const response = await fetch(`${node.url}/api/v1${url}`, {
      method,
      headers: { authorization: `Bearer ${token}`, ...(body && { 'content-type': 'application/json' }) },
      ...(body && { body: JSON.stringify(body) }),
    });
    const text = await response.text();
    answers.push(text, JSON.stringify([...response.headers]));
    return text === '' ? null : JSON.parse(text);
  };
  const secrets = ['Xq7-secret-access-key', 'Xq7-session-token', 'WHE3LWF6dXJlLWtleS1rZXk=', 'Xq7sassignature'];
  const [secretAccessKey, sessionToken, accountKey, signature] = secrets as [string, string, string, string];
  const endpoint = 'http://127.0.0.1:10000';
  const bodies = [
    { ...good.S3, settings: { ...good.S3.settings, endpoint }, secret: { secretAccessKey, sessionToken } },
    { ...good.AZURE_BLOB, secret: { accountKey } },
    { ...good.AZURE_BLOB, secret: { sasToken: `sv=2026-01-01&sig=${signature}` } },
    { ...good.GCS, settings: { ...good.GCS.settings, endpoint } },
  ];
  try {
    for (const body of bodies) {
      const { credentialId } = await call('POST', path, body);
      await call('PUT', `${path}/${credentialId}`, body);
      await call('POST', `${path}/${credentialId}:validate`, { write: true });
      await call('PUT', `${path}/${credentialId}`, { ...body, name: '' });
      await call('GET', `${path}/${credentialId}`);
      await call('GET', path);
      await call('DELETE', `${path}/${credentialId}`);
      await call('POST', path, body);
    }
  } finally {
    await node.close();
  }
  const tables = ['credentials', 'audit_events', 'audit_details'];
  const rows = await Promise.all(
    tables.map(async (name) => JSON.stringify((await service.pool.query(`select to_json(t) from ${name} t`)).rows)),
  );
  // The tables have what they should have, and bytea is told in hexadecimal.
  expect(rows[0]).toContain('encrypted_secret');
  expect(rows[1]).toContain('CLOUD_CREDENTIAL_VALIDATED');
  expect(lines.length).toBeGreaterThan(20);
  const everything = [...answers, ...lines, ...rows].join('\n');
  for (const secret of [...secrets, pem.split('\n')[5] as string]) {
    const forms = [
      secret,
      Buffer.from(secret).toString('hex'),
      Buffer.from(secret).toString('base64'),
      encodeURIComponent(secret),
    ];
    for (const form of forms) expect(everything).not.toContain(form);
  }
});
