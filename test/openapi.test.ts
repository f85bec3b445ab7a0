import { execFile } from 'node:child_process';
import { mkdtemp, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import Schema from 'typebox/schema';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { walkApi } from './api-walk.ts';
import { type Json, useService } from './service.ts';

const service = useService();
const run = promisify(execFile);
const root = fileURLToPath(new URL('..', import.meta.url));
const METHODS = ['get', 'put', 'post', 'delete'];

let document: Json;
let dir: string;

beforeAll(async () => {
  document = await (await fetch(`${service.url}/api/v1/openapi.json`)).json();
  dir = await mkdtemp(join(tmpdir(), 'sds-openapi-'));
  await writeFile(join(dir, 'openapi.json'), JSON.stringify(document));
});
afterAll(() => rm(dir, { recursive: true, force: true }));

/** Every operation of the document with its path. */
function operations(): { path: string; method: string; op: Json; outer: boolean }[] {
  return Object.entries<Json>(document.paths).flatMap(([path, item]) =>
    METHODS.filter((method) => item[method]).map((method) => ({
      path,
      method,
      op: item[method],
      outer: item.servers !== undefined,
    })),
  );
}

/** Fails with what is wrong where the value is not what the document says. */
function expectToFit(schema: Json, value: unknown, what: string): void {
  const [fits, errors] = Schema.Errors({ ...schema, components: document.components }, value);
  expect(errors, `${what}: ${JSON.stringify(value)?.slice(0, 500)}`).toEqual([]);
  expect(fits).toBe(true);
}

function resolve(node: Json): Json {
  if (!node?.$ref) return node;
  return node.$ref
    .slice(2)
    .split('/')
    .reduce((at: Json, key: string) => at[key], document);
}

describe('the API document', () => {
  test('passes the recommended rules of a linter', async () => {
    const cli = join(root, 'node_modules/@redocly/cli/bin/cli.js');
    const args = [cli, 'lint', '--extends', 'recommended', '--format', 'json', 'openapi.json'];
    const env = { ...process.env, REDOCLY_TELEMETRY: 'off', REDOCLY_SUPPRESS_UPDATE_NOTICE: 'true' };
    const { stdout } = await run(process.execPath, args, { cwd: dir, env, maxBuffer: 2 ** 26 }).catch((error) => error);
    const { problems } = JSON.parse(stdout.slice(stdout.indexOf('{'))) as { problems: Json[] };
    const found = problems
      .map(({ ruleId, message, location }) => `${ruleId} ${location[0]?.pointer}: ${message}`)
      // A probe and a published document have nothing that a client could do wrong.
      .filter((line) => !/^operation-4xx-response #\/paths\/~1(healthz|readyz|openapi|\.well-known)/.test(line));
    expect(found).toEqual([]);
    expect(problems.length).toBeGreaterThan(0);
  });

  test('has an operation for every route of the server, and a route for every operation', async () => {
    const ids = operations().map(({ op }) => op.operationId);
    expect(new Set(ids).size).toBe(ids.length);
    for (const { path, method, outer } of operations()) {
      const url = `${service.url}${outer ? '' : '/api/v1'}${path.replace(/\{kind\}/, 'gone').replace(/\{\w+\}/g, '0'.repeat(24))}`;
      // A method that no path has, and the answer tells those that it has.
      const allow = (await fetch(url, { method: 'PATCH', headers: await bearer() })).headers.get('allow') ?? '';
      const described = METHODS.filter((one) => document.paths[path][one]).map((one) => one.toUpperCase());
      expect(
        allow
          .split(', ')
          .filter((one) => one !== 'HEAD')
          .sort(),
        `${method} ${path}`,
      ).toEqual(described.sort());
    }
  });

  test('names a scope, a tag, an event and the problems of every operation of the API', () => {
    const tags = document.tags.map(({ name }: Json) => name);
    const { scopes } = document.components.securitySchemes.oauth2.flows.clientCredentials;
    for (const { path, op, method } of operations()) {
      expect(tags).toEqual(expect.arrayContaining(op.tags));
      if (!op.security?.[0]?.oauth2) continue;
      expect(Object.keys(scopes)).toEqual(expect.arrayContaining(op.security[0].oauth2));
      expect(op.description, path).toMatch(/audit event `[A-Z_]+`/);
      expect(Object.keys(op.responses)).toEqual(expect.arrayContaining(['400', '401', '403', '500', '503']));
      if (/\{/.test(path)) expect(Object.keys(op.responses), `${method} ${path}`).toContain('404');
      if (op.requestBody) expect(Object.keys(op.responses)).toEqual(expect.arrayContaining(['413', '415']));
      for (const content of Object.values<Json>(op.requestBody?.content ?? {})) {
        expectToFit(content.schema, content.example, `example of ${op.operationId}`);
      }
    }
  });

  test('tells a client how to ask for a file only where it has not got it', () => {
    const files = ['downloadExport', 'getSlideImage', 'getSlideThumbnail'];
    const found = operations().filter(({ op }) => files.includes(op.operationId));
    expect(found.length).toBe(files.length);
    for (const { op } of found) {
      expect(op.parameters, op.operationId).toContainEqual(
        expect.objectContaining({ in: 'header', name: 'If-None-Match', required: false }),
      );
      for (const status of [200, 304]) expect(op.responses[status]?.headers, op.operationId).toHaveProperty('ETag');
      expect(op.responses[304]).not.toHaveProperty('content');
    }
  });

  test('gives every record, body and page a name of its own', () => {
    const { schemas } = document.components;
    expect(Object.keys(schemas)).toEqual(
      expect.arrayContaining(['Study', 'StudyPage', 'Subject', 'Organ', 'Slide', 'Finding', 'Score', 'Codes']),
    );
    expect(Object.keys(schemas)).toEqual(
      expect.arrayContaining(['ExportJob', 'ImageJob', 'ImageFile', 'Credential', 'AuditEvent', 'Problem', 'Token']),
    );
    for (const { op } of operations()) {
      const json = op.requestBody?.content['application/json'];
      if (json) expect(json.schema.$ref, op.operationId).toBeTypeOf('string');
      for (const [status, response] of Object.entries<Json>(op.responses)) {
        const schema = resolve(response).content?.['application/json']?.schema;
        if (schema && op.operationId !== 'downloadExport' && op.security?.[0]?.oauth2)
          expect(schema.$ref, `${op.operationId} ${status}`).toBeTypeOf('string');
      }
    }
  });
});

async function bearer(): Promise<Record<string, string>> {
  token ??= (await service.client()).token;
  return { authorization: `Bearer ${token}` };
}
let token: string | undefined;

describe('answers of the server', () => {
  test('would be found out if they were something else', () => {
    const study = { $ref: '#/components/schemas/Study' };
    expect(() => expectToFit(study, { studyId: 'short' }, 'a wrong study')).toThrow(/a wrong study/);
  });

  test('are what the document says of each operation: status, headers, media type and schema', async () => {
    const called = new Set<string>();
    await walkApi(service, ({ method, path, answer }) => {
      const op = document.paths[path]?.[method.toLowerCase()];
      const what = `${method} ${path} ${answer.status}`;
      expect(op, what).toBeDefined();
      called.add(op.operationId);
      const response = resolve(op.responses[answer.status]);
      expect(response, `${what} is not in the document: ${answer.text.slice(0, 300)}`).toBeDefined();
      for (const name of ['etag', 'location', 'retry-after']) {
        const described = Object.keys(response.headers ?? {}).some((header) => header.toLowerCase() === name);
        expect(answer.headers.has(name), `${what} ${name}`).toBe(described);
      }
      const [mediaType = ''] = (answer.headers.get('content-type') ?? '').split(';');
      expect(Object.keys(response.content ?? { '': {} }), what).toContain(mediaType);
      if (/json$/.test(mediaType) && !/:download$/.test(path)) {
        expectToFit(response.content[mediaType].schema, answer.body, what);
      }
    });
    const all = operations().filter(({ op }) => op.security?.[0]?.oauth2);
    const studyData = all
      .filter(({ op }) => /^(Study|Audit):/.test(op.security[0].oauth2[0]))
      .map(({ op }) => op.operationId);
    const files = ['getSlideImage', 'getSlideThumbnail'];
    expect(studyData.filter((id) => !called.has(id) && !files.includes(id))).toEqual([]);
  });
});

const WALK = `
import createClient from 'openapi-fetch';
import type { paths } from './api.d.ts';

const base = process.argv[2] as string;
const api = createClient<paths>({ baseUrl: base + '/api/v1' });

function must<T>(result: { data?: T; error?: unknown; response: Response }): T {
  if (result.data === undefined) throw new Error(result.response.status + ' ' + JSON.stringify(result.error));
  return result.data;
}

const issued = must(await api.POST('/oauth/token', {
  headers: { 'Content-Type': 'application/x-www-form-urlencoded' },
  body: { grant_type: 'client_credentials', client_id: process.argv[3] as string, client_secret: process.argv[4] as string },
}));
api.use({
  onRequest({ request }) {
    request.headers.set('Authorization', 'Bearer ' + issued.access_token);
    return request;
  },
});
const { studyId } = must(await api.POST('/studies', { body: { name: '28-day oral toxicity, rat', attributes: { SPECIES: 'RAT' } } }));
const path = { studyId };
const subject = must(await api.POST('/studies/{studyId}/subjects', { params: { path }, body: { name: '1001', attributes: { SEX: 'M' } } }));
const organ = must(await api.POST('/studies/{studyId}/organs', { params: { path }, body: { subjectId: subject.subjectId, name: 'LIVER' } }));
const finding = must(await api.POST('/studies/{studyId}/findings', { params: { path }, body: { organId: organ.organId, name: 'Necrosis', severity: 'MILD' } }));
const edited = must(await api.PUT('/studies/{studyId}/subjects/{subjectId}', {
  params: { path: { studyId, subjectId: subject.subjectId }, header: { 'If-Match': '"' + subject.version + '"' } },
  body: { ...subject, attributes: { ...subject.attributes, ARMCD: '2' } },
}));
const refused = await api.DELETE('/studies/{studyId}/organs/{organId}', { params: { path: { studyId, organId: organ.organId } } });
const list = must(await api.GET('/studies/{studyId}/findings', { params: { path, query: { severity: 'MILD', pageSize: 10, sort: 'name' } } }));
let job = must(await api.POST('/studies/{studyId}/exports', { params: { path }, body: { format: 'JSON' } }));
const one = { params: { path: { studyId, exportId: job.exportId } } };
while (job.exportStatus.status !== 'COMPLETED' && job.exportStatus.status !== 'FAILED') {
  await new Promise((resolve) => setTimeout(resolve, 50));
  job = must(await api.GET('/studies/{studyId}/exports/{exportId}', one));
}
const file = must(await api.GET('/studies/{studyId}/exports/{exportId}:download', { ...one, parseAs: 'text' }));
const deleted = await api.DELETE('/studies/{studyId}/exports/{exportId}', one);
const gone = await api.DELETE('/studies/{studyId}', { params: { path } });
const missing = await api.GET('/studies/{studyId}', { params: { path } });
console.log(JSON.stringify({
  subjid: edited.attributes.SUBJID, armcd: edited.attributes.ARMCD, refused: refused.error?.type,
  total: list.paging.totalItems, same: list.items[0]?.findingId === finding.findingId, status: job.exportStatus.status,
  findings: JSON.parse(file as unknown as string).findings.length, deleted: deleted.response.status,
  gone: gone.response.status, missing: missing.error?.type,
}));
`;

describe('a client generated from the document', () => {
  test('compiles strictly and does the main job', { timeout: 120_000 }, async () => {
    await symlink(join(root, 'node_modules'), join(dir, 'node_modules'));
    await writeFile(join(dir, 'package.json'), '{"type":"module"}');
    await writeFile(join(dir, 'walk.ts'), WALK);
    const compilerOptions = {
      target: 'es2023',
      module: 'nodenext',
      strict: true,
      noUncheckedIndexedAccess: true,
      exactOptionalPropertyTypes: true,
      types: ['node'],
      outDir: 'out',
      rootDir: '.',
    };
    await writeFile(join(dir, 'tsconfig.json'), JSON.stringify({ compilerOptions, files: ['walk.ts'] }));
    const node = (...args: string[]) => run(process.execPath, args, { cwd: dir, maxBuffer: 2 ** 26 });
    await node(join(root, 'node_modules/openapi-typescript/bin/cli.js'), 'openapi.json', '-o', 'api.d.ts');
    const compiled = await node(join(root, 'node_modules/typescript-native/bin/tsc'), '-p', '.').catch(
      (error) => error,
    );
    expect(compiled.stdout).toBe('');
    const { clientId, clientSecret } = await service.client();
    const { stdout } = await node('out/walk.js', service.url, clientId, clientSecret);
    expect(JSON.parse(stdout)).toEqual({
      subjid: '1001',
      armcd: '2',
      refused: '/errors/validation-failed',
      total: 1,
      same: true,
      status: 'COMPLETED',
      findings: 1,
      deleted: 204,
      gone: 204,
      missing: '/errors/not-found',
    });
  });
});

describe('/docs', () => {
  test('shows the document with nothing from elsewhere', async () => {
    const response = await fetch(`${service.url}/docs/`);
    const html = await response.text();
    expect(response.status).toBe(200);
    expect(html).toContain('/api/v1/openapi.json');
    expect(html.match(/(?:src|href)="https?:[^"]*"/g)).toBeNull();
    expect(response.headers.get('content-security-policy')).toContain("default-src 'self'");
    for (const [, src = ''] of html.matchAll(/<script[^>]* src="([^"]+)"/g)) {
      expect((await fetch(new URL(src, `${service.url}/docs/`))).status, src).toBe(200);
    }
  });
});
