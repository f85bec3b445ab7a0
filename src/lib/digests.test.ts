import { createHash, randomFillSync } from 'node:crypto';
import { afterAll, expect, test } from 'vitest';
import { Digests } from './digests.ts';

const digests = new Digests();
afterAll(() => digests.close());

/** In shared memory, as the parts of an object are. */
const chunks = Array.from({ length: 5 }, (_, n) => randomFillSync(Buffer.from(new SharedArrayBuffer(300_000 + n))));
const expected = (algorithm: string, parts: Buffer[]) =>
  createHash(algorithm).update(Buffer.concat(parts)).digest('hex');

async function digest(parts: Buffer[], ...algorithms: string[]): Promise<string[]> {
  const one = digests.begin(...algorithms);
  for (const part of parts) await one.update(part);
  return one.end();
}

test('several digests of the same bytes are computed at once, in the order in which they were asked for', async () => {
  expect(await digest(chunks, 'sha256', 'md5')).toEqual([expected('sha256', chunks), expected('md5', chunks)]);
  expect(await digest([], 'sha256')).toEqual([expected('sha256', [])]);
});

test('what is digested at the same time does not mix', async () => {
  const runs = chunks.map((_, n) => [...chunks.slice(n), ...chunks.slice(0, n)]);
  const found = await Promise.all(runs.map((parts) => digest(parts, 'sha256')));
  expect(found).toEqual(runs.map((parts) => [expected('sha256', parts)]));
});

test('a thread that dies fails the digests that were begun, and the next begins in another', async () => {
  const one = digests.begin('sha256');
  await one.update(chunks[0] as Buffer);
  // Whether the thread still came to it is up to chance; nobody waits for ever.
  await Promise.allSettled([digests.close(), one.update(chunks[1] as Buffer)]);
  await expect(one.update(chunks[2] as Buffer)).rejects.toThrow('has ended');
  await expect(one.end()).rejects.toThrow('has ended');
  expect(await digest(chunks, 'sha256')).toEqual([expected('sha256', chunks)]);
});

test('a digest that cannot be computed harms no other', async () => {
  const good = digests.begin('sha256');
  await good.update(chunks[0] as Buffer);
  await expect(digest(chunks, 'no-such-algorithm')).rejects.toThrow('no such digest');
  expect(await good.end()).toEqual([expected('sha256', chunks.slice(0, 1))]);
});
