import type { Db, Tx } from '../db/database.ts';
import type { SealedColumn } from '../db/master-key.ts';
import { type Page, type PageRequest, pageOf, pageSql } from '../db/paging.ts';
import { prepared } from '../db/statement.ts';
import type { EventWriter } from '../http/gate.ts';
import type { Sealed } from '../lib/crypto.ts';
import type { Provider } from './schemas.ts';

/** What a secret is sealed for, see `seal`. */
export function secretContext(credentialId: string): string {
  return `credential:${credentialId}`;
}

/** Where the secrets are, for a new master key. */
export const credentialSecrets: SealedColumn = {
  table: 'credentials',
  idColumn: 'credential_id',
  column: 'encrypted_secret',
  context: secretContext,
};

const iso = (expression: string) => `to_char(${expression}, 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')`;

/** Members of the credential record, as SQL over the alias `r`: everything but the secret. */
const members = `r.credential_id as "credentialId", r.name, r.provider, r.settings,
  r.last_validation as "lastValidation", ${iso('r.created_date')} as "createdDate",
  ${iso('r.updated_date')} as "updatedDate", r.version`;

/** A credential as JSON text, the way it leaves the service, and its version for the ETag. */
export interface StoredCredential {
  record: string;
  version: number;
}

export async function findCredential(db: Db, credentialId: string): Promise<StoredCredential | null> {
  const text = `select row_to_json(q)::text as record, q.version
    from (select ${members} from credentials r where r.credential_id = $1) q`;
  const { rows } = await db.query<StoredCredential>(prepared(text, [credentialId]));
  return rows[0] ?? null;
}

export async function listCredentials(db: Db, provider: string | undefined, request: PageRequest): Promise<Page> {
  const values: unknown[] = [];
  const where = provider === undefined ? 'true' : `r.provider = $${values.push(provider)}`;
  const { text, page } = pageSql({
    members,
    table: 'credentials',
    joins: '',
    where,
    total: `select count(*) from credentials r where ${where}`,
    sort: [request.sort === 'name' ? 'r.name' : 'r.created_date'],
    keyMember: request.sort,
    idColumn: 'r.credential_id',
    idMember: 'credentialId',
    request,
    values,
  });
  const { rows } = await db.query<Parameters<typeof pageOf>[0]>({ text: `select ${text}`, values });
  return pageOf(rows[0] as Parameters<typeof pageOf>[0], page);
}

/** What is stored of a credential, its secret as it is stored. */
export interface SealedCredential {
  provider: Provider;
  settings: Record<string, unknown>;
  /** Null where the provider has no secret. */
  secret: Sealed | null;
  version: number;
}

interface SealedRow extends Omit<SealedCredential, 'secret'> {
  bytes: Buffer | null;
  keyId: string | null;
}

export async function findSealed(db: Db, credentialId: string): Promise<SealedCredential | null> {
  const text = `select provider, settings, version, encrypted_secret as bytes, master_key_id as "keyId"
    from credentials where credential_id = $1`;
  const { rows } = await db.query<SealedRow>(prepared(text, [credentialId]));
  const [row] = rows;
  if (!row) return null;
  const { bytes, keyId, ...rest } = row;
  return { ...rest, secret: bytes && keyId ? { bytes, keyId } : null };
}

/** What a write stores: `settings` as JSON text; a secret of null leaves the stored one as it is. */
export interface WrittenCredential {
  name: string;
  settings: string;
  secret: Sealed | null;
}

export async function insertCredential(
  tx: Tx,
  credentialId: string,
  provider: Provider,
  { name, settings, secret }: WrittenCredential,
): Promise<void> {
  const text = `insert into credentials (credential_id, provider, name, settings, encrypted_secret, master_key_id)
    values ($1, $2, $3, $4, $5, $6)`;
  const sealed = [secret?.bytes ?? null, secret?.keyId ?? null];
  await tx.query(prepared(text, [credentialId, provider, name, settings, ...sealed]));
}

/** Locks the credential until the transaction ends: against other writes, and against jobs that are about to use it. */
export async function lockCredential(tx: Tx, credentialId: string): Promise<void> {
  await tx.query(prepared('select from credentials where credential_id = $1 for update', [credentialId]));
}

/** Writes a credential that is locked. `forget`: what the last validation found concerns it no more. */
export async function updateCredential(
  tx: Tx,
  credentialId: string,
  { name, settings, secret }: WrittenCredential,
  forget: boolean,
): Promise<void> {
  const text = `update credentials set name = $2, settings = $3, encrypted_secret = coalesce($4, encrypted_secret),
      master_key_id = coalesce($5, master_key_id), last_validation = case when $6 then null else last_validation end,
      version = version + 1, updated_date = now()
    where credential_id = $1`;
  const sealed = [secret?.bytes ?? null, secret?.keyId ?? null];
  await tx.query(prepared(text, [credentialId, name, settings, ...sealed, forget]));
}

export async function deleteCredential(tx: Tx, credentialId: string): Promise<void> {
  await tx.query(prepared('delete from credentials where credential_id = $1', [credentialId]));
}

/** Whether an image job that is waiting or running uses the credential. */
export async function isInUse(tx: Tx, credentialId: string): Promise<boolean> {
  const text = `select from image_jobs where credential_id = $1 and status in ('CREATED', 'RUNNING') limit 1`;
  const { rowCount } = await tx.query(prepared(text, [credentialId]));
  return rowCount === 1;
}

/**
 * Keeps what a validation found, unless the credential was written since, and records the event, in one statement. The
 * date of it, or null where the credential is not there any more.
 */
export async function keepValidation(
  db: Db,
  credentialId: string,
  { version, valid, detail }: { version: number; valid: boolean; detail: string },
  event: EventWriter,
): Promise<string | null> {
  const clause = event.clause(5);
  const text = `with written as (
      update credentials set last_validation = case when version <> $2 then last_validation
        else json_build_object('valid', $3::boolean, 'checkedDate', ${iso('now()')}, 'detail', $4::text) end
      where credential_id = $1 returning credential_id as id),
    ${clause.sql}
    select ${iso('now()')} as "checkedDate" from written`;
  const values = [credentialId, version, valid, detail, ...clause.values];
  const { rows } = await db.query<{ checkedDate: string }>({ text, values });
  return rows[0]?.checkedDate ?? null;
}
