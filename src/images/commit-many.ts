import type pg from 'pg';
import { isDatabaseError, isWorthRetry, type Tx, transaction } from '../db/database.ts';
import { Interruption } from '../jobs/kind.ts';
import { newId } from '../lib/id.ts';
import { kinds } from '../studies/kinds.ts';
import { insertRecords } from '../studies/queries.ts';
import { type ClaimedJob, completeFiles, lockHeld, type OpenFile } from './file-queries.ts';
import { findTakenNames, insertImages, type StoredImage } from './image-queries.ts';
import { holdStudy } from './job-queries.ts';

/** A file whose copy is whole, and what is known of it. */
export interface Copied {
  file: OpenFile;
  image: StoredImage;
}

/**
 * Ends files whose slides are not there yet, all in one transaction, as many files of one job end at the same time. Tells
 * for each whether it did; where not, the file has to be ended by itself: its slide is there, or something does not fit.
 */
export async function commitMany(
  { job, pool }: { job: ClaimedJob; pool: pg.Pool },
  many: Copied[],
): Promise<boolean[]> {
  const none = many.map(() => false);
  try {
    return await transaction(pool, async (tx) => {
      // A study that went is told by who ends a file by itself.
      if (!(await holdStudy(tx, job.studyId))) return none;
      const taken = await findTakenNames(tx, job.studyId, names(many));
      const fresh = many.filter(({ file }) => !taken.has(file.name) && taken.add(file.name)).map(newSlide);
      if (fresh.length === 0) return none;
      await insert(tx, job.studyId, fresh);
      // Last, as every other file of the job waits for it.
      if (!(await lockHeld(tx, job))) throw new Interruption('lost');
      await completeFiles(tx, job.id, fresh.map(ended));
      const done = new Set(fresh.map(({ file }) => file));
      return many.map(({ file }) => done.has(file));
    });
  } catch (error) {
    // A name that somebody has just taken or is about to, a subject that was deleted.
    if (isWorthRetry(error) || (isDatabaseError(error) && error.code?.startsWith('23'))) return none;
    throw error;
  }
}

type NewSlide = Copied & { slideId: string };

const names = (many: Copied[]) => many.map(({ file }) => file.name);
const newSlide = (copied: Copied): NewSlide => ({ ...copied, slideId: newId() });
const ended = ({ file, image, slideId }: NewSlide) => ({
  id: file.fileId,
  slideId,
  sizeBytes: image.sizeBytes,
  sha256: image.sha256,
});

async function insert(tx: Tx, studyId: string, fresh: NewSlide[]): Promise<void> {
  const slides = fresh.map(({ file: { name: fileName, subjectId, organId }, slideId: id }) => ({
    id,
    subjectId,
    organId,
    fileName,
    attributes: {},
  }));
  await insertRecords(tx, kinds.slide, studyId, slides, null);
  await insertImages(
    tx,
    studyId,
    fresh.map(({ image, slideId }) => ({ ...image, slideId })),
  );
}
