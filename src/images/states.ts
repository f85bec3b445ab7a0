/** States of an image job (interface.md §3). */
export const jobStatuses = ['CREATED', 'RUNNING', 'COMPLETED', 'FAILED', 'PARTIAL'] as const;
export type JobStatus = (typeof jobStatuses)[number];

/** States of one of its files (decisions §5). */
export const fileStatuses = ['PENDING', 'RUNNING', 'COMPLETED', 'SKIPPED', 'FAILED', 'CANCELLED'] as const;
export type FileStatus = (typeof fileStatuses)[number];

export const jobTypes = ['INGEST', 'TRANSFER'] as const;
export type JobType = (typeof jobTypes)[number];

/** Jobs that count against the limit of a client, use their credential, and can be cancelled. */
export const activeStatuses = ['CREATED', 'RUNNING'] as const satisfies JobStatus[];
export const terminalStatuses = ['COMPLETED', 'FAILED', 'PARTIAL'] as const satisfies JobStatus[];

/** What moves a job from one state to another. */
export type Step = 'claim' | 'takeOver' | 'end' | 'cancel' | 'retry';

/**
 * The states and what moves a job between them (decisions §5). Every statement that changes a status takes its `from`
 * from here, and changes nothing in any other state.
 */
export const transitions = {
  /** A worker picks it up. */
  claim: { from: ['CREATED'], to: ['RUNNING'] },
  /** Another worker, as the one before handed it back or its lease ran out. */
  takeOver: { from: ['RUNNING'], to: ['RUNNING'] },
  /** No file is left to do: {@link outcomeOf} tells which. */
  end: { from: ['RUNNING'], to: ['COMPLETED', 'PARTIAL', 'FAILED'] },
  /** Asked for while it waits or runs: files not yet done are CANCELLED, and it ends by the same rule. */
  cancel: { from: ['CREATED', 'RUNNING'], to: ['COMPLETED', 'PARTIAL', 'FAILED'] },
  /** Files that are neither COMPLETED nor SKIPPED run again. */
  retry: { from: ['FAILED', 'PARTIAL'], to: ['CREATED'] },
} as const satisfies Record<Step, { from: readonly JobStatus[]; to: readonly JobStatus[] }>;

/** Files of a job by how they ended. */
export interface FileCounts {
  total: number;
  completed: number;
  skipped: number;
  failed: number;
  cancelled: number;
}

/** The state that a job ends in when none of its files is left to do. */
export function outcomeOf({ total, completed, skipped }: FileCounts): (typeof terminalStatuses)[number] {
  const done = completed + skipped;
  if (done === 0) return 'FAILED';
  return done === total ? 'COMPLETED' : 'PARTIAL';
}
