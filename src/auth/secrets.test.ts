import { expect, test } from 'vitest';
import { hashSecret, newSecret, SecretChecker, TooManyGuesses } from './secrets.ts';

test('a new secret has 256 random bits in characters that no form or header encodes', () => {
  expect(newSecret()).toMatch(/^sds_[\w-]{43}$/);
  expect(newSecret()).not.toBe(newSecret());
});

test('a hash tells its cost, and two of one secret differ', async () => {
  const [one, two] = await Promise.all([hashSecret('secret'), hashSecret('secret')]);
  expect(one).toMatch(/^scrypt\$32768\$8\$1\$[\w-]{22}\$[\w-]{43}$/);
  expect(one).not.toBe(two);
});

test('a secret matches its own hash only, the first time and later', async () => {
  const checker = new SecretChecker();
  const hash = await hashSecret('secret');
  for (let i = 0; i < 2; i++) {
    expect(await checker.matches('secret', hash)).toBe(true);
    expect(await checker.matches('Secret', hash)).toBe(false);
  }
  expect(await checker.matches('secret', await hashSecret('another'))).toBe(false);
});

test('a hash of another cost is checked by its own', async () => {
  // RFC 7914 §12: scrypt("pleaseletmein", "SodiumChloride", 16384, 8, 1), its first 32 bytes.
  const hash = Buffer.from('7023bdcb3afd7348461c06cd81fd38ebfda8fbba904f8e3ea9b543f6545da1f2', 'hex');
  const stored = `scrypt$16384$8$1$${Buffer.from('SodiumChloride').toString('base64url')}$${hash.toString('base64url')}`;
  expect(await new SecretChecker().matches('pleaseletmein', stored)).toBe(true);
});

test('no secret is that of a client that does not exist', async () => {
  expect(await new SecretChecker().matches('', null)).toBe(false);
});

test('more guesses than can wait are sent away, and those that wait are answered', async () => {
  const checker = new SecretChecker();
  const results = await Promise.allSettled(Array.from({ length: 40 }, (_, i) => checker.matches(`guess${i}`, null)));
  const refused = results.filter((result) => result.status === 'rejected');
  expect(refused).toHaveLength(40 - 34);
  for (const { reason } of refused) expect(reason).toBeInstanceOf(TooManyGuesses);
  expect(await checker.matches('later', null)).toBe(false);
});
