import { describe, expect, test } from 'vitest';
import { ReadBuffer } from '../src/audit/read-buffer.ts';
import { openPool } from '../src/db/database.ts';
import type { EventDraft } from '../src/http/gate.ts';
import { newId } from '../src/lib/id.ts';
import { eventually, useService } from './service.ts';

const service = useService();

function draft(more: Partial<EventDraft> = {}): EventDraft {
  return {
    event: 'CLIENT_ACCESSED_STUDY',
    clientId: 'reader',
    operation: 'GET /studies',
    method: 'GET',
    path: '/api/v1/studies',
    status: 200,
    resourceType: 'study',
    resourceId: null,
    resourceIds: null,
    studyId: null,
    requestId: newId(),
    reason: null,
    changes: null,
    ...more,
  };
}

const count = async (clientId: string): Promise<number> =>
  (await service.pool.query('select count(*) as n from audit_events where client_id = $1', [clientId])).rows[0].n;

describe('read events', () => {
  test('are written soon, all of a burst, each once', async () => {
    const { token, clientId } = await service.client();
    const reads = Array.from({ length: 1_200 }, () => service.call('GET', '/studies', undefined, { token }));
    await Promise.all(reads);
    await eventually(async () => (await count(clientId)) === 1_200);
  });

  test('are written when the server stops', async () => {
    const { token, clientId } = await service.client();
    for (let i = 0; i < 5; i++) await service.call('GET', '/studies', undefined, { token });
    await service.restart();
    expect(await count(clientId)).toBe(5);
  });

  test('are dropped and counted when too many wait, and those that were taken are written', async () => {
    let dropped = 0;
    const buffer = new ReadBuffer(service.pool, (n) => {
      dropped += n;
    });
    for (let i = 0; i < 12_000; i++) buffer.add(draft({ clientId: 'flood' }));
    await buffer.flush();
    expect(dropped).toBeGreaterThan(0);
    expect(await count('flood')).toBe(12_000 - dropped);
  });

  test('are dropped and counted while the database is away', async () => {
    let dropped = 0;
    const pool = openPool({ url: `${service.databaseUrl.replace(/\?.*/, '')}_that_is_not_there`, name: 'away' });
    const buffer = new ReadBuffer(pool, (n) => {
      dropped += n;
    });
    for (let i = 0; i < 7; i++) buffer.add(draft({ clientId: 'outage' }));
    await buffer.flush();
    expect(dropped).toBe(7);
    buffer.add(draft({ clientId: 'outage', reason: 'QA' }));
    await buffer.flush();
    expect(dropped).toBe(8);
    await pool.end();
  });

  test('that are lost show in the metrics', async () => {
    const metrics = await (await fetch(`${service.url}/metrics`)).text();
    expect(metrics).toMatch(/^sds_audit_read_events_dropped_total 0$/m);
  });
});
