import { createHmac, randomBytes, type ScryptOptions, scrypt, timingSafeEqual } from 'node:crypto';
import { Recent } from './recent.ts';

/** A slow hash: 32 MiB and 50 to 90 ms of one core a guess. The cost is kept in each hash, so it can be raised later. */
const cost = { N: 2 ** 15, r: 8, p: 1 };
const hashBytes = 32;
const saltBytes = 16;

/** A new client secret: 256 random bits in characters that no form or header encodes; the prefix is for leak scanners. */
export function newSecret(): string {
  return `sds_${randomBytes(32).toString('base64url')}`;
}

/** Hash of a secret, with its salt and cost: `scrypt$N$r$p$salt$hash`. */
export async function hashSecret(secret: string): Promise<string> {
  const salt = randomBytes(saltBytes);
  const hash = await derive(secret, salt, cost);
  return ['scrypt', cost.N, cost.r, cost.p, salt.toString('base64url'), hash.toString('base64url')].join('$');
}

function derive(secret: string, salt: Buffer, { N, r, p }: typeof cost): Promise<Buffer> {
  // Twice the 128 × N × r bytes that scrypt needs: Node's own limit is just below what `cost` takes.
  const options: ScryptOptions = { N, r, p, maxmem: 256 * N * r };
  return new Promise((resolve, reject) => {
    scrypt(secret, salt, hashBytes, options, (error, key) => (error ? reject(error) : resolve(key)));
  });
}

async function check(secret: string, stored: string): Promise<boolean> {
  const [kind, N, r, p, salt, hash] = stored.split('$');
  if (kind !== 'scrypt' || !salt || !hash) throw new Error('A stored secret hash has an unknown form.');
  const derived = await derive(secret, Buffer.from(salt, 'base64url'), { N: Number(N), r: Number(r), p: Number(p) });
  return timingSafeEqual(derived, Buffer.from(hash, 'base64url'));
}

/** A hash that no secret has, checked for clients that do not exist, so that they take as long as those that do. */
const nobody = ['scrypt', cost.N, cost.r, cost.p, 'A'.repeat(22), 'A'.repeat(43)].join('$');

/** More secrets wait to be checked than can be checked in reasonable time: 503, worth another try. */
export class TooManyGuesses extends Error {
  override name = 'TooManyGuesses';
}

/** Two at once leave the other two of Node's four pool threads to files, names and signatures. */
const concurrency = 2;
/** 32 × 90 ms / 2 = 1.4 s: who would have to wait longer is sent away. */
const maxWaiting = 32;
/** As many clients get tokens without a slow hash each time; some 200 bytes each. */
const provenSecrets = 10_000;

/**
 * Checks client secrets, a bounded number at once. A secret that was right is known again by a keyed hash held in memory
 * only, so that a client that asks often, or 50 times at once, costs one slow hash; wrong ones always cost it.
 */
export class SecretChecker {
  /** Lives and dies with the process, so what is held is of no use elsewhere. */
  readonly #key = randomBytes(32);
  readonly #proven = new Recent<true>(provenSecrets);
  readonly #checking = new Map<string, Promise<boolean>>();
  readonly #waiting: (() => void)[] = [];
  #running = 0;

  /** Whether the secret has this hash; null stands for a client that does not exist. Throws {@link TooManyGuesses}. */
  async matches(secret: string, stored: string | null): Promise<boolean> {
    const hash = stored ?? nobody;
    const mac = createHmac('sha256', this.#key).update(`${hash}\0${secret}`).digest('base64');
    if (this.#proven.get(mac)) return true;
    const known = this.#checking.get(mac);
    if (known) return known;
    const checking = this.#inTurn(() => check(secret, hash));
    this.#checking.set(mac, checking);
    try {
      const right = await checking;
      if (right) this.#proven.set(mac, true);
      return right;
    } finally {
      this.#checking.delete(mac);
    }
  }

  async #inTurn<T>(work: () => Promise<T>): Promise<T> {
    if (this.#running < concurrency) this.#running++;
    else if (this.#waiting.length >= maxWaiting) throw new TooManyGuesses('Too many client secrets are being checked.');
    // The one that ends hands its place over, so the count of those running stays as it is.
    else await new Promise<void>((resolve) => this.#waiting.push(resolve));
    try {
      return await work();
    } finally {
      const next = this.#waiting.shift();
      if (next) next();
      else this.#running--;
    }
  }
}
