import { once } from 'node:events';
import { buffer } from 'node:stream/consumers';
import pg from 'pg';
import { afterEach, beforeEach, describe, expect, inject, test } from 'vitest';
import { CopyOut } from './copy-out.ts';

let client: pg.Client;
beforeEach(async () => {
  client = new pg.Client({ connectionString: inject('databaseUrl') });
  client.on('error', () => {});
  await client.connect();
});
afterEach(() => client.end().catch(() => {}));

const copy = (query: string) => client.query(new CopyOut(`copy (${query}) to stdout`));
const answers = async () => (await client.query('select 42 as answer')).rows;

describe('a COPY', () => {
  test('is all that the server sends, whatever the size of its rows and how many', async () => {
    const text = async (query: string) => (await buffer(copy(query))).toString();
    expect(await text('select 1 where false')).toBe('');
    expect(await text(`select 'one', 2`)).toBe('one\t2\n');
    const numbers = Array.from({ length: 300_000 }, (_, i) => `${i + 1}\n`).join('');
    expect(await text('select i from generate_series(1, 300000) i')).toBe(numbers);
    for (const length of [1, 1_000, 65_530, 65_536, 3_000_000]) {
      const rows = `${'x'.repeat(length)}\n`.repeat(5);
      expect((await text(`select repeat('x', ${length}) from generate_series(1, 5)`)) === rows).toBe(true);
    }
    expect(await answers()).toEqual([{ answer: 42 }]);
  });

  test('may be followed by another, and by queries', async () => {
    for (let i = 0; i < 3; i++) {
      expect((await buffer(copy('select i from generate_series(1, 100000) i'))).length).toBe(588_895);
      expect(await answers()).toEqual([{ answer: 42 }]);
    }
  });

  test('is read no faster than it is wanted', async () => {
    const rows = copy(`select repeat('x', 1000) from generate_series(1, 100000)`);
    await once(rows, 'readable');
    await new Promise((resolve) => setTimeout(resolve, 200));
    expect(rows.readableLength).toBeLessThan(1_000_000);
    expect((await buffer(rows)).length).toBe(100_100_000);
  });

  test('with notices and notifications between its rows is that of its rows', async () => {
    await client.query(`create function pg_temp.notice(i int) returns int language plpgsql as
      $$ begin raise notice 'row %', i; return i; end $$`);
    expect((await buffer(copy('select pg_temp.notice(i) from generate_series(1, 1000) i'))).toString()).toBe(
      Array.from({ length: 1000 }, (_, i) => `${i + 1}\n`).join(''),
    );
  });

  test('that is refused ends in the reason, and the connection can be used on', async () => {
    await expect(buffer(copy('select no_such_column'))).rejects.toMatchObject({ code: '42703' });
    expect(await answers()).toEqual([{ answer: 42 }]);
  });

  test('that fails on the way ends in the reason, and the connection can be used on', async () => {
    const failing = copy('select 1 / (50000 - i) from generate_series(1, 100000) i');
    await expect(buffer(failing)).rejects.toMatchObject({ code: '22012' });
    expect(await answers()).toEqual([{ answer: 42 }]);
  });

  test('whose connection is broken is an error, also for who reads it later', async () => {
    const rows = copy('select pg_sleep(100)');
    rows.on('error', () => {});
    const other = new pg.Client({ connectionString: inject('databaseUrl') });
    await other.connect();
    const end = `select pg_terminate_backend(pid) from pg_stat_activity where query = 'copy (select pg_sleep(100)) to stdout'`;
    expect((await other.query(end)).rowCount).toBe(1);
    await other.end();
    if (!rows.closed) await new Promise((resolve) => rows.once('close', resolve));
    await expect(buffer(rows)).rejects.toThrow();
  });

  test('that nobody reads to its end breaks the connection', async () => {
    const rows = copy(`select repeat('x', 1000) from generate_series(1, 1000000)`);
    const ended = new Promise((resolve) => client.once('end', resolve));
    for await (const _ of rows) break;
    await ended;
    await expect(answers()).rejects.toThrow();
  });
});
