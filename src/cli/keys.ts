import { rename } from 'node:fs/promises';
import { resolve } from 'node:path';
import { reencryptKeys, rotateKeys } from '../auth/keys.ts';
import { loadMasterKey } from '../lib/master-key.ts';
import { command, UsageError } from './command.ts';
import { withDatabase } from './open.ts';

export const rotate = command({
  details: [
    'Without --master: puts a new key in use that signs access tokens. Tokens signed by the old one stay valid.',
    'With --master: encrypts all stored secrets by a new master key. A key kept in a file is replaced there;',
    'with SDS_MASTER_KEY, or several nodes, name the file of the new one and configure it on every node.',
    'Restart the nodes afterwards. After a failure give the same command again: it goes on where it ended.',
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
        const { keyId, retiredKeyId } = await rotateKeys(pool, await loadMasterKey(source));
        const retired = retiredKeyId ? `; ${retiredKeyId} is retired` : '';
        return { value: { keyId, retiredKeyId }, text: `Access tokens are signed by key ${keyId}${retired}.` };
      });
    }
    if (!given && source.kind === 'inline') {
      throw new UsageError('The master key is given by SDS_MASTER_KEY: name the file of the new one with --new-key.');
    }
    // Kept beside the old one until all is encrypted by it, so that no moment is without the key that is needed.
    const path = given ? resolve(given) : source.kind === 'file' ? `${source.path}.new` : '';
    return withDatabase(call, async ({ pool }) => {
      const from = await loadMasterKey(source);
      const to = await loadMasterKey({ kind: 'file', path, create: true });
      const reencrypted = await reencryptKeys(pool, from, to);
      const kept = !given && source.kind === 'file' ? source.path : path;
      if (kept !== path) await rename(path, kept);
      const next = kept === path ? ` Set SDS_MASTER_KEY_FILE=${path} and` : '';
      return {
        value: { masterKeyFile: kept, reencrypted },
        text: `${reencrypted} secrets are encrypted by the new master key in ${kept}.${next || ' Now'} restart every node.`,
      };
    });
  },
});
