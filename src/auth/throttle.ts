import { isIPv6 } from 'node:net';
import { Recent } from './recent.ts';

/** A leaky bucket of failures. */
interface Limit {
  /** Failures without consequence. */
  free: number;
  /** One failure is forgotten after this long. */
  leakMs: number;
  /** The longest that the next attempt has to wait. */
  maxDelayMs: number;
}

/**
 * One client from one address. 10: a person who mistypes, a deployment that tries an old secret, do not notice it. Then
 * 1, 2, 4 … s, so that guessing comes down to one attempt a minute, the rate of forgetting; 1 min: whoever put the
 * secret right gets in without help.
 */
const perClient: Limit = { free: 10, leakMs: 60_000, maxDelayMs: 60_000 };
/**
 * Everything from one address, which may be a proxy before many clients. 100, and ten a minute forgotten: some clients
 * with a wrong secret, slowed down by the limit above, never add up to it; trying one secret on many ids does. 30 s:
 * the others behind that proxy wait no longer.
 */
const perAddress: Limit = { free: 100, leakMs: 6_000, maxDelayMs: 30_000 };

/** Of each kind, some 200 bytes each; more attackers at once than that push out each other's oldest. */
const kept = 10_000;
/** The first delay; each further failure doubles it. */
const firstDelayMs = 1_000;

interface Bucket {
  failures: number;
  /** When `failures` was right. */
  at: number;
  /** No attempt before this. */
  closedUntil: number;
}

/** Slows down guessing of client secrets, in bounded memory; each process counts for itself. */
export class Throttle {
  readonly #now: () => number;
  readonly #clients = new Recent<Bucket>(kept);
  readonly #addresses = new Recent<Bucket>(kept);

  /** `now` is a monotonic clock in milliseconds. */
  constructor(now: () => number = () => performance.now()) {
    this.#now = now;
  }

  /** Asks for an attempt: 0 lets it go on, else the milliseconds after which to come again. */
  admit(clientId: string, address: string): number {
    const now = this.#now();
    const buckets = [
      { bucket: this.#clients.get(clientKey(clientId, address)), limit: perClient },
      { bucket: this.#addresses.get(network(address)), limit: perAddress },
    ];
    const waitMs = Math.max(...buckets.map(({ bucket }) => (bucket ? bucket.closedUntil - now : 0)));
    if (waitMs > 0) return waitMs;
    // Past the free ones they go one by one: many sent at once do not all pass before the first has failed.
    for (const { bucket, limit } of buckets) if (bucket) close(bucket, limit, now);
    return 0;
  }

  failed(clientId: string, address: string): void {
    this.#count(this.#clients, clientKey(clientId, address), perClient);
    this.#count(this.#addresses, network(address), perAddress);
  }

  /** Forgets the client's failures; not those of the address, else one right secret would cover up for many wrong ones. */
  succeeded(clientId: string, address: string): void {
    this.#clients.delete(clientKey(clientId, address));
  }

  #count(buckets: Recent<Bucket>, key: string, limit: Limit): void {
    const now = this.#now();
    const bucket = buckets.get(key) ?? { failures: 0, at: now, closedUntil: 0 };
    leak(bucket, limit, now);
    bucket.failures += 1;
    close(bucket, limit, now);
    buckets.set(key, bucket);
  }
}

function leak(bucket: Bucket, limit: Limit, now: number): void {
  bucket.failures = Math.max(0, bucket.failures - (now - bucket.at) / limit.leakMs);
  bucket.at = now;
}

function close(bucket: Bucket, limit: Limit, now: number): void {
  leak(bucket, limit, now);
  const excess = Math.ceil(bucket.failures - limit.free);
  if (excess <= 0) return;
  bucket.closedUntil = now + Math.min(limit.maxDelayMs, firstDelayMs * 2 ** (excess - 1));
}

/** Client ids are what an attacker sends, so they are cut. */
function clientKey(clientId: string, address: string): string {
  return `${network(address)} ${clientId.slice(0, 255)}`;
}

/** Who holds an IPv6 address mostly holds the 2^64 of its network, so these count as one. */
export function network(address: string): string {
  if (!isIPv6(address)) return address;
  const mapped = /^::ffff:(\d+\.\d+\.\d+\.\d+)$/i.exec(address);
  if (mapped?.[1]) return mapped[1];
  const [head = '', tail] = address.split('%', 1)[0]?.split('::') ?? [];
  const groups = head === '' ? [] : head.split(':');
  if (tail !== undefined) {
    const end = tail === '' ? [] : tail.split(':');
    groups.push(...Array<string>(Math.max(0, 8 - groups.length - end.length)).fill('0'), ...end);
  }
  return groups
    .slice(0, 4)
    .map((group) => Number.parseInt(group, 16).toString(16))
    .join(':');
}
