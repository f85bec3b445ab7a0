import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { errorFields, type Tell } from './report.ts';

/** Between attempts to get a lost connection back; polls do the work meanwhile. */
const RECONNECT_MS = 1_000;

/**
 * Hears the notifications of a database on a connection of its own, until the signal aborts. `onMissed` is called
 * whenever some may have been missed: at the start, and after the connection was lost. Resolves when it listens, or
 * the first attempt failed.
 */
export async function listen(
  options: { url: string; name: string; tell: Tell; signal: AbortSignal },
  channels: Record<string, (payload: string) => void>,
  onMissed: () => void,
): Promise<void> {
  const { url, name, tell, signal } = options;
  if (signal.aborted) return;
  const client = new pg.Client({
    connectionString: url,
    application_name: name,
    keepAlive: true,
    connectionTimeoutMillis: 5_000, // as the pool’s: jobs are polled for meanwhile
  });
  const close = () => void client.end().catch(() => {});
  const again = async () => {
    signal.removeEventListener('abort', close);
    await sleep(RECONNECT_MS, undefined, { signal }).catch(() => {});
    await listen(options, channels, onMissed);
  };
  client.on('error', (error) =>
    tell({ type: 'log', level: 'warn', message: 'notifications are lost', fields: errorFields(error) }),
  );
  client.on('notification', ({ channel, payload }) => channels[channel]?.(payload ?? ''));
  signal.addEventListener('abort', close, { once: true });
  try {
    await client.connect();
    for (const channel of Object.keys(channels)) await client.query(`LISTEN ${client.escapeIdentifier(channel)}`);
  } catch (error) {
    if (signal.aborted) return;
    tell({ type: 'log', level: 'warn', message: 'notifications cannot be heard', fields: errorFields(error) });
    close();
    void again();
    return;
  }
  client.once('end', () => {
    if (!signal.aborted) void again();
  });
  onMissed();
}
