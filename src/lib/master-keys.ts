import { masterKeyId, type Sealed, unseal } from './crypto.ts';
import { loadMasterKey, type MasterKeySource } from './master-key.ts';

/** Where a rotation keeps the new key of the file `path` until everything is encrypted by it. */
export function nextKeyFile(path: string): string {
  return `${path}.new`;
}

/**
 * The master keys that this process can decrypt by. Usually there is one; while the master key is replaced there are the
 * old and the new one. A running process finds the new one by itself when it meets something encrypted by it, where keys
 * are kept in files.
 */
export class MasterKeys {
  /** Its source's own, or first, key. */
  readonly first: Buffer;
  readonly #source: MasterKeySource;
  readonly #known = new Map<string, Buffer>();

  constructor(first: Buffer, source: MasterKeySource = { kind: 'inline', key: first }) {
    this.first = first;
    this.#source = source;
    this.#add(first);
  }

  /** Rejects as {@link loadMasterKey} does. */
  static async open(source: MasterKeySource): Promise<MasterKeys> {
    return new MasterKeys(await loadMasterKey(source), source);
  }

  /** The key of that id (see {@link masterKeyId}), or null where this process has none such. */
  async find(keyId: string): Promise<Buffer | null> {
    if (!this.#known.has(keyId) && this.#source.kind === 'file') {
      const { path } = this.#source;
      // The new key's own file first: it is renamed to the other, so in this order one of both is always found.
      for (const file of [nextKeyFile(path), path]) {
        const key = await loadMasterKey({ kind: 'file', path: file, create: false }).catch(() => null);
        if (key) this.#add(key);
      }
    }
    return this.#known.get(keyId) ?? null;
  }

  /** Decrypts what any of the keys has encrypted; rejects with an UnsealError. */
  async unseal(sealed: Sealed, context: string): Promise<Buffer> {
    // Without the right key, the first one fails with a message that names both.
    return unseal((await this.find(sealed.keyId)) ?? this.first, sealed, context);
  }

  #add(key: Buffer): void {
    this.#known.set(masterKeyId(key), key);
  }
}
