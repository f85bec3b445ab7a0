/** States of an export job (interface.md §3). */
export const exportStatuses = ['QUEUED', 'IN_PROGRESS', 'COMPLETED', 'FAILED'] as const;
export type ExportStatus = (typeof exportStatuses)[number];

/** What moves a job from one state to another. */
export type Step = 'claim' | 'takeOver' | 'handBack' | 'complete' | 'fail' | 'giveUp';

/**
 * The states and what moves a job between them (interface.md §3; hand-back, takeover and giving up: decisions §4, §10).
 * Every statement that changes a status takes its `from` and `to` from here, and changes nothing in any other state.
 */
export const transitions = {
  /** A worker picks it up. */
  claim: { from: 'QUEUED', to: 'IN_PROGRESS' },
  /** Another worker, as the lease of the one before ran out. */
  takeOver: { from: 'IN_PROGRESS', to: 'IN_PROGRESS' },
  /** The worker stops before it is done. */
  handBack: { from: 'IN_PROGRESS', to: 'QUEUED' },
  /** All records are written, and their number was checked. */
  complete: { from: 'IN_PROGRESS', to: 'COMPLETED' },
  /** The export cannot finish. */
  fail: { from: 'IN_PROGRESS', to: 'FAILED' },
  /** Too many workers died of it. */
  giveUp: { from: 'IN_PROGRESS', to: 'FAILED' },
} as const satisfies Record<Step, { from: ExportStatus; to: ExportStatus }>;

/** A client polls until a job is in none of these. */
export const activeStatuses: readonly ExportStatus[] = ['QUEUED', 'IN_PROGRESS'];

/** A job that would have to be taken over once more is FAILED (decisions §4). */
export const MAX_TAKEOVERS = 3;
