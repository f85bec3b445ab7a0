import { purgeStudies } from '../studies/purge.ts';
import { command } from './command.ts';
import { withDatabase } from './open.ts';

export const purge = command({
  details: 'The server does so by itself; this one is for a moment of your choice. Safe beside it, and after a crash.',
  run: (call) =>
    withDatabase(call, async ({ pool }) => {
      const studies = await purgeStudies(pool, call.signal);
      return {
        value: { studies },
        text: `${studies} deleted ${studies === 1 ? 'study is' : 'studies are'} gone for good.`,
      };
    }),
});
