import { expect, test } from 'vitest';
import { network, Throttle } from './throttle.ts';

/** A throttle with a clock that the test moves. */
function throttleAt0() {
  const clock = { ms: 0 };
  const throttle = new Throttle(() => clock.ms);
  const fail = (clientId: string, address: string) => {
    const waitMs = throttle.admit(clientId, address);
    if (waitMs === 0) throttle.failed(clientId, address);
    return waitMs;
  };
  return { clock, throttle, fail };
}

test('ten failures cost nothing, further ones 1, 2, 4 … s up to a minute', () => {
  const { clock, throttle, fail } = throttleAt0();
  for (let i = 0; i < 10; i++) expect(fail('a', '192.0.2.1')).toBe(0);
  const waits: number[] = [];
  for (let i = 0; i < 12; i++) {
    expect(fail('a', '192.0.2.1')).toBe(0);
    const waitMs = throttle.admit('a', '192.0.2.1');
    waits.push(waitMs / 1_000);
    clock.ms += waitMs;
  }
  expect(waits.slice(0, 4)).toEqual([1, 2, 4, 8]);
  expect(Math.max(...waits)).toBe(60);
});

test('another address and another client of the same address are not slowed down', () => {
  const { throttle, fail } = throttleAt0();
  for (let i = 0; i < 20; i++) fail('a', '192.0.2.1');
  expect(throttle.admit('a', '192.0.2.1')).toBeGreaterThan(0);
  expect(throttle.admit('a', '192.0.2.2')).toBe(0);
  expect(throttle.admit('b', '192.0.2.1')).toBe(0);
});

test('a success is a new start for the client', () => {
  const { throttle, fail } = throttleAt0();
  for (let i = 0; i < 9; i++) fail('a', '192.0.2.1');
  throttle.succeeded('a', '192.0.2.1');
  for (let i = 0; i < 10; i++) expect(fail('a', '192.0.2.1')).toBe(0);
});

test('guessing comes down to one attempt a minute', () => {
  const { clock, fail } = throttleAt0();
  let attempts = 0;
  for (; clock.ms < 24 * 3_600_000; clock.ms += 1_000) if (fail('a', '192.0.2.1') === 0) attempts++;
  expect(attempts).toBeLessThan(24 * 60 + 30);
});

test('attempts sent at once past the free ones go one by one', () => {
  const { clock, throttle, fail } = throttleAt0();
  for (let i = 0; i < 11; i++) fail('a', '192.0.2.1');
  clock.ms += 2_000;
  const waits = Array.from({ length: 5 }, () => throttle.admit('a', '192.0.2.1'));
  expect(waits.filter((waitMs) => waitMs === 0)).toHaveLength(1);
});

test('one secret tried on many ids slows their address down, and a right one does not cover up for it', () => {
  const { throttle, fail } = throttleAt0();
  for (let i = 0; i < 101; i++) {
    expect(fail(`client${i}`, '192.0.2.1')).toBe(0);
    throttle.succeeded('own', '192.0.2.1');
  }
  expect(throttle.admit('another', '192.0.2.1')).toBeGreaterThan(0);
  expect(throttle.admit('another', '192.0.2.2')).toBe(0);
});

test('one client that keeps trying a wrong secret never slows down the others behind its proxy', () => {
  const { clock, throttle, fail } = throttleAt0();
  for (; clock.ms < 24 * 3_600_000; clock.ms += 1_000) fail('broken', '192.0.2.1');
  expect(throttle.admit('another', '192.0.2.1')).toBe(0);
});

test('IPv6 addresses count by their network of 64 bits', () => {
  expect(network('2001:db8:1:2:3:4:5:6')).toBe('2001:db8:1:2');
  expect(network('2001:DB8:1:2::1')).toBe('2001:db8:1:2');
  expect(network('2001:db8::1')).toBe('2001:db8:0:0');
  expect(network('::1')).toBe('0:0:0:0');
  expect(network('fe80::1%eth0')).toBe('fe80:0:0:0');
  expect(network('::ffff:192.0.2.1')).toBe('192.0.2.1');
  expect(network('192.0.2.1')).toBe('192.0.2.1');
});
