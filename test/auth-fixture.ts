import { randomUUID } from 'node:crypto';
import Fastify, { type FastifyInstance } from 'fastify';
import pg from 'pg';
import { afterAll, beforeAll, inject } from 'vitest';
import { type Auth, type AuthOptions, createAuth } from '../src/auth/auth.ts';
import { openPool } from '../src/db/database.ts';
import { routeEveryMethod } from '../src/http/methods.ts';
import { MasterKeys } from '../src/lib/master-keys.ts';
import { Problem } from '../src/lib/problem.ts';
import { databaseUrl, TEMPLATE } from './setup.ts';

export const masterKey = new MasterKeys([Buffer.alloc(32, 7)]);

/** A database of its own for a test file; `pool` works as the service's role. */
export function useDatabase(): { url: string; pool: pg.Pool } {
  const name = `sds_auth_${randomUUID().replaceAll('-', '')}`;
  const admin = new pg.Client({ connectionString: inject('databaseUrl') });
  const database = { url: databaseUrl(inject('databaseUrl'), name), pool: undefined as unknown as pg.Pool };
  beforeAll(async () => {
    await admin.connect();
    await admin.query(`create database ${name} template ${TEMPLATE}`);
    database.pool = openPool({ url: database.url, name: 'auth test' });
  });
  afterAll(async () => {
    await database.pool.end();
    await admin.query(`drop database ${name} with (force)`);
    await admin.end();
  });
  return database;
}

/** Authentication as one node has it, behind a real HTTP server. */
export interface AuthNode {
  url: string;
  auth: Auth;
  /** Everything that was logged, one JSON line each. */
  log: string[];
  outcomes: string[];
  close(): Promise<void>;
}

export async function startNode(
  pool: pg.Pool,
  options: Partial<AuthOptions> & { trustProxy?: boolean } = {},
): Promise<AuthNode> {
  const log: string[] = [];
  const outcomes: string[] = [];
  const app: FastifyInstance = Fastify({
    logger: { level: 'info', stream: { write: (line: string) => log.push(line) } },
    trustProxy: options.trustProxy ?? false,
  });
  routeEveryMethod(app);
  app.setErrorHandler((error, _request, reply) => {
    const problem = error instanceof Problem ? error : new Problem('internal', 'It failed.', { cause: error });
    const body = JSON.stringify({ status: problem.status, detail: problem.message });
    return reply.code(problem.status).headers(problem.headers).type('application/problem+json').send(body);
  });
  const auth = createAuth({
    db: pool,
    masterKey,
    publicUrl: null,
    tokenTtlS: 3600,
    oidc: null,
    log: app.log,
    onTokenRequest: (outcome) => outcomes.push(outcome),
    ...options,
  });
  await app.register(auth.routes);
  // What stands beside the token endpoint keeps its own way with bodies.
  app.post('/api/v1/echo', async (request) => request.body);
  const url = await app.listen({ port: 0 });
  await auth.start();
  return {
    url,
    auth,
    log,
    outcomes,
    close: async () => {
      await app.close();
      auth.close();
    },
  };
}

/** A token request as a form; `basic` is the Authorization header's `id:secret` before base64. */
export function requestToken(
  url: string,
  parameters: Record<string, string>,
  {
    basic,
    path = '/oauth/token',
    headers = {},
  }: { basic?: string; path?: string; headers?: Record<string, string> } = {},
): Promise<Response> {
  return fetch(url + path, {
    method: 'POST',
    body: new URLSearchParams(parameters),
    headers: basic ? { ...headers, authorization: `Basic ${Buffer.from(basic).toString('base64')}` } : headers,
  });
}

export interface TokenAnswer {
  access_token: string;
  token_type: string;
  expires_in: number;
  scope: string;
}

/** The access token of a client. */
export async function tokenOf(
  node: AuthNode,
  client: { clientId: string; clientSecret: string },
  scope?: string,
): Promise<string> {
  const parameters = { grant_type: 'client_credentials', ...(scope ? { scope } : {}) };
  const response = await requestToken(node.url, parameters, { basic: `${client.clientId}:${client.clientSecret}` });
  return ((await response.json()) as TokenAnswer).access_token;
}

/** What `authenticate` makes of a header: the caller, or the problem that it throws. */
export async function authenticate(node: AuthNode, authorization: string | undefined) {
  return await node.auth.authenticate(authorization);
}
