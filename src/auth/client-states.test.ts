import { describe, expect, test } from 'vitest';
import { ClientStates } from './client-states.ts';
import type { ClientState } from './clients.ts';

/** States that the test answers one by one, with a clock that it moves. */
function controlled() {
  const clock = { ms: 0 };
  const reads: { resolve: (state: ClientState | null) => void; reject: (fault: Error) => void }[] = [];
  const states = new ClientStates(
    () => new Promise((resolve, reject) => reads.push({ resolve, reject })),
    () => clock.ms,
  );
  const settle = () => new Promise((resolve) => setImmediate(resolve));
  return { clock, reads, states, settle };
}

const first: ClientState = { disabled: false, scopes: new Set(['Study:Read']) };
const second: ClientState = { disabled: true, scopes: new Set() };

async function known() {
  const control = controlled();
  const asked = control.states.get('a');
  control.reads[0]?.resolve(first);
  expect(await asked).toBe(first);
  return control;
}

describe('the state of a client', () => {
  test('is read once for all who ask meanwhile', async () => {
    const { reads, states } = controlled();
    const asked = [states.get('a'), states.get('a')];
    expect(reads).toHaveLength(1);
    reads[0]?.resolve(first);
    expect(await Promise.all(asked)).toEqual([first, first]);
  });

  test('answers at once for 2 s without another look', async () => {
    const { clock, reads, states } = await known();
    clock.ms = 1_999;
    expect(states.get('a')).toBe(first);
    expect(reads).toHaveLength(1);
  });

  test('is read again in the background after 2 s, once', async () => {
    const { clock, reads, states, settle } = await known();
    clock.ms = 2_000;
    expect(states.get('a')).toBe(first);
    expect(states.get('a')).toBe(first);
    expect(reads).toHaveLength(2);
    reads[1]?.resolve(second);
    await settle();
    expect(states.get('a')).toBe(second);
  });

  test('older than 4 s is waited for', async () => {
    const { clock, reads, states } = await known();
    clock.ms = 4_000;
    const asked = states.get('a');
    expect(asked).toBeInstanceOf(Promise);
    reads[1]?.resolve(second);
    expect(await asked).toBe(second);
  });

  test('counts its age from when it was asked for, not from the answer', async () => {
    const { clock, reads, states } = controlled();
    const asked = states.get('a');
    clock.ms = 1_500;
    reads[0]?.resolve(first);
    await asked;
    clock.ms = 2_000;
    void states.get('a');
    expect(reads).toHaveLength(2);
  });

  test('that took more than 5 s to read is not used: 503', async () => {
    const { clock, reads, states } = controlled();
    const asked = states.get('a') as Promise<unknown>;
    clock.ms = 5_001;
    reads[0]?.resolve(first);
    await expect(asked).rejects.toMatchObject({ kind: 'unavailable' });
  });

  test('serves on for 4 s while the database is away, then its fault is passed on', async () => {
    const { clock, reads, states, settle } = await known();
    clock.ms = 2_000;
    void states.get('a');
    reads[1]?.reject(new Error('gone'));
    await settle();
    clock.ms = 3_999;
    expect(states.get('a')).toBe(first);
    reads[2]?.reject(new Error('gone'));
    await settle();
    clock.ms = 4_000;
    const asked = states.get('a') as Promise<unknown>;
    reads[3]?.reject(new Error('gone'));
    await expect(asked).rejects.toThrow('gone');
  });

  test('of a client that does not exist is kept as well', async () => {
    const { reads, states } = controlled();
    const asked = states.get('nobody');
    reads[0]?.resolve(null);
    expect(await asked).toBeNull();
    expect(states.get('nobody')).toBeNull();
    expect(reads).toHaveLength(1);
  });
});
