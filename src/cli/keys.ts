import { chown, rename, stat } from 'node:fs/promises';
import { resolve } from 'node:path';
import { rotateKeys, signingKeySecrets } from '../auth/keys.ts';
import { credentialSecrets } from '../credentials/queries.ts';
import { replaceMasterKey, type SealedColumn } from '../db/master-key.ts';
import { loadMasterKey, type MasterKeySource } from '../lib/master-key.ts';
import { MasterKeys, nextKeyFile } from '../lib/master-keys.ts';
import { command, UsageError } from './command.ts';
import { withDatabase } from './open.ts';

/** Everything that is encrypted by the master key. */
export const sealedColumns: readonly SealedColumn[] = [signingKeySecrets, credentialSecrets];

export const rotate = command({
  details: [
    'Without --master: puts a new key in use that signs access tokens. Tokens signed by the old one stay valid.',
    'With --master: encrypts all stored secrets by a new master key, while the service runs. A key in a file is',
    'replaced there, and running nodes on this machine find the new one by themselves. Nodes elsewhere, and nodes with',
    'SDS_MASTER_KEY, need both keys beforehand: the new one in a file of the same name with .new behind it, or in',
    'SDS_MASTER_KEY, separated by a comma; this command encrypts by the first of them.',
    'After a failure give the same command again: it goes on where it ended.',
  ].join('\n'),
  options: {
    master: { type: 'boolean', help: 'Replace the master key instead.' },
    'new-key': { type: 'string', value: 'FILE', help: 'File of the new master key; made when it is missing.' },
  },
  async run(call) {
    const { master, 'new-key': given } = call.options;
    if (given && !master) throw new UsageError('--new-key goes with --master.');
    const source = call.settings().secrets.masterKey;
    if (!master) {
      return withDatabase(call, async ({ pool }) => {
        const { keyId, retiredKeyId } = await rotateKeys(pool, await MasterKeys.open(source));
        const retired = retiredKeyId ? `; ${retiredKeyId} is retired` : '';
        return { value: { keyId, retiredKeyId }, text: `Access tokens are signed by key ${keyId}${retired}.` };
      });
    }
    if (!given && source.kind === 'inline' && !source.others) {
      throw new UsageError(
        'SDS_MASTER_KEY holds one key alone. Put a new one before it, separated by a comma, on every node and here; ' +
          'or name the file of the new one with --new-key, and restart the nodes with it afterwards.',
      );
    }
    return withDatabase(call, async ({ pool }) => {
      const from = await MasterKeys.open(source);
      const { key, path } = await newKey(source, given);
      const reencrypted = await replaceMasterKey(pool, from, key, sealedColumns);
      // Only now, so that no moment is without a file of the key that is needed.
      const replaced = !given && source.kind === 'file';
      if (replaced && path) await rename(path, source.path);
      const masterKeyFile = replaced ? source.path : path;
      return {
        value: { masterKeyFile, reencrypted },
        text: `${reencrypted} secrets are encrypted by the new master key. ${whatNext(masterKeyFile, replaced)}`,
      };
    });
  },
});

/** The key to encrypt by from now on, and the file that it is in. */
async function newKey(
  source: MasterKeySource,
  given: string | undefined,
): Promise<{ key: Buffer; path: string | null }> {
  if (!given && source.kind === 'inline') return { key: source.key, path: null };
  const path = given ? resolve(given) : source.kind === 'file' ? nextKeyFile(source.path) : '';
  const key = await loadMasterKey({ kind: 'file', path, create: true });
  if (source.kind === 'file' && process.getuid?.() === 0) {
    // As root, for a service that runs as somebody else, and could not read a file of root's.
    const { uid, gid } = await stat(source.path);
    await chown(path, uid, gid);
  }
  return { key, path };
}

function whatNext(masterKeyFile: string | null, replaced: boolean): string {
  if (replaced) return `It is in ${masterKeyFile}; nodes elsewhere need it there, too.`;
  if (masterKeyFile) return `Set SDS_MASTER_KEY_FILE=${masterKeyFile} on every node and restart it.`;
  return 'The others can be taken out of SDS_MASTER_KEY on every node.';
}
