import { get } from 'node:http';

/** Opens so many progress streams of one job and tells, for each event, how many got it and when the last one did. */
const [url = '', token = '', count = '0'] = process.argv.slice(2);
const total = Number(count);
const seen = new Map<string, { count: number; lastMs: number }>();
let open = 0;

function watch(): void {
  get(url, { agent: false, headers: { authorization: `Bearer ${token}`, accept: 'text/event-stream' } }, (response) => {
    if (response.statusCode !== 200) throw new Error(`a watcher was answered ${response.statusCode}`);
    open += 1;
    if (open === total) process.stdout.write('{"open":true}\n');
    let buffered = '';
    response.setEncoding('utf8').on('data', (chunk: string) => {
      buffered += chunk;
      const events = buffered.split('\n\n');
      buffered = events.pop() as string;
      for (const event of events) {
        const [, id] = /^id: ?(.+)$/m.exec(event) ?? [];
        if (!id) continue;
        const entry = seen.get(id) ?? { count: 0, lastMs: 0 };
        entry.count += 1;
        entry.lastMs = Date.now();
        seen.set(id, entry);
        if (entry.count === total) process.stdout.write(`${JSON.stringify({ id, lastMs: entry.lastMs })}\n`);
      }
    });
  });
}

for (let watcher = 0; watcher < total; watcher++) setTimeout(watch, watcher);
process.on('SIGTERM', () => process.exit(0));
