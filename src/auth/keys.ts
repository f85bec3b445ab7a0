import { setTimeout as sleep } from 'node:timers/promises';
import { type CryptoKey, exportJWK, exportPKCS8, generateKeyPair, importJWK, importPKCS8, type JWK } from 'jose';
import type pg from 'pg';
import { type Db, transaction } from '../db/database.ts';
import { type SealedColumn, sealSecret } from '../db/master-key.ts';
import { prepared } from '../db/statement.ts';
import { type Sealed, UnsealError } from '../lib/crypto.ts';
import { isId, newId } from '../lib/id.ts';
import type { MasterKeys } from '../lib/master-keys.ts';

/** ECDSA on P-256 with SHA-256: what every JWT library verifies (RFC 7518 §3.4). */
export const algorithm = 'ES256';

/** A node may sign by a key for this long after it was retired elsewhere. */
const signerMs = 5_000;
/** A node that only verifies reads the keys again this often, so that withdrawn ones are forgotten. */
const verifierMs = 60_000;
/** An unknown key id makes a node read the keys again, at most once in this time. */
const cooldownMs = 1_000;
/** Retired keys are published for the lifetime of their tokens and this: `signerMs`, and a minute between clocks. */
const graceS = 65;

/** Advisory lock (class, object) of whoever changes the keys; "sds" in ASCII. */
const lock = [0x736473, 5];

const live = `(retired_date IS NULL OR retired_date > now() - make_interval(secs => token_ttl_s + ${graceS}))`;

/** What a key is sealed for, see `seal`. */
const context = (keyId: string) => `signing-key:${keyId}`;

/** Where the private halves are, for a new master key. */
export const signingKeySecrets: SealedColumn = {
  table: 'signing_keys',
  idColumn: 'key_id',
  column: 'encrypted_private_key',
  context,
};

interface NewKey {
  keyId: string;
  publicJwk: JWK;
  sealed: Sealed;
}

async function generate(db: Db, masterKey: MasterKeys): Promise<NewKey> {
  const { privateKey, publicKey } = await generateKeyPair(algorithm, { extractable: true });
  const keyId = newId();
  const publicJwk = { ...(await exportJWK(publicKey)), kid: keyId, alg: algorithm, use: 'sig' };
  return { keyId, publicJwk, sealed: await sealSecret(db, masterKey, await exportPKCS8(privateKey), context(keyId)) };
}

const insertKey = `INSERT INTO signing_keys
  (key_id, public_jwk, encrypted_private_key, master_key_id, issuers, token_ttl_s) VALUES ($1, $2, $3, $4, $5, $6)`;

function valuesOf({ keyId, publicJwk, sealed }: NewKey, issuers: string[], tokenTtlS: number): unknown[] {
  return [keyId, JSON.stringify(publicJwk), sealed.bytes, sealed.keyId, issuers, tokenTtlS];
}

/**
 * Puts a new key in use. The old one's private half is destroyed; its public half is published as long as tokens signed
 * by it may live. Keys past that are removed.
 */
export async function rotateKeys(
  pool: Pick<pg.Pool, 'connect'>,
  masterKey: MasterKeys,
): Promise<{ keyId: string; retiredKeyId: string | null }> {
  return transaction(pool, async (tx) => {
    await tx.query({ text: 'SELECT pg_advisory_xact_lock($1, $2)', values: lock });
    const key = await generate(tx, masterKey);
    await tx.query({ text: `DELETE FROM signing_keys WHERE NOT ${live}` });
    const { rows } = await tx.query<{ keyId: string; issuers: string[]; tokenTtlS: number }>({
      text: `UPDATE signing_keys SET retired_date = clock_timestamp(), encrypted_private_key = NULL
        WHERE retired_date IS NULL RETURNING key_id AS "keyId", issuers, token_ttl_s AS "tokenTtlS"`,
    });
    const [old] = rows;
    // The nodes that used the old key go on to use the new one; each adds what is missing before it signs.
    await tx.query({ text: insertKey, values: valuesOf(key, old?.issuers ?? [], old?.tokenTtlS ?? 0) });
    return { keyId: key.keyId, retiredKeyId: old?.keyId ?? null };
  });
}

interface SealedRow {
  keyId: string;
  bytes: Buffer;
  masterKeyId: string;
}

async function unsealKey(masterKey: MasterKeys, { keyId, bytes, masterKeyId }: SealedRow): Promise<Buffer> {
  try {
    return await masterKey.unseal({ keyId: masterKeyId, bytes }, context(keyId));
  } catch (cause) {
    if (!(cause instanceof UnsealError)) throw cause;
    throw new Error(`The key ${keyId} that signs access tokens cannot be decrypted. ${cause.message}`, { cause });
  }
}

interface KeyRow extends Omit<SealedRow, 'bytes'> {
  bytes: Buffer | null;
  publicJwk: JWK;
  issuers: string[];
  tokenTtlS: number;
  inUse: boolean;
}

/** A key that verifies, and the issuer names under which nodes sign with it. */
export interface Verifier {
  key: CryptoKey;
  issuers: readonly string[];
}

export interface Signer {
  keyId: string;
  key: CryptoKey;
}

interface Loaded {
  /** When the reading began, by the monotonic clock. */
  readAt: number;
  publicJwks: JWK[];
  verifiers: Map<string, Verifier>;
  /** A fault where it cannot be decrypted, which does not hinder a node from verifying. */
  signer: Signer | Error;
}

export interface KeyringOptions {
  db: Db;
  masterKey: MasterKeys;
  /** The `iss` of the tokens that this node signs. */
  issuer: string;
  /** Lifetime of the tokens that this node signs, in seconds. */
  tokenTtlS: number;
}

/** The signing keys as this node knows them, a few seconds behind the database at most. */
export class Keyring {
  readonly #options: KeyringOptions;
  readonly #closing = new AbortController();
  #loaded: Loaded | null = null;
  /** When the last attempt to read began. */
  #startedAt = Number.NEGATIVE_INFINITY;
  #loading: Promise<Loaded> | null = null;
  #next: Promise<Loaded> | null = null;

  constructor(options: KeyringOptions) {
    this.#options = options;
  }

  /** The key to sign with, made where there is none yet. */
  async signer(): Promise<Signer> {
    const { signer } = await this.#current();
    if (signer instanceof Error) throw signer;
    return signer;
  }

  /** The key of that id; where it or the issuer is not known yet, after a look into the database. */
  async verifier(keyId: string, issuer?: string): Promise<Verifier | null> {
    const find = ({ verifiers }: Loaded) => {
      const found = verifiers.get(keyId);
      return found && (issuer === undefined || found.issuers.includes(issuer)) ? found : null;
    };
    if (!isId(keyId)) return null;
    const loaded = this.#loaded;
    const found = loaded && find(loaded);
    if (!found) return find(await this.#reload());
    // The keys at hand will do; whoever cannot do with them meets the fault.
    if (performance.now() - loaded.readAt > verifierMs) this.#load().catch(() => {});
    return found;
  }

  /** The public keys by which live tokens may be signed, newest first (RFC 7517). */
  async publicKeys(): Promise<JWK[]> {
    return (await this.#current()).publicJwks;
  }

  close(): void {
    this.#closing.abort();
  }

  async #current(): Promise<Loaded> {
    const young = this.#loaded && performance.now() - this.#loaded.readAt < signerMs;
    return young ? (this.#loaded as Loaded) : this.#load();
  }

  /**
   * Keys as they are after this call, not before: a token by a new key is never refused because others with unknown
   * keys came just before it. It waits, with all who ask meanwhile, until the keys may be read again.
   */
  #reload(): Promise<Loaded> {
    this.#next ??= (async () => {
      try {
        const waitMs = this.#startedAt + cooldownMs - performance.now();
        if (waitMs > 0) await sleep(waitMs, undefined, { signal: this.#closing.signal });
        await this.#loading?.catch(() => {});
      } finally {
        this.#next = null;
      }
      return this.#load();
    })();
    return this.#next;
  }

  #load(): Promise<Loaded> {
    this.#loading ??= (async () => {
      this.#startedAt = performance.now();
      try {
        this.#loaded = await this.#read();
        return this.#loaded;
      } finally {
        this.#loading = null;
      }
    })();
    return this.#loading;
  }

  async #read(): Promise<Loaded> {
    const readAt = performance.now();
    let rows = await this.#rows();
    let row = rows.find(({ inUse }) => inUse);
    if (!row) {
      await this.#create();
      rows = await this.#rows();
      row = rows.find(({ inUse }) => inUse);
    }
    if (!row) throw new Error('No key to sign access tokens with could be made.');
    await this.#enlist(row);
    const verifiers = new Map<string, Verifier>();
    for (const { keyId, publicJwk, issuers } of rows) {
      const key = this.#loaded?.verifiers.get(keyId)?.key ?? ((await importJWK(publicJwk, algorithm)) as CryptoKey);
      verifiers.set(keyId, { key, issuers });
    }
    const signer = await this.#signerOf(row).catch((fault: Error) => fault);
    return { readAt, publicJwks: rows.map(({ publicJwk }) => publicJwk), verifiers, signer };
  }

  async #rows(): Promise<KeyRow[]> {
    const { rows } = await this.#options.db.query<KeyRow>(
      prepared(
        `SELECT key_id AS "keyId", public_jwk AS "publicJwk", encrypted_private_key AS bytes,
           master_key_id AS "masterKeyId", issuers, token_ttl_s AS "tokenTtlS", retired_date IS NULL AS "inUse"
         FROM signing_keys WHERE ${live} ORDER BY key_id DESC`,
        [],
      ),
    );
    return rows;
  }

  /** Whichever node is first makes the first key; the unique index lets only one be in use. */
  async #create(): Promise<void> {
    const { db, masterKey, issuer, tokenTtlS } = this.#options;
    await db.query({
      text: `${insertKey} ON CONFLICT DO NOTHING`,
      values: valuesOf(await generate(db, masterKey), [issuer], tokenTtlS),
    });
  }

  /** Lets other nodes know what this one signs with the key, before it does. */
  async #enlist(row: KeyRow): Promise<void> {
    const { db, issuer, tokenTtlS } = this.#options;
    if (row.issuers.includes(issuer) && row.tokenTtlS >= tokenTtlS) return;
    await db.query({
      text: `UPDATE signing_keys SET token_ttl_s = greatest(token_ttl_s, $3),
          issuers = CASE WHEN $2 = ANY (issuers) THEN issuers ELSE issuers || $2::text END
        WHERE key_id = $1`,
      values: [row.keyId, issuer, tokenTtlS],
    });
    row.issuers = [...new Set([...row.issuers, issuer])];
  }

  /** The key at hand serves on where it is the one in use, whatever master key it is encrypted by now. */
  async #signerOf(row: KeyRow): Promise<Signer> {
    const known = this.#loaded?.signer;
    if (known && 'keyId' in known && known.keyId === row.keyId) return known;
    const { bytes } = row;
    if (!bytes) throw new Error(`The key ${row.keyId} that signs access tokens has no private half.`);
    const pkcs8 = (await unsealKey(this.#options.masterKey, { ...row, bytes })).toString();
    return { keyId: row.keyId, key: await importPKCS8(pkcs8, algorithm) };
  }
}
