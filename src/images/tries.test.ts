import { describe, expect, test } from 'vitest';
import { ObjectError } from '../objects/store.ts';
import { FileFault, MAX_TRIES, Tries } from './tries.ts';

const transient = () => new ObjectError('transient', 'It broke.');

describe('the tries of a file', () => {
  test('go on after transient errors, counted', async () => {
    const told: number[] = [];
    const tries = new Tries(1, new AbortController().signal, async (count) => void told.push(count));
    let calls = 0;
    const result = await tries.run(async () => {
      if (++calls < 3) throw transient();
      return 'done';
    });
    expect([result, calls, told]).toEqual(['done', 3, [2, 3]]);
  });

  test('end with the last one, whose error they tell', async () => {
    const tries = new Tries(MAX_TRIES, new AbortController().signal, async () => {});
    await expect(tries.run(() => Promise.reject(transient()))).rejects.toThrow(
      new FileFault(`Given up after ${MAX_TRIES} tries: It broke.`),
    );
  });

  test('end at once with an error that needs a person, and with one that is no fault of the file', async () => {
    const tries = new Tries(1, new AbortController().signal, async () => {});
    await expect(tries.run(() => Promise.reject(new ObjectError('denied', 'No.')))).rejects.toThrow(
      new FileFault('No.'),
    );
    await expect(tries.run(() => Promise.reject(new TypeError('bug')))).rejects.toThrow(TypeError);
    expect(tries.current).toBe(1);
  });

  test('count what breaks at the same time once', async () => {
    const tries = new Tries(1, new AbortController().signal, async () => {});
    let broken = 0;
    const part = () =>
      tries.run(async () => {
        if (broken < 4) {
          broken += 1;
          throw transient();
        }
      });
    await Promise.all([part(), part(), part(), part()]);
    expect(tries.current).toBe(2);
  });

  test('stop waiting when the job stops', async () => {
    const stop = new AbortController();
    const tries = new Tries(1, stop.signal, async () => stop.abort(new Error('stopped')));
    await expect(tries.run(() => Promise.reject(transient()))).rejects.toThrow('stopped');
  });
});
