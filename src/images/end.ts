import type { Db, Tx } from '../db/database.ts';
import type { EventDraft } from '../http/gate.ts';
import { findFirstFault, writeThrough } from './file-queries.ts';
import { endJob, endOpenFiles, type LockedJob, lockJob } from './job-queries.ts';
import { outcomeOf } from './states.ts';

/** Records an audit event in the caller's transaction. */
export type RecordEvent = (db: Db, draft: EventDraft) => Promise<void>;

export const cancelledReason = 'The job was cancelled.';

/** Ends a job that is locked and has no file left to do: its last state by the rule, and the event that it leaves. */
export async function end(tx: Tx, jobId: string, reason: string | null, record: RecordEvent): Promise<void> {
  const job = (await lockJob(tx, jobId)) as LockedJob;
  const status = outcomeOf(job.files);
  await endJob(
    tx,
    jobId,
    status,
    status === 'COMPLETED' ? null : (reason ?? (job.cancelRequested ? cancelledReason : await messageOf(tx, job))),
  );
  // The last write of a job takes all before it to the disk.
  await writeThrough(tx);
  await record(tx, {
    event: 'IMAGE_JOB_COMPLETED',
    clientId: job.clientId,
    operation: 'image job',
    method: '',
    path: `/api/v1/image/jobs/${jobId}`,
    status: null,
    resourceType: 'imageJob',
    resourceId: jobId,
    resourceIds: null,
    studyId: job.studyId,
    requestId: job.requestId,
    reason: null,
    changes: null,
  });
}

/** Why a job is FAILED or PARTIAL by its files. */
async function messageOf(tx: Tx, { jobId, files }: LockedJob): Promise<string> {
  if (files.total === 0) return 'No object of the source matches.';
  const first = await findFirstFault(tx, jobId);
  if (files.total === 1) return first?.reason ?? 'The file failed.';
  const count = `${files.failed} of ${files.total} files failed`;
  return first ? `${count}, the first of them ${JSON.stringify(first.name)}: ${first.reason}` : `${count}.`;
}

/**
 * Gives what a job has left to do a last status, step by step; `step` runs each in a transaction in which the job is
 * locked. In the transaction of the last step the job itself ends.
 */
export async function endEarly(
  step: <T>(work: (tx: Tx) => Promise<T>) => Promise<T>,
  jobId: string,
  status: 'FAILED' | 'CANCELLED',
  reason: string,
  record: RecordEvent,
): Promise<void> {
  const once = async (tx: Tx) => {
    if ((await endOpenFiles(tx, jobId, status, reason)) > 0) return false;
    await end(tx, jobId, reason, record);
    return true;
  };
  while (!(await step(once)));
}
