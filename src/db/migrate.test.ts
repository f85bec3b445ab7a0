import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import { afterAll, beforeAll, beforeEach, expect, onTestFinished, test } from 'vitest';
import { type EmbeddedServer, openEmbedded } from './embedded.ts';
import { type Migration, migrate, readMigrations } from './migrate.ts';

let dir = '';
let server: EmbeddedServer;
let name = '';
let count = 0;

beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'migrate-'));
  server = await openEmbedded({ dir, purpose: 'tool' });
});
afterAll(async () => {
  await server.close();
  await rm(dir, { recursive: true });
});

/** Every test has a database of its own. */
beforeEach(async () => {
  const admin = await connect('postgres');
  name = `test_${++count}`;
  await admin.query(`CREATE DATABASE ${name}`);
});

async function connect(database = name): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: server.url.replace('/postgres?', `/${database}?`) });
  await client.connect();
  onTestFinished(() => client.end());
  return client;
}

async function write(files: Record<string, string>): Promise<Migration[]> {
  const place = await mkdtemp(join(dir, 'files-'));
  for (const [file, sql] of Object.entries(files)) await writeFile(join(place, file), sql);
  return readMigrations(place);
}

const first = { '0001-studies.sql': 'CREATE TABLE studies (id int); CREATE INDEX ON studies (id);' };
const second = { '0002-sites.sql': 'ALTER TABLE studies ADD site text;' };

async function columns(client: pg.Client): Promise<string[]> {
  const { rows } = await client.query<{ name: string }>(
    `SELECT column_name AS name FROM information_schema.columns WHERE table_name = 'studies' ORDER BY 1`,
  );
  return rows.map((row) => row.name);
}

test('an empty database gets every migration in order, and a row for each', async () => {
  const client = await connect();
  const said: string[] = [];
  const migrations = await write({ ...second, ...first, 'README.md': 'not a migration' });
  expect(await migrate(client, migrations, (message) => said.push(message))).toEqual({ applied: [1, 2], version: 2 });
  expect(await columns(client)).toEqual(['id', 'site']);
  expect(said).toEqual([expect.stringContaining('version 1 (studies)'), expect.stringContaining('version 2 (sites)')]);
  const { rows } = await client.query(
    'SELECT version, name, checksum, applied_date <= now() AS dated FROM sds_migrations',
  );
  expect(rows).toEqual([
    { version: 1, name: 'studies', checksum: migrations[0]?.checksum, dated: true },
    { version: 2, name: 'sites', checksum: migrations[1]?.checksum, dated: true },
  ]);
});

test('a database that is up to date is left as it is, an older one gets what is missing', async () => {
  const client = await connect();
  await migrate(client, await write(first));
  expect(await migrate(client, await write(first))).toEqual({ applied: [], version: 1 });
  expect(await migrate(client, await write({ ...first, ...second }))).toEqual({ applied: [2], version: 2 });
});

test('a migration that fails leaves no trace, and those before it stay', async () => {
  const client = await connect();
  const broken = await write({ ...first, '0002-broken.sql': 'ALTER TABLE studies ADD site text; SELECT 1 / 0;' });
  await expect(migrate(client, broken)).rejects.toThrow('Migration 2 (broken) failed: division by zero');
  expect(await columns(client)).toEqual(['id']);
  expect(await migrate(client, await write({ ...first, ...second }))).toEqual({ applied: [2], version: 2 });
});

test('a migration that ends the transaction it runs in is refused', async () => {
  const client = await connect();
  const early = await write({ ...first, '0002-early.sql': 'COMMIT; ALTER TABLE studies ADD site text;' });
  await expect(migrate(client, early)).rejects.toThrow(/Migration 2 \(early\) failed: .*transaction/);
});

test('several nodes that start at once migrate once', async () => {
  const migrations = await write({
    ...first,
    '0002-slow.sql': 'SELECT pg_sleep(0.2); ALTER TABLE studies ADD site text;',
  });
  const nodes = await Promise.all([connect(), connect(), connect(), connect()]);
  const results = await Promise.all(nodes.map((client) => migrate(client, migrations)));
  expect(results.flatMap(({ applied }) => applied).sort()).toEqual([1, 2]);
  expect(results.map(({ version }) => version)).toEqual([2, 2, 2, 2]);
});

test('a migration that was changed after it was applied is refused, and nothing changes', async () => {
  const client = await connect();
  await migrate(client, await write(first));
  const changed = await write({ '0001-studies.sql': 'CREATE TABLE studies (id bigint);', ...second });
  await expect(migrate(client, changed)).rejects.toThrow(/Migration 1 \(studies\) is not the one that was applied/);
  expect(await columns(client)).toEqual(['id']);
});

test('a database newer than the code is refused', async () => {
  const client = await connect();
  await migrate(client, await write({ ...first, ...second }));
  await expect(migrate(client, await write(first))).rejects.toThrow(
    /at version 2, newer than this release knows \(1\)/,
  );
});

test('the lock is free again after a refusal', async () => {
  const client = await connect();
  await migrate(client, await write({ ...first, ...second }));
  await expect(migrate(client, await write(first))).rejects.toThrow();
  expect(await migrate(await connect(), await write({ ...first, ...second }))).toEqual({ applied: [], version: 2 });
});

test('a PostgreSQL older than 15 is refused', async () => {
  const client = await connect();
  // Says of itself what PostgreSQL 14 does; its own settings cannot be changed.
  await client.query(`CREATE FUNCTION public.current_setting(text) RETURNS text LANGUAGE sql
    AS $$ SELECT CASE $1 WHEN 'server_version_num' THEN '140011' ELSE '14.11' END $$`);
  await client.query('SET search_path = public, pg_catalog');
  await expect(migrate(client, await write(first))).rejects.toThrow('PostgreSQL 14.11; version 15 or newer is needed');
});

test('a gap in the numbers, a number given twice and a misnamed file are refused', async () => {
  const third = { '0003-more.sql': 'SELECT 1;' };
  await expect(write({ ...first, ...third })).rejects.toThrow(
    'Migration 3 (more) is out of sequence: there is no migration 2.',
  );
  await expect(write({ ...first, '0001-again.sql': 'SELECT 1;' })).rejects.toThrow('its number is given twice');
  await expect(write({ ...first, '2-sites.sql': 'SELECT 1;' })).rejects.toThrow(
    '2-sites.sql is not named as a migration is',
  );
});

test('the same file with other line ends is the same migration', async () => {
  const [unix] = await write({ '0001-studies.sql': 'SELECT 1;\nSELECT 2;\n' });
  const [windows] = await write({ '0001-studies.sql': 'SELECT 1;\r\nSELECT 2;\r\n' });
  expect(windows?.checksum).toBe(unix?.checksum);
});
