import { once } from 'node:events';
import { serve } from '../serve.ts';
import { command } from './command.ts';
import { openLog } from './log.ts';

export const serveCommand = command({
  details: [
    'Prints one line to standard output when it is ready: listening on http://HOST:PORT',
    'The log goes to standard error. SIGTERM or SIGINT stops it in order, a second one at once.',
  ].join('\n'),
  async run(call) {
    const settings = call.settings();
    const log = openLog(settings.config.logLevel);
    const server = await serve(settings, log, call.signal).catch((error: unknown) => {
      // Stopped before it was ready, which is as good an end as any.
      if (error === call.signal.reason) return null;
      throw error;
    });
    if (!server) return undefined;
    try {
      call.stdout.write(call.json ? `${JSON.stringify({ url: server.url })}\n` : `listening on ${server.url}\n`);
      if (!call.signal.aborted) await once(call.signal, 'abort');
    } finally {
      await server.close();
    }
    return undefined;
  },
});
