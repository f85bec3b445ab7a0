import { command } from './command.ts';
import { withDatabase } from './open.ts';

export const migrateCommand = command({
  details: 'Every command does so before its work; this one is for a deployment that wants it done beforehand.',
  run: (call) =>
    withDatabase(call, async ({ migrated: { applied, version } }) => ({
      value: { version, applied },
      text:
        applied.length === 0
          ? `The database is at version ${version}; there was nothing to do.`
          : `The database is at version ${version}; applied ${applied.join(', ')}.`,
    })),
});
