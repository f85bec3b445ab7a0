import { purgeObjects } from '../jobs/purge.ts';
import { openStore } from '../objects/open.ts';
import { purgeStudies } from '../studies/purge.ts';
import { command } from './command.ts';
import { withDatabase } from './open.ts';

export const purge = command({
  details: 'The server does so by itself; this one is for a moment of your choice. Safe beside it, and after a crash.',
  run: (call) =>
    withDatabase(call, async ({ pool, settings }) => {
      const store = await openStore(settings.config.objectStore, { idleTimeoutMs: settings.config.cloudIdleTimeoutMs });
      try {
        const studies = await purgeStudies(pool, call.signal);
        let failed = 0;
        const objects = await purgeObjects(pool, store, call.signal, (key, error) => {
          failed += 1;
          call.say(`The object ${key} stays: ${(error as Error).message}`);
        });
        return {
          value: { studies, objects, failed },
          text: `Gone for good: deleted studies: ${studies}, objects of theirs and others: ${objects}.`,
          failed: failed > 0,
        };
      } finally {
        await store.close();
      }
    }),
});
