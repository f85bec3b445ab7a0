import { type ChildProcess, spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdtemp, readFile, rm, stat } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { environment, exitOf, listening } from './node.ts';

// Each test starts up to a dozen processes, among them databases: seconds on an idle machine, more on a busy one.
vi.setConfig({ testTimeout: 180_000, hookTimeout: 60_000 });

const bin = fileURLToPath(new URL('../bin/sds.js', import.meta.url));

let dir: string;
let children: ChildProcess[];
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'sds-cli-'));
  children = [];
});
afterEach(async () => {
  for (const child of children.filter(({ exitCode, signalCode }) => exitCode === null && signalCode === null)) {
    child.kill('SIGTERM');
    await new Promise((resolve) => child.once('exit', resolve));
  }
  await rm(dir, { recursive: true, force: true });
});

/** The command with a data directory of the test's own. */
function start(args: string[], settings: Record<string, string> = {}) {
  const env = environment({ SDS_DATA_DIR: join(dir, 'data'), SDS_PORT: '0', ...settings });
  const child = spawn(process.execPath, [bin, ...args], { env, stdio: ['ignore', 'pipe', 'pipe'] });
  children.push(child);
  return { child, exit: exitOf(child), out: text(child.stdout), err: text(child.stderr) };
}

async function sds(args: string[], env: Record<string, string> = {}) {
  const { exit, out, err } = start(args, env);
  return { code: await exit, out: await out, err: await err };
}

/** A command's JSON; fails with its messages where it fails. */
async function sdsJson(args: string[], env: Record<string, string> = {}) {
  const { code, out, err } = await sds([...args, '--json'], env);
  expect({ code, err }).toEqual({ code: 0, err: '' });
  return JSON.parse(out);
}

/** A running `sds serve`, once it has said that it is ready. */
async function serve(env: Record<string, string> = {}) {
  const server = start(['serve'], { SDS_LOG_LEVEL: 'warn', ...env });
  const url = await listening({ stdout: server.child.stdout, exit: server.exit }).catch(async (error: Error) => {
    throw new Error(`${error.message}: ${await server.err}`);
  });
  return { ...server, url };
}

/** HTTP status of a request for a token. */
async function askForToken(url: string, { clientId, clientSecret }: { clientId: string; clientSecret: string }) {
  const body = new URLSearchParams({
    grant_type: 'client_credentials',
    client_id: clientId,
    client_secret: clientSecret,
  });
  return (await fetch(`${url}/oauth/token`, { method: 'POST', body })).status;
}

test('clients are administered beside a running server, in embedded mode too', async () => {
  const { url } = await serve();
  const scopes = ['Study:Read', 'Study:Write'];
  const made = await sdsJson(['clients', 'create', '--name', 'Lab', '--scopes', 'Study:Write Study:Read']);
  expect(Object.keys(made)).toEqual(['clientId', 'clientSecret', 'scopes']);
  expect(made.scopes).toEqual(scopes);
  expect(await askForToken(url, made)).toBe(200);

  const id = made.clientId;
  expect(await sdsJson(['clients', 'list'])).toEqual([expect.objectContaining({ clientId: id, name: 'Lab', scopes })]);
  expect(await sdsJson(['clients', 'show', id])).not.toHaveProperty('clientSecret');
  expect(await sdsJson(['clients', 'set-scopes', id, '--scopes', 'Audit:Read'])).toMatchObject({
    scopes: ['Audit:Read'],
  });
  const renewed = await sdsJson(['clients', 'rotate-secret', id]);
  expect(await askForToken(url, made)).toBe(401);
  expect(await askForToken(url, renewed)).toBe(200);
  expect(await sdsJson(['clients', 'disable', id])).toMatchObject({ disabled: true });
  expect(await askForToken(url, renewed)).toBe(401);
  expect(await sdsJson(['clients', 'enable', id])).toMatchObject({ disabled: false });
  expect(await askForToken(url, renewed)).toBe(200);
});

test('what is wrong with a client is told by the exit code: 1 where there is none, 2 for a scope that is none', async () => {
  const missing = await sds(['clients', 'show', 'nobody']);
  expect(missing).toMatchObject({ code: 1, out: '', err: expect.stringContaining('nobody') });
  const wrong = await sds(['clients', 'create', '--name', 'Lab', '--scopes', 'Study:All']);
  expect(wrong).toMatchObject({ code: 2, out: '', err: expect.stringContaining('Study:Read') });
});

test('serve prints one line, says how to make a client, and ends with 0 and without its database on SIGTERM', async () => {
  const { child, exit, out, err, url } = await serve();
  expect((await fetch(`${url}/healthz`)).status).toBe(200);
  expect(existsSync(join(dir, 'data', 'postgres', 'postmaster.pid'))).toBe(true);
  child.kill('SIGTERM');
  expect(await exit).toBe(0);
  expect(await out).toBe(`listening on ${url}\n`);
  const lines = (await err).split('\n').filter((line) => line.startsWith('{'));
  expect(lines.map((line) => JSON.parse(line).msg)).toContainEqual(expect.stringContaining('sds clients create'));
  expect(existsSync(join(dir, 'data', 'postgres', 'postmaster.pid'))).toBe(false);
});

test('a server that is stopped while it starts ends with 0 and without its database, too', async () => {
  const { child, exit, err } = start(['serve']);
  child.stderr.once('data', () => child.kill('SIGTERM'));
  expect({ code: await exit, err: await err }).toMatchObject({ code: 0, err: expect.stringContaining('PostgreSQL') });
  expect(existsSync(join(dir, 'data', 'postgres', 'postmaster.pid'))).toBe(false);
});

test('a second server on the same data directory is refused', async () => {
  const { child } = await serve();
  const second = await sds(['serve']);
  expect(second).toMatchObject({ code: 1, out: '', err: expect.stringContaining(`in use by process ${child.pid}`) });
});

test('a configured first client is made while there is none', async () => {
  const first = { clientId: 'first', clientSecret: 'of:all' };
  const { url } = await serve({ SDS_BOOTSTRAP_CLIENT: 'first:of:all' });
  expect(await askForToken(url, first)).toBe(200);
});

test('a faulty environment stops every command with all its faults', async () => {
  for (const args of [['serve'], ['clients', 'list']]) {
    const { code, out, err } = await sds(args, { SDS_WORKERS: 'many', SDS_HOTS: '::' });
    expect({ code, out }).toEqual({ code: 1, out: '' });
    expect(err).toMatch(/SDS_HOTS is not a variable/);
    expect(err).toMatch(/SDS_WORKERS must be/);
  }
});

test('migrate tells the version, and the second time that there was nothing to do', async () => {
  const first = await sdsJson(['migrate']);
  expect(first.applied).toContain(1);
  expect(first.applied).toContain(first.version);
  expect(await sdsJson(['migrate'])).toEqual({ version: first.version, applied: [] });
});

test('a database that cannot be reached is a failure that does not tell the password', async () => {
  const { code, out, err } = await sds(['migrate'], {
    SDS_DATABASE_URL: 'postgres://sds:hunter2@127.0.0.1:1/sds',
    SDS_MASTER_KEY: Buffer.alloc(32).toString('hex'),
  });
  expect({ code, out }).toEqual({ code: 1, out: '' });
  expect(err).toMatch(/cannot be reached.*\n.*ECONNREFUSED/);
  expect(err).not.toContain('hunter2');
});

test('the master key is replaced in its file, and what it encrypts is read by the new one', async () => {
  const keyFile = join(dir, 'data', 'master.key');
  const client = await sdsJson(['clients', 'create', '--name', 'Lab', '--scopes', 'Study:Read']);
  await sdsJson(['keys', 'rotate']);
  const old = await readFile(keyFile, 'utf8');
  expect(await sdsJson(['keys', 'rotate', '--master'])).toEqual({ masterKeyFile: keyFile, reencrypted: 1 });
  expect(await readFile(keyFile, 'utf8')).not.toBe(old);
  expect((await stat(keyFile)).mode & 0o777).toBe(0o600);
  expect(existsSync(`${keyFile}.new`)).toBe(false);
  const { url } = await serve();
  expect(await askForToken(url, client)).toBe(200);
});

test('a master key that is given by the environment is replaced by one in a file that is named', async () => {
  const inline = { SDS_MASTER_KEY: Buffer.alloc(32, 1).toString('base64') };
  const keyFile = join(dir, 'next.key');
  const client = await sdsJson(['clients', 'create', '--name', 'Lab', '--scopes', 'Study:Read'], inline);
  await sdsJson(['keys', 'rotate'], inline);
  expect(await sds(['keys', 'rotate', '--master'], inline)).toMatchObject({ code: 2, out: '' });
  const rotate = ['keys', 'rotate', '--master', '--new-key', keyFile];
  expect(await sdsJson(rotate, inline)).toEqual({ masterKeyFile: keyFile, reencrypted: 1 });
  expect(await sdsJson(rotate, inline)).toEqual({ masterKeyFile: keyFile, reencrypted: 0 });
  const { url } = await serve({ SDS_MASTER_KEY_FILE: keyFile });
  expect(await askForToken(url, client)).toBe(200);
});
