import { createHash } from 'node:crypto';
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import type pg from 'pg';
import { SERVICE_ROLE } from './database.ts';

/** One step of the schema: a file of plain SQL that is never changed once it was released. */
export interface Migration {
  /** From 1, without a gap. */
  version: number;
  /** The rest of the file's name: `0001-studies.sql` is `studies`. */
  name: string;
  /** Its text, with LF line ends. */
  sql: string;
  /** SHA-256 of `sql`, hexadecimal. */
  checksum: string;
}

/** PostgreSQL 15, the oldest that the service works with (decisions §10). */
const minServerVersion = 150_000;

/** Advisory lock (class, object) of whoever migrates; "sds" in ASCII, as for the embedded server. */
const lock = [0x736473, 3];

/**
 * The migrations in `dir`, `NNNN-name.sql`, in order.
 * @throws Error where a file is named otherwise, or a number is missing or given twice.
 */
export async function readMigrations(dir: string): Promise<Migration[]> {
  const files = (await readdir(dir)).filter((file) => file.endsWith('.sql')).sort();
  const migrations = await Promise.all(
    files.map(async (file) => {
      const [, number, name] = /^(\d{4})-(.+)\.sql$/.exec(file) ?? [];
      if (!number || !name) throw new Error(`${file} is not named as a migration is (0001-what.sql).`);
      // A checkout on Windows has other line ends, and is the same migration.
      const sql = (await readFile(join(dir, file), 'utf8')).replaceAll('\r\n', '\n');
      return { version: Number(number), name, sql, checksum: createHash('sha256').update(sql).digest('hex') };
    }),
  );
  checkSequence(migrations);
  return migrations;
}

/**
 * Brings the database to the last of `migrations`, each in a transaction of its own: one that fails leaves no trace, and
 * those before it stay. Several nodes may do so at once; one works, the others wait and find nothing to do.
 * @param client connected as the owner of the database, in no transaction.
 * @throws Error, with nothing changed, for a server that is too old, a database newer than this code, and a migration
 *   that is not the one that was applied.
 */
export async function migrate(
  client: pg.ClientBase,
  migrations: Migration[],
  log: (message: string) => void = () => {},
): Promise<{ applied: number[]; version: number }> {
  checkSequence(migrations);
  await checkServer(client);
  await client.query('SELECT pg_advisory_lock($1, $2)', lock);
  try {
    await client.query(
      `CREATE TABLE IF NOT EXISTS sds_migrations (
         version int PRIMARY KEY,
         name text NOT NULL,
         checksum text NOT NULL,
         applied_date timestamptz NOT NULL DEFAULT now())`,
    );
    const present = await checkApplied(client, migrations);
    const applied: number[] = [];
    for (const migration of migrations.slice(present)) {
      await apply(client, migration);
      log(`migrated the database to version ${migration.version} (${migration.name})`);
      applied.push(migration.version);
    }
    return { applied, version: migrations.length };
  } finally {
    // Where the connection is broken, the lock is free already, and the first error is the one to tell.
    await client.query('SELECT pg_advisory_unlock($1, $2)', lock).catch(() => {});
  }
}

function checkSequence(migrations: Migration[]): void {
  for (const [index, { version, name }] of migrations.entries()) {
    if (version === index + 1) continue;
    const fault = version <= index ? 'its number is given twice' : `there is no migration ${index + 1}`;
    throw new Error(`Migration ${version} (${name}) is out of sequence: ${fault}.`);
  }
}

async function checkServer(client: pg.ClientBase): Promise<void> {
  const { rows } = await client.query<{ number: number; name: string }>(
    `SELECT current_setting('server_version_num')::int AS number, current_setting('server_version') AS name`,
  );
  const [server] = rows;
  if (server && server.number < minServerVersion) {
    throw new Error(`The database is PostgreSQL ${server.name}; version 15 or newer is needed.`);
  }
}

/** How many of `migrations` the database has. */
async function checkApplied(client: pg.ClientBase, migrations: Migration[]): Promise<number> {
  const { rows } = await client.query<Omit<Migration, 'sql'>>(
    'SELECT version, name, checksum FROM sds_migrations ORDER BY version',
  );
  const newest = rows.at(-1)?.version ?? 0;
  if (newest > migrations.length) {
    throw new Error(
      `The database is at version ${newest}, newer than this release knows (${migrations.length}): ` +
        'start a release at least as new as the one that used it last.',
    );
  }
  for (const [index, row] of rows.entries()) {
    const migration = migrations[index];
    if (row.version === migration?.version && row.checksum === migration.checksum) continue;
    throw new Error(
      `Migration ${row.version} (${row.name}) is not the one that was applied to this database: ` +
        'restore its file; what it should do differently belongs into a new one.',
    );
  }
  return rows.length;
}

async function apply(client: pg.ClientBase, { version, name, sql, checksum }: Migration): Promise<void> {
  await client.query('BEGIN');
  try {
    // The row comes first: were there a way past the advisory lock, its key would hold back the second.
    await client.query('INSERT INTO sds_migrations (version, name, checksum) VALUES ($1, $2, $3)', [
      version,
      name,
      checksum,
    ]);
    await client.query(sql);
    // A COMMIT in it would make a later fault stay half done.
    const { rowCount } = await client.query(
      'SELECT FROM sds_migrations WHERE version = $1 AND xmin = pg_current_xact_id()::xid',
      [version],
    );
    if (rowCount === 0) throw new Error('it ends the transaction that it runs in');
    await client.query('COMMIT');
  } catch (cause) {
    await client.query('ROLLBACK').catch(() => {});
    throw new Error(`Migration ${version} (${name}) failed: ${(cause as Error).message}${remedy(cause)}`, { cause });
  }
}

/** What an administrator can do about it: all that a migration asks for beyond the schema is the service's role. */
function remedy(cause: unknown): string {
  const { code, message } = cause as Partial<pg.DatabaseError>;
  // 42501: insufficient_privilege.
  if (code !== '42501' || !message?.includes('role')) return '';
  return (
    `. The user of SDS_DATABASE_URL makes the role ${SERVICE_ROLE} and becomes its member: give it CREATEROLE, and ` +
    `where the role is there already: GRANT ${SERVICE_ROLE} TO the user WITH ADMIN OPTION`
  );
}
