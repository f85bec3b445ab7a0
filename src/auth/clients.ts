import type pg from 'pg';
import { type Db, transaction } from '../db/database.ts';
import { prepared } from '../db/statement.ts';
import { newId } from '../lib/id.ts';
import { inOrder, type Scope, scopeNames } from './scopes.ts';
import { hashSecret, newSecret } from './secrets.ts';

/** A registered client, without its secret. */
export interface Client {
  clientId: string;
  /** For people. */
  name: string;
  scopes: Scope[];
  disabled: boolean;
  createdDate: Date;
  updatedDate: Date;
}

/** The only time that a client's secret is told. */
export interface NewSecret {
  clientId: string;
  clientSecret: string;
  scopes: Scope[];
}

/** What a token request is checked against. */
export interface ClientLogin {
  secretHash: string;
  scopes: Scope[];
  disabled: boolean;
}

/** What bounds a live token. */
export type ClientState = Pick<Client, 'disabled'> & { scopes: ReadonlySet<string> };

/** A client id in the characters of RFC 6749 §A.1; 255 is more than any issuer uses. Others are no client of anyone. */
export function isClientId(text: string): boolean {
  return /^[\x20-\x7e]{1,255}$/.test(text);
}

const columns =
  'client_id AS "clientId", name, scopes, disabled, created_date AS "createdDate", updated_date AS "updatedDate"';

/** Scopes in their own order, and without those that a later release may have known. */
function toClient(row: Client | undefined): Client | null {
  return row ? { ...row, scopes: inOrder(row.scopes) } : null;
}

/** Registers a client under a new id; `name` is for people, 1 to 255 characters. */
export async function createClient(db: Db, { name, scopes }: { name: string; scopes: Scope[] }): Promise<NewSecret> {
  if (name.trim() === '' || [...name].length > 255) throw new Error('The name of a client has 1 to 255 characters.');
  const clientId = newId();
  const clientSecret = newSecret();
  await db.query({
    text: 'INSERT INTO clients (client_id, name, scopes, secret_hash) VALUES ($1, $2, $3, $4)',
    values: [clientId, name, scopes, await hashSecret(clientSecret)],
  });
  return { clientId, clientSecret, scopes: inOrder(scopes) };
}

/** All clients, oldest first. */
export async function listClients(db: Db): Promise<Client[]> {
  const { rows } = await db.query<Client>({ text: `SELECT ${columns} FROM clients ORDER BY created_date, client_id` });
  return rows.flatMap((row) => toClient(row) ?? []);
}

/** One client; null where there is none (as for every function below). */
export async function showClient(db: Db, clientId: string): Promise<Client | null> {
  if (!isClientId(clientId)) return null;
  const { rows } = await db.query<Client>({
    text: `SELECT ${columns} FROM clients WHERE client_id = $1`,
    values: [clientId],
  });
  return toClient(rows[0]);
}

async function updateClient(db: Db, clientId: string, column: string, value: unknown): Promise<Client | null> {
  if (!isClientId(clientId)) return null;
  const { rows } = await db.query<Client>({
    text: `UPDATE clients SET ${column} = $2, updated_date = now() WHERE client_id = $1 RETURNING ${columns}`,
    values: [clientId, value],
  });
  return toClient(rows[0]);
}

/** Replaces all scopes; live tokens lose what is taken away within 5 s, and gain nothing (decisions §6). */
export function setScopes(db: Db, clientId: string, scopes: Scope[]): Promise<Client | null> {
  return updateClient(db, clientId, 'scopes', scopes);
}

/** Live tokens of a disabled client are refused within 5 s (decisions §6). */
export function disableClient(db: Db, clientId: string): Promise<Client | null> {
  return updateClient(db, clientId, 'disabled', true);
}

export function enableClient(db: Db, clientId: string): Promise<Client | null> {
  return updateClient(db, clientId, 'disabled', false);
}

/** Gives the client another secret; the old one is refused at once, live tokens last until they expire. */
export async function rotateSecret(db: Db, clientId: string): Promise<NewSecret | null> {
  const clientSecret = newSecret();
  const client = await updateClient(db, clientId, 'secret_hash', await hashSecret(clientSecret));
  return client && { clientId, clientSecret, scopes: client.scopes };
}

export async function countClients(db: Db): Promise<number> {
  const { rows } = await db.query<{ n: number }>({ text: 'SELECT count(*) AS n FROM clients' });
  return rows[0]?.n ?? 0;
}

/** Advisory lock (class, object) of whoever makes the first client; "sds" in ASCII. */
const bootstrapLock = [0x736473, 4];

/**
 * Makes a first client with all scopes, only while there is none (decisions §10), whichever of several nodes comes
 * first. Returns whether it was made.
 */
export async function bootstrapClient(
  pool: Pick<pg.Pool, 'connect'> & Db,
  { clientId, clientSecret }: { clientId: string; clientSecret: string },
): Promise<boolean> {
  if ((await countClients(pool)) > 0) return false;
  if (!isClientId(clientId)) throw new Error('The id of the first client has 1 to 255 ASCII characters.');
  const secretHash = await hashSecret(clientSecret);
  return transaction(pool, async (tx) => {
    await tx.query({ text: 'SELECT pg_advisory_xact_lock($1, $2)', values: bootstrapLock });
    const { rowCount } = await tx.query({
      text: `INSERT INTO clients (client_id, name, scopes, secret_hash)
        SELECT $1, 'first client', $2, $3 WHERE NOT EXISTS (SELECT FROM clients)`,
      values: [clientId, scopeNames, secretHash],
    });
    return rowCount === 1;
  });
}

/** What a token request of this client is checked against. */
export async function readLogin(db: Db, clientId: string): Promise<ClientLogin | null> {
  if (!isClientId(clientId)) return null;
  const { rows } = await db.query<ClientLogin>(
    prepared('SELECT secret_hash AS "secretHash", scopes, disabled FROM clients WHERE client_id = $1', [clientId]),
  );
  const [row] = rows;
  return row ? { ...row, scopes: inOrder(row.scopes) } : null;
}

/** What bounds the client's live tokens at this moment. */
export async function readState(db: Db, clientId: string): Promise<ClientState | null> {
  const { rows } = await db.query<{ scopes: string[]; disabled: boolean }>(
    prepared('SELECT scopes, disabled FROM clients WHERE client_id = $1', [clientId]),
  );
  const [row] = rows;
  return row ? { disabled: row.disabled, scopes: new Set(row.scopes) } : null;
}
