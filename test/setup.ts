import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import type { TestProject } from 'vitest/node';
import { openEmbedded } from '../src/db/embedded.ts';
import { migrate, readMigrations } from '../src/db/migrate.ts';

declare module 'vitest' {
  interface ProvidedContext {
    /** URL of the database server that the tests clone their databases on, as its owner. */
    databaseUrl: string;
  }
}

/** The migrated database that every test file clones. */
export const TEMPLATE = 'sds_test_template';

/** Starts PostgreSQL once for all test files (or takes SDS_TEST_DATABASE_URL) and migrates the template. */
export async function setup(project: TestProject): Promise<() => Promise<void>> {
  const given = process.env.SDS_TEST_DATABASE_URL;
  const dir = await mkdtemp(join(tmpdir(), 'sds-test-'));
  const server = given ? { url: given, close: async () => {} } : await openEmbedded({ dir, purpose: 'tool' });
  const admin = new pg.Client({ connectionString: server.url });
  await admin.connect();
  await admin.query(`drop database if exists ${TEMPLATE} with (force)`);
  await admin.query(`create database ${TEMPLATE}`);
  const template = new pg.Client({ connectionString: databaseUrl(server.url, TEMPLATE) });
  await template.connect();
  await migrate(template, await readMigrations('migrations'));
  await template.end();
  project.provide('databaseUrl', server.url);
  return async () => {
    await admin.query(`drop database if exists ${TEMPLATE} with (force)`);
    await admin.end();
    await server.close();
    await rm(dir, { recursive: true, force: true });
  };
}

/** The same server, another database. */
export function databaseUrl(url: string, name: string): string {
  // A URL with a socket directory has no host, which the URL class does not take.
  return url.replace(/^(postgres(?:ql)?:\/\/[^/]*\/)[^?]*/, `$1${name}`);
}
