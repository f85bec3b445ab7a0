import { fileURLToPath } from 'node:url';
import pg from 'pg';
import type { Settings } from '../config.ts';
import { openPool } from '../db/database.ts';
import { openEmbedded } from '../db/embedded.ts';
import { migrate, readMigrations } from '../db/migrate.ts';
import type { Call } from './command.ts';

/** The plain SQL files of the package, two levels up from here in the sources and in the build. */
const migrationsDir = fileURLToPath(new URL('../../migrations', import.meta.url));

export interface OpenOptions {
  /** `serve` keeps other servers off the data directory; a `tool` works beside one. */
  purpose: 'serve' | 'tool';
  log?: (message: string) => void;
  /** Gives up the start. */
  signal?: AbortSignal;
}

export interface OpenDatabase {
  /** Connects as the owner of the schema; {@link openPool} makes the service's own role of it. Holds the password. */
  url: string;
  /** Versions applied just now, and the one that the schema is at. */
  migrated: { applied: number[]; version: number };
  /** Stops an embedded server, unless another process uses it. End your own connections first. */
  close(): Promise<void>;
}

/** Opens the database of the configuration and brings its schema up to date. */
export async function openDatabase({ config, secrets }: Settings, options: OpenOptions): Promise<OpenDatabase> {
  const database =
    config.database.kind === 'embedded'
      ? await openEmbedded({ dir: config.database.dir, ...options })
      : { url: secrets.databaseUrl as string, close: async () => {} };
  try {
    options.signal?.throwIfAborted();
    const migrated = await migrateAsOwner(database.url, options);
    return { url: database.url, migrated, close: () => database.close() };
  } catch (error) {
    await database.close();
    throw error;
  }
}

async function migrateAsOwner(url: string, { purpose, log }: OpenOptions): Promise<OpenDatabase['migrated']> {
  const client = new pg.Client({
    connectionString: url,
    application_name: `sds ${purpose} migrate`,
    // 10 s: a name that does not answer must not look like a start that takes long.
    connectionTimeoutMillis: 10_000,
  });
  // What breaks on the way rejects the query that runs.
  client.on('error', () => {});
  try {
    await client.connect().catch((cause: unknown) => {
      throw new Error('The database cannot be reached.', { cause });
    });
    return await migrate(client, await readMigrations(migrationsDir), log);
  } finally {
    await client.end().catch(() => {});
  }
}

/** What a command works with. */
export interface CommandDatabase extends OpenDatabase {
  settings: Settings;
  /** As the service's own role. */
  pool: pg.Pool;
}

/** Runs `work` with the database of the configuration, beside a running server or alone, and closes what it opened. */
export async function withDatabase<T>(
  call: Pick<Call, 'settings' | 'signal'>,
  work: (database: CommandDatabase) => Promise<T>,
): Promise<T> {
  const settings = call.settings();
  const database = await openDatabase(settings, { purpose: 'tool', signal: call.signal });
  try {
    const pool = openPool({ url: database.url, name: 'sds tool', max: 4 });
    try {
      return await work({ ...database, settings, pool });
    } finally {
      await pool.end();
    }
  } finally {
    await database.close();
  }
}
