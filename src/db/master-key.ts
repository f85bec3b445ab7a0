import type pg from 'pg';
import { masterKeyId, type Sealed, seal } from '../lib/crypto.ts';
import type { MasterKeys } from '../lib/master-keys.ts';
import { type Db, transaction } from './database.ts';
import { prepared } from './statement.ts';

/** A column with secrets under the master key of which `master_key_id`, in the same table, tells the id. */
export interface SealedColumn {
  table: string;
  /** Primary key. */
  idColumn: string;
  column: string;
  /** What the secret of that id is sealed for, see `seal`. */
  context: (id: string) => string;
}

/**
 * Encrypts by the master key that the database names. It stays so until the caller's transaction ends: a replacement of
 * the key waits for it, so that nothing is stored under the old one behind its back.
 */
export async function sealSecret(db: Db, keys: MasterKeys, secret: string, context: string): Promise<Sealed> {
  const keyId = await sealingKeyId(db, masterKeyId(keys.first));
  const key = await keys.find(keyId);
  if (!key) throw new Error(`Secrets are encrypted by the master key ${keyId}, which this process does not have.`);
  return seal(key, secret, context);
}

/** The id that the database names; `ownKeyId` from now on where it names none. */
async function sealingKeyId(db: Db, ownKeyId: string): Promise<string> {
  const find = prepared('select key_id as "keyId" from master_key for share', []);
  for (;;) {
    const { rows } = await db.query<{ keyId: string }>(find);
    if (rows[0]) return rows[0].keyId;
    await db.query(prepared('insert into master_key (key_id) values ($1) on conflict do nothing', [ownKeyId]));
  }
}

/**
 * Names `to` as the master key to encrypt by, then encrypts by it whatever is under another one; returns how many secrets
 * those were. Beside running nodes, which need to have both keys. After a failure it can be called again.
 */
export async function replaceMasterKey(
  pool: Pick<pg.Pool, 'connect'>,
  from: MasterKeys,
  to: Buffer,
  columns: readonly SealedColumn[],
): Promise<number> {
  // On its own, since it waits for everybody who encrypts by the old key, and they may hold what is locked below.
  await transaction(pool, (tx) =>
    tx.query({
      text: `insert into master_key (key_id) values ($1)
        on conflict (only_one) do update set key_id = $1, changed_date = now()`,
      values: [masterKeyId(to)],
    }),
  );
  return transaction(pool, async (tx) => {
    let count = 0;
    for (const column of columns) count += await reencrypt(tx, from, to, column);
    return count;
  });
}

async function reencrypt(
  db: Db,
  from: MasterKeys,
  to: Buffer,
  { table, idColumn, column, context }: SealedColumn,
): Promise<number> {
  const { rows } = await db.query<{ id: string; bytes: Buffer; keyId: string }>({
    text: `select ${idColumn} as id, ${column} as bytes, master_key_id as "keyId" from ${table}
      where ${column} is not null and master_key_id <> $1 order by ${idColumn} for update`,
    values: [masterKeyId(to)],
  });
  for (const { id, ...sealed } of rows) {
    const secret = await from.unseal(sealed, context(id)).catch((cause: Error) => {
      throw new Error(`The secret ${context(id)} cannot be decrypted. ${cause.message}`, { cause });
    });
    const { bytes, keyId } = seal(to, secret, context(id));
    const text = `update ${table} set ${column} = $2, master_key_id = $3 where ${idColumn} = $1`;
    await db.query({ text, values: [id, bytes, keyId] });
  }
  return rows.length;
}
