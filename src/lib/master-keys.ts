import { masterKeyId, type Sealed, unseal } from './crypto.ts';
import { loadMasterKey, type MasterKeySource } from './master-key.ts';

/** Where a rotation keeps the new key of the file `path` until everything is encrypted by it. */
export function nextKeyFile(path: string): string {
  return `${path}.new`;
}

/**
 * The master keys that this process can decrypt by: usually one; the old and the new one while the master key is
 * replaced. A running process finds the new one by itself when it meets its id, where keys are kept in a file.
 */
export class MasterKeys {
  /** The first that was configured: what secrets are encrypted by in a database that has none yet. */
  readonly first: Buffer;
  readonly #path: string | null;
  readonly #known: Map<string, Buffer>;

  constructor(keys: readonly [Buffer, ...Buffer[]], path: string | null = null) {
    this.first = keys[0];
    this.#path = path;
    this.#known = new Map(keys.map((key) => [masterKeyId(key), key]));
  }

  /** Rejects as {@link loadMasterKey} does. */
  static async open(source: MasterKeySource): Promise<MasterKeys> {
    const first = await loadMasterKey(source);
    return source.kind === 'file'
      ? new MasterKeys([first], source.path)
      : new MasterKeys([first, ...(source.others ?? [])]);
  }

  /** The key of that id (see {@link masterKeyId}), or null where this process has none such. */
  async find(keyId: string): Promise<Buffer | null> {
    if (!this.#known.has(keyId) && this.#path !== null) {
      // The new key's own file first: it is renamed to the other, so in this order one of both is always found.
      for (const path of [nextKeyFile(this.#path), this.#path]) {
        const key = await loadMasterKey({ kind: 'file', path, create: false }).catch(() => null);
        if (key) this.#known.set(masterKeyId(key), key);
      }
    }
    return this.#known.get(keyId) ?? null;
  }

  /** Decrypts what any of the keys has encrypted; rejects with an UnsealError. */
  async unseal(sealed: Sealed, context: string): Promise<Buffer> {
    // Without the right key, the first one fails with a message that names both.
    return unseal((await this.find(sealed.keyId)) ?? this.first, sealed, context);
  }
}
