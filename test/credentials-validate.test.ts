import { readdir, rm } from 'node:fs/promises';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { listening, s3Keys, startClouds, strangerPem, urlOf } from './clouds.ts';
import { type Json, startService, type TestService } from './service.ts';

const path = '/cloud/credentials';
const clouds = await startClouds();
const { dir, s3, azurite, gcs, silent, redirecting, closedUrl, s3Body, azureBody, gcsBody, fileBody } = clouds;
let service: TestService;

beforeAll(async () => {
  service = await startService({ SDS_WORKERS: '0', ...clouds.env });
});
afterAll(async () => {
  await service.close();
  await clouds.close();
});

interface Outcome {
  valid: boolean;
  checkedDate: string;
  detail: string;
  checks: { name: string; ok: boolean; detail: string }[];
}

async function store(body: Json): Promise<string> {
  const answer = await service.call('POST', path, body);
  expect(answer.status, answer.text).toBe(201);
  return answer.body.credentialId;
}

async function validate(credentialId: string, options?: Json): Promise<Outcome> {
  const answer = await service.call('POST', `${path}/${credentialId}:validate`, options);
  expect(answer.status, answer.text).toBe(200);
  return answer.body;
}

/** `resolve connect authenticate list!`: the steps, with a mark at one that failed. */
const stepsOf = ({ checks }: Outcome) => checks.map(({ name, ok }) => (ok ? name : `${name}!`)).join(' ');

const reading = 'resolve connect authenticate list read';
const writing = `${reading} write delete`;

describe('a credential that works', () => {
  test.each([
    ['S3', () => s3Body()],
    ['AZURE_BLOB', () => azureBody()],
    ['GCS', () => gcsBody()],
    ['FILE', () => fileBody('share')],
  ])('of %s is valid, for reading and for writing, and nothing of the probe stays', async (_, body) => {
    const credentialId = await store(body());
    const read = await validate(credentialId);
    expect(read, read.detail).toMatchObject({ valid: true, detail: 'Everything that was tried works.' });
    expect(stepsOf(read)).toBe(reading);
    const written = await validate(credentialId, { write: true, prefix: '2026/' });
    expect(written.valid, written.detail).toBe(true);
    expect(stepsOf(written)).toBe(writing);
    expect([...s3.objects('slides').keys()].filter((key) => key.includes('validate'))).toEqual([]);
    expect([...(gcs.buckets.get('slides')?.keys() ?? [])]).toEqual([]);
    expect(await readdir(join(dir, 'share', '2026'))).toEqual(['a.svs']);
  });

  test('is valid by a shared access signature', async () => {
    const { generateBlobSASQueryParameters, ContainerSASPermissions, StorageSharedKeyCredential } = await import(
      '@azure/storage-blob'
    );
    const sign = (permissions: string) =>
      generateBlobSASQueryParameters(
        {
          containerName: 'slides',
          permissions: ContainerSASPermissions.parse(permissions),
          expiresOn: new Date(Date.now() + 3_600_000),
        },
        new StorageSharedKeyCredential(azurite.account, azurite.accountKey),
      ).toString();
    const full = await store(azureBody({}, { sasToken: sign('rlcwd') }));
    expect(stepsOf(await validate(full, { write: true }))).toBe(writing);
    const readOnly = await store(azureBody({}, { sasToken: sign('rl') }));
    expect(stepsOf(await validate(readOnly, { write: true }))).toBe(`${reading} write!`);
    const writeOnly = await store(azureBody({}, { sasToken: sign('cw') }));
    expect(stepsOf(await validate(writeOnly))).toBe('resolve connect authenticate list!');
  });

  test('takes no members: {} or no body at all, and no unknown ones', async () => {
    const credentialId = await store(fileBody('share'));
    expect((await validate(credentialId, {})).valid).toBe(true);
    const answer = await service.call('POST', `${path}/${credentialId}:validate`, { prefx: 'x', write: 'yes' });
    expect(answer.status).toBe(400);
    expect(answer.body.errors.map((fault: Json) => fault.pointer).sort()).toEqual(['/prefx', '/write']);
    const long = await service.call('POST', `${path}/${credentialId}:validate`, { prefix: 'x'.repeat(1_025) });
    expect(long.status).toBe(422);
  });

  test('refuses a prefix that begins no key of its provider, in the words of a job', async () => {
    const { studyId } = (await service.call('POST', '/studies', { name: 'A study with images' })).body;
    const errors = async (path: string, body: Json) => {
      const answer = await service.call('POST', path, body);
      expect([answer.status, answer.body.type], body.prefix).toEqual([422, '/errors/validation-failed']);
      return answer.body.errors;
    };
    const file = await store(fileBody('share'));
    const long = 'é'.repeat(512);
    for (const [credentialId, provider, prefix, write] of [
      [file, 'FILE', '../x', false],
      [file, 'FILE', '2026/../../', true],
      [file, 'FILE', '/etc/', false],
      [file, 'FILE', `${'x'.repeat(256)}/`, true],
      [await store(s3Body()), 'S3', `${long}x`, false],
      [await store(azureBody()), 'AZURE_BLOB', long, true],
    ] as const) {
      const expected = [{ pointer: '/prefix', detail: `begins no key of the provider ${provider}` }];
      expect(await errors(`${path}/${credentialId}:validate`, { prefix, write })).toEqual(expected);
      const job = `/image/jobs:${write ? 'transfer' : 'ingest'}`;
      expect(await errors(job, { studyId, credentialId, prefix })).toEqual(expect.arrayContaining(expected));
    }
    expect((await validate(file, { prefix: '', write: true })).valid).toBe(true);
    expect(stepsOf(await validate(file, { prefix: '2026/a..', write: true }))).toBe(writing);
  });

  test.each([983, 984, 1_016, 1_017, 1_023])(
    'is valid for writing below a prefix that leaves little of a key of 1,024 bytes: %i bytes',
    async (bytes) => {
      const prefix = 'slides/'.padEnd(bytes, 'x');
      for (const credentialId of await Promise.all([store(s3Body()), store(gcsBody())])) {
        const outcome = await validate(credentialId, { prefix, write: true });
        expect(stepsOf(outcome), outcome.detail).toBe(writing);
        expect(outcome.checks.at(-1)?.detail).toContain(bytes > 1_016 ? '"slides/sds-validate-' : prefix);
      }
    },
  );

  test.each([213, 214, 246, 247, 254, 255])(
    'is valid for writing below a file name that is begun, of %i bytes',
    async (bytes) => {
      const outcome = await validate(await store(fileBody('share')), {
        prefix: `2026/${'x'.repeat(bytes)}`,
        write: true,
      });
      expect(stepsOf(outcome), outcome.detail).toBe(writing);
      expect(await readdir(join(dir, 'share', '2026'))).toEqual(['a.svs']);
    },
  );

  test('makes no more calls than it needs: a list, and a read of one byte', async () => {
    s3.objects('slides').clear();
    const credentialId = await store(s3Body());
    expect((await validate(credentialId, { write: true })).valid).toBe(true);
    const before = { ...s3.stats.requests };
    const outcome = await validate(credentialId);
    expect(outcome.checks.at(-1)).toEqual({ name: 'read', ok: true, detail: 'There is no object to read.' });
    const after = s3.stats.requests;
    expect(after.list - before.list).toBe(1);
    expect(after.bucket - before.bucket + after.head - before.head + after.put - before.put).toBe(0);
  });
});

describe('a credential that does not work names the step that failed', () => {
  const wrongKey = Buffer.alloc(64, 'wrong').toString('base64');
  test.each([
    ['a wrong secret of S3', () => s3Body({}, { secretAccessKey: 'wrong-secret-0815' }), 'authenticate'],
    ['an unknown access key of S3', () => s3Body({ accessKeyId: 'NOBODY' }), 'authenticate'],
    ['a wrong account key of Azure', () => azureBody({}, { accountKey: wrongKey }), 'authenticate'],
    ['a wrong signature of Azure', () => azureBody({}, { sasToken: 'sv=2026-01-01&sig=d3Jvbmc%3D' }), 'authenticate'],
    ['a wrong private key of Google', () => gcsBody({}, { privateKey: strangerPem }), 'authenticate'],
    ['an unknown account of Google', () => gcsBody({ clientEmail: 'nobody@lab.example' }), 'authenticate'],
    ['a wrong bucket of S3', () => s3Body({ bucket: 'elsewhere' }), 'list'],
    ['a wrong container of Azure', () => azureBody({ container: 'elsewhere' }), 'list'],
    ['a wrong bucket of Google', () => gcsBody({ bucket: 'elsewhere' }), 'list'],
    ['a host without an address', () => s3Body({ endpoint: 'http://no-such-host.invalid' }), 'resolve'],
    ['an endpoint where nobody listens', () => s3Body({ endpoint: closedUrl }), 'connect'],
    ['an endpoint of Azure where nobody listens', () => azureBody({ endpoint: closedUrl }), 'connect'],
  ])('%s', async (_, body, step) => {
    const outcome = await validate(await store(body()), { write: true });
    const expected = `${writing.split(step)[0]}${step}!`;
    expect(stepsOf(outcome), outcome.detail).toBe(expected);
    expect(outcome.valid).toBe(false);
    expect(outcome.detail).toBe(`The step ${step} failed. ${outcome.checks.at(-1)?.detail}`);
    expect(JSON.stringify(outcome)).not.toMatch(/wrong-secret-0815|d3Jvbmc|PRIVATE/);
    expect(JSON.stringify(outcome)).not.toContain(wrongKey);
  });

  test('list, where that alone is not allowed', async () => {
    const credentialId = await store(s3Body());
    const fault = s3.faults.add({ on: 'list', does: 'denied', times: Number.POSITIVE_INFINITY });
    expect(stepsOf(await validate(credentialId))).toBe('resolve connect authenticate list!');
    fault.remove();
  });

  test('read, where that alone is not allowed', async () => {
    const credentialId = await store(fileBody('share'));
    expect((await validate(credentialId, { write: true })).valid).toBe(true);
    const s3Id = await store(s3Body());
    await validate(s3Id, { write: true });
    const { openS3Store } = await import('../src/objects/s3.ts');
    const { Readable } = await import('node:stream');
    const direct = openS3Store({ bucket: 'slides', endpoint: s3.url, forcePathStyle: true, credentials: s3Keys });
    await direct.write('a.svs', Readable.from([Buffer.from('bytes')]));
    await direct.close();
    const fault = s3.faults.add({ on: ['get', 'head'], does: 'denied', times: Number.POSITIVE_INFINITY });
    expect(stepsOf(await validate(s3Id))).toBe('resolve connect authenticate list read!');
    fault.remove();
    expect(stepsOf(await validate(s3Id))).toBe(reading);
  });

  test('write, at a root that is opened for reading alone', async () => {
    const credentialId = await store(fileBody('fixed'));
    expect((await validate(credentialId)).valid).toBe(true);
    expect(stepsOf(await validate(credentialId, { write: true }))).toBe(`${reading} write!`);
    expect(await readdir(join(dir, 'fixed'))).toEqual(['2026', 'a.svs']);
  });

  test('delete, where that alone is not allowed; the detail names what stays', async () => {
    const credentialId = await store(s3Body({ bucket: 'empty' }));
    const fault = s3.faults.add({ on: 'delete', does: 'denied', times: Number.POSITIVE_INFINITY });
    const outcome = await validate(credentialId, { write: true, prefix: 'p/' });
    fault.remove();
    expect(stepsOf(outcome)).toBe(`${reading} write delete!`);
    const [left] = [...s3.objects('empty').keys()];
    expect(outcome.detail).toContain(left);
  });

  test('connect, at a root that is gone', async () => {
    const credentialId = await store(fileBody('gone'));
    await rm(join(dir, 'gone'), { recursive: true });
    const outcome = await validate(credentialId);
    expect(stepsOf(outcome)).toBe('resolve connect!');
    expect(outcome.detail).not.toContain(dir);
  });

  test('resolve, at a root or an endpoint that the administrator has closed since', async () => {
    const ids = await Promise.all([fileBody('share'), s3Body()].map(store));
    await service.restart({ SDS_FILE_ROOTS: `fixed=${join(dir, 'fixed')}:ro`, SDS_CLOUD_ENDPOINTS: closedUrl });
    const outcomes = await Promise.all(ids.map((id) => validate(id)));
    await service.restart();
    expect(outcomes.map(stepsOf)).toEqual(['resolve!', 'resolve!']);
  });

  test('authenticate, where the secret was tampered with', async () => {
    const credentialId = await store(s3Body());
    const other = await store(s3Body());
    // What is sealed for one credential serves no other.
    await service.pool.query(
      'update credentials set encrypted_secret = (select encrypted_secret from credentials where credential_id = $2) where credential_id = $1',
      [credentialId, other],
    );
    const outcome = await validate(credentialId);
    expect(stepsOf(outcome)).toBe('resolve connect authenticate!');
    expect(outcome.detail).toContain('cannot be decrypted');
  });
});

describe('an endpoint that does not answer', () => {
  test('ends every validation within 15 s, and none holds a connection to the database meanwhile', async () => {
    const ids = await Promise.all(
      [s3Body, azureBody, gcsBody].map((body) =>
        store({ ...body(), settings: { ...body().settings, endpoint: silent.url } }),
      ),
    );
    const seen = silent.sockets.size;
    const start = performance.now();
    // 30: more than the service has connections to its database.
    const waiting = Array.from({ length: 30 }, (_, i) => validate(ids[i % 3] as string, { write: true }));
    await expect.poll(() => silent.sockets.size - seen, { timeout: 10_000 }).toBeGreaterThan(30);
    expect((await service.call('GET', `${path}/${ids[0]}`)).status).toBe(200);
    const outcomes = await Promise.all(waiting);
    expect(performance.now() - start).toBeLessThan(15_000);
    expect(new Set(outcomes.map(stepsOf))).toEqual(new Set(['resolve connect authenticate!']));
    for (const { detail } of outcomes) expect(detail).toContain('no answer within 12 s');
  }, 30_000);

  test('ends the validation within 15 s in the middle of it, and takes the probe away', async () => {
    const credentialId = await store(s3Body({ bucket: 'empty' }));
    s3.objects('empty').clear();
    // The object is stored, but the answer never comes.
    const fault = s3.faults.add({ on: 'put', does: 'lose-answer', times: Number.POSITIVE_INFINITY });
    const start = performance.now();
    const outcome = await validate(credentialId, { write: true });
    expect(performance.now() - start).toBeLessThan(15_000);
    fault.remove();
    expect(stepsOf(outcome)).toBe(`${reading} write!`);
    expect([...s3.objects('empty').keys()]).toEqual([]);
  }, 30_000);
});

describe('an endpoint that leads elsewhere', () => {
  test.each([
    ['S3', s3Body],
    ['Azure', azureBody],
    ['Google', gcsBody],
  ])('is not followed to where the administrator opened nothing: %s', async (_, body) => {
    let visitors = 0;
    const inside = await listening(createServer(() => void visitors++));
    redirecting.to = urlOf(inside);
    try {
      const outcome = await validate(await store(body({ endpoint: redirecting.url })), { write: true });
      expect(outcome.valid).toBe(false);
      expect(stepsOf(outcome)).toBe('resolve connect authenticate!');
      expect(visitors).toBe(0);
    } finally {
      await new Promise((resolve) => inside.close(resolve));
    }
  });
});

describe('the outcome', () => {
  test('is kept as lastValidation, without a new version, and leaves its event', async () => {
    const credentialId = await store(fileBody('share'));
    const before = (await service.call('GET', `${path}/${credentialId}`)).body;
    const { checks, ...kept } = await validate(credentialId);
    const after = (await service.call('GET', `${path}/${credentialId}`)).body;
    expect(after).toEqual({ ...before, lastValidation: kept });
    const { body } = await service.call(
      'GET',
      `/audit/events?resourceId=${credentialId}&event=CLOUD_CREDENTIAL_VALIDATED`,
    );
    expect(body.items).toMatchObject([{ status: 200, resourceType: 'credential', changes: null }]);
  });

  test('is forgotten with a change of settings or secret, and outlives a new name', async () => {
    const body = s3Body();
    const credentialId = await store(body);
    await validate(credentialId);
    const put = async (changed: Json) => {
      const answer = await service.call('PUT', `${path}/${credentialId}`, { ...body, ...changed });
      expect(answer.status, answer.text).toBe(200);
      return answer.body.lastValidation;
    };
    expect(await put({ name: 'Another', secret: undefined })).toMatchObject({ valid: true });
    expect(await put({ name: 'Another' })).toBeNull();
    await validate(credentialId);
    expect(await put({ settings: { ...body.settings, bucket: 'empty' }, secret: undefined })).toBeNull();
  });

  test('of what was changed meanwhile is told and not kept, of what was deleted it is a 404', async () => {
    const [changed, deleted] = [
      await store(s3Body({ endpoint: silent.url })),
      await store(s3Body({ endpoint: silent.url })),
    ];
    const seen = silent.sockets.size;
    const waiting = [changed, deleted].map((id) => service.call('POST', `${path}/${id}:validate`));
    // Each has made its first connection, so it has read what is changed now.
    await expect.poll(() => silent.sockets.size - seen, { timeout: 10_000 }).toBe(4);
    expect((await service.call('PUT', `${path}/${changed}`, s3Body())).status).toBe(200);
    expect((await service.call('DELETE', `${path}/${deleted}`)).status).toBe(204);
    const [told, gone] = await Promise.all(waiting);
    expect(told?.body).toMatchObject({ valid: false });
    expect((await service.call('GET', `${path}/${changed}`)).body.lastValidation).toBeNull();
    expect(gone?.status).toBe(404);
  }, 30_000);
});
