import { once } from 'node:events';
import { PassThrough, Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { setTimeout } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { readWithIdleTimeout, withIdleTimeout } from './idle.ts';
import { ObjectError } from './store.ts';

const never = () => new Promise<never>(() => {});
const call = { what: 'the call', idleTimeoutMs: 50, signal: undefined };
const expected = { what: 'the body', sizeBytes: undefined, idleTimeoutMs: 50, signal: undefined };

describe('a call with an idle timeout', () => {
  test('that never ends is given up, and told to stop', async () => {
    let stopped: AbortSignal | undefined;
    const calling = withIdleTimeout(call, (signal) => {
      stopped = signal;
      return never();
    });
    await expect(calling).rejects.toMatchObject({
      kind: 'transient',
      message: 'the call made no progress for 0.05 s.',
    });
    expect(stopped?.aborted).toBe(true);
  });

  test('goes on as long as it makes progress', async () => {
    const calling = withIdleTimeout({ ...call, idleTimeoutMs: 500 }, async (_, progress) => {
      for (let step = 0; step < 10; step++) {
        await setTimeout(100);
        progress();
      }
      return 'done';
    });
    expect(await calling).toBe('done');
  });

  test('rejects with the reason of whoever aborts it, once it has tidied up', async () => {
    const abort = new AbortController();
    const reason = new Error('stop');
    let tidy = false;
    const calling = withIdleTimeout({ ...call, idleTimeoutMs: 10_000, signal: abort.signal }, async (signal) => {
      await once(signal, 'abort');
      tidy = true;
      throw new Error('the error of the library');
    });
    abort.abort(reason);
    await expect(calling).rejects.toBe(reason);
    expect(tidy).toBe(true);
    await expect(withIdleTimeout({ ...call, signal: abort.signal }, never)).rejects.toBe(reason);
  });
});

describe('a body with an idle timeout', () => {
  test('that stops coming ends in a transient error', async () => {
    const source = new PassThrough();
    source.write('some');
    await expect(buffer(readWithIdleTimeout(source, expected))).rejects.toMatchObject({ kind: 'transient' });
    expect(source.destroyed).toBe(true);
  });

  test('that is all there waits for its reader as long as he likes', async () => {
    const body = readWithIdleTimeout(Readable.from([Buffer.from('all'), Buffer.from(' of it')]), expected);
    await once(body, 'readable');
    await setTimeout(200);
    expect((await buffer(body)).toString()).toBe('all of it');
  });

  test.each([3, 5])('of another length than %d bytes ends in a transient error', async (sizeBytes) => {
    const body = readWithIdleTimeout(Readable.from([Buffer.from('four')]), { ...expected, sizeBytes });
    await expect(buffer(body)).rejects.toMatchObject({ kind: 'transient' });
  });

  test('that breaks says why: an error of a store stays what it is', async () => {
    const changed = new ObjectError('changed', 'it has changed');
    for (const [error, kind] of [
      [changed, 'changed'],
      [new Error('reset'), 'transient'],
    ] as const) {
      const source = new PassThrough();
      const body = readWithIdleTimeout(source, { ...expected, idleTimeoutMs: 10_000 });
      source.destroy(error);
      await expect(buffer(body)).rejects.toMatchObject({ kind });
    }
    const closed = new PassThrough();
    const body = readWithIdleTimeout(closed, { ...expected, idleTimeoutMs: 10_000 });
    closed.destroy();
    await expect(buffer(body)).rejects.toMatchObject({ kind: 'transient' });
  });
});
