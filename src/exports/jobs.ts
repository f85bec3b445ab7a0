import { isDatabaseError } from '../db/database.ts';
import type { JobKind } from '../jobs/kind.ts';
import { ObjectError } from '../objects/store.ts';
import {
  type ClaimedExport,
  claimExport,
  failExport,
  giveUpExports,
  handBackExport,
  renewExport,
} from './job-queries.ts';
import { type ExportTools, IncompleteExport, runExport } from './run.ts';
import { MAX_TAKEOVERS } from './states.ts';

const GIVEN_UP = `The export was started ${MAX_TAKEOVERS + 1} times and the server stopped working on it each time; it is not taken over again. Delete it and start another; if that fails too, the server’s log tells more.`;

/** Export jobs, for the run loop. */
export function exportJobs(tools: ExportTools): JobKind<ClaimedExport> {
  const { pool } = tools;
  return {
    name: 'export',
    async claim(workerId, leaseMs) {
      await giveUpExports(pool, GIVEN_UP);
      return claimExport(pool, workerId, leaseMs);
    },
    renew: async (job, leaseMs) => ((await renewExport(pool, job, leaseMs)) ? 'held' : 'lost'),
    handBack: async (job) => void (await handBackExport(pool, job)),
    fail: async (job, error) => void (await failExport(pool, job, errorMessageOf(error))),
    run: (job, signal) => runExport(tools, job, signal),
  };
}

/** What the user is told (interface.md §2, `errorMessage`): what happened and what can be done, nothing of the inside. */
export function errorMessageOf(error: unknown): string {
  if (error instanceof ObjectError) {
    return error.kind === 'no-space'
      ? 'The object store has no space left for the file. Make room, delete this export and start another.'
      : `The file could not be written to the object store: ${error.message}`;
  }
  // 53100: disk_full.
  if (isDatabaseError(error) && error.code === '53100') {
    return 'The database’s disk is full. Make room, delete this export and start another.';
  }
  if (error instanceof IncompleteExport) {
    return 'The file did not hold all records of the study and was discarded. Delete this export and start another.';
  }
  return 'The server met an error while it wrote the file; its log tells more under this exportId. Delete this export and start another.';
}
