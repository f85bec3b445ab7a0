import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import { pino } from 'pino';
import { afterAll, beforeAll, inject } from 'vitest';
import { createClient } from '../src/auth/clients.ts';
import { type Scope, scopeNames } from '../src/auth/scopes.ts';
import { readEnv } from '../src/config.ts';
import { openPool } from '../src/db/database.ts';
import { type Running, serve } from '../src/serve.ts';
import { databaseUrl, TEMPLATE } from './setup.ts';

/** An answer of the service, its body parsed where it is JSON. */
export interface Answer<T = unknown> {
  status: number;
  headers: Headers;
  body: T;
  text: string;
}

// biome-ignore lint/suspicious/noExplicitAny: tests look into bodies of every shape.
export type Json = any;

/** A real server on a database of its own, and what a client of it needs. */
export interface TestService {
  url: string;
  databaseUrl: string;
  /** As the service's own role. */
  pool: pg.Pool;
  /** A client with these scopes (default: all) and a token of it. */
  client(...scopes: Scope[]): Promise<{ clientId: string; clientSecret: string; token: string }>;
  /** A call with a token of all scopes, unless the options give another (null: none); paths are below /api/v1. */
  call(method: string, path: string, body?: unknown, options?: CallOptions): Promise<Answer<Json>>;
  /** Stops and starts the server, with other settings where given. */
  restart(env?: Record<string, string>): Promise<void>;
  close(): Promise<void>;
}

export interface CallOptions {
  token?: string | null;
  headers?: Record<string, string>;
  /** Sent as it is, instead of a JSON body. */
  raw?: string | Uint8Array;
}

/** 32 bytes, base64: tests keep no secret. */
export const MASTER_KEY = Buffer.alloc(32, 7).toString('base64');

/** Clones the template database and starts the service on it, on any free port. */
export async function startService(env: Record<string, string> = {}): Promise<TestService> {
  const server = inject('databaseUrl');
  const name = `sds_test_${process.pid}_${Math.random().toString(36).slice(2, 10)}`;
  const admin = new pg.Client({ connectionString: server });
  await admin.connect();
  await admin.query(`create database ${name} template ${TEMPLATE}`);
  const dir = await mkdtemp(join(tmpdir(), 'sds-service-'));
  const url = databaseUrl(server, name);
  const start = (more: Record<string, string>): Promise<Running> =>
    serve(
      readEnv(
        {
          SDS_PORT: '0',
          SDS_DATA_DIR: dir,
          SDS_DATABASE_URL: url,
          SDS_MASTER_KEY: MASTER_KEY,
          SDS_WORKERS: '1',
          ...env,
          ...more,
        },
        dir,
      ),
      pino({ level: process.env.SDS_TEST_LOG_LEVEL ?? 'fatal' }),
    );
  let running = await start({});
  const pool = openPool({ url, name: 'test', max: 3 });
  let all: Promise<string> | undefined;

  const service: TestService = {
    get url() {
      return running.url;
    },
    databaseUrl: url,
    pool,
    async client(...scopes) {
      const granted = scopes.length > 0 ? scopes : [...scopeNames];
      const { clientId, clientSecret } = await createClient(pool, { name: 'test', scopes: granted });
      const body = new URLSearchParams({
        grant_type: 'client_credentials',
        client_id: clientId,
        client_secret: clientSecret,
      });
      const response = await fetch(`${running.url}/oauth/token`, { method: 'POST', body });
      const { access_token: token } = (await response.json()) as { access_token: string };
      return { clientId, clientSecret, token };
    },
    async call(method, path, body, options = {}) {
      if (options.token === undefined) all ??= service.client().then(({ token }) => token);
      const token = options.token === undefined ? ((await all) as string) : options.token;
      const headers: Record<string, string> = {};
      if (token !== null) headers.authorization = `Bearer ${token}`;
      if (body !== undefined || options.raw !== undefined) headers['content-type'] = 'application/json';
      const payload = options.raw ?? (body === undefined ? undefined : JSON.stringify(body));
      const response = await fetch(`${running.url}/api/v1${path}`, {
        method,
        redirect: 'manual',
        headers: { ...headers, ...options.headers },
        ...(payload === undefined ? {} : { body: payload }),
      });
      const text = await response.text();
      const isJson = /json/.test(response.headers.get('content-type') ?? '') && text !== '' && response.status !== 206;
      return { status: response.status, headers: response.headers, text, body: isJson ? JSON.parse(text) : null };
    },
    async restart(more = {}) {
      await running.close();
      running = await start(more);
    },
    async close() {
      await running.close();
      await pool.end();
      await admin.query(`drop database ${name} with (force)`);
      await admin.end();
      await rm(dir, { recursive: true, force: true });
    },
  };
  return service;
}

/** Starts the service before a file's tests and closes it after them. */
export function useService(env: Record<string, string> = {}): TestService {
  let service: TestService | undefined;
  beforeAll(async () => {
    service = await startService(env);
  });
  afterAll(async () => {
    await service?.close();
  });
  return new Proxy({} as TestService, { get: (_, key) => Reflect.get(service as TestService, key) });
}

/** Waits until `probe` gives a value, asking every 20 ms for up to `seconds`. */
export async function eventually<T>(probe: () => Promise<T | null | undefined | false>, seconds = 20): Promise<T> {
  const end = Date.now() + seconds * 1_000;
  for (;;) {
    const value = await probe();
    if (value) return value;
    if (Date.now() > end) throw new Error('it did not happen in time');
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
