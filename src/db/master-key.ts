import type { Tx } from './database.ts';
import { prepared } from './statement.ts';

/**
 * The id of the master key that secrets are to be encrypted by, which stays so until the transaction ends: a rotation
 * waits for it. `ownKeyId` is named where there is none yet.
 */
export async function sealingKeyId(tx: Tx, ownKeyId: string): Promise<string> {
  const find = prepared('select key_id as "keyId" from master_key for share', []);
  for (;;) {
    const { rows } = await tx.query<{ keyId: string }>(find);
    if (rows[0]) return rows[0].keyId;
    await tx.query(prepared('insert into master_key (key_id) values ($1) on conflict do nothing', [ownKeyId]));
  }
}

/** Names another master key; whoever encrypts by the one before has committed by then. */
export async function changeSealingKey(tx: Tx, keyId: string): Promise<void> {
  const text = `insert into master_key (key_id) values ($1)
    on conflict (only_one) do update set key_id = $1, changed_date = now()`;
  await tx.query(prepared(text, [keyId]));
}
