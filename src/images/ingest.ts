import { createHash } from 'node:crypto';
import { isDatabaseError, savepoint, type Tx, transaction } from '../db/database.ts';
import { Interruption } from '../jobs/kind.ts';
import { newId } from '../lib/id.ts';
import { ObjectError, type ObjectInfo } from '../objects/store.ts';
import { kinds } from '../studies/kinds.ts';
import { insertRecords } from '../studies/queries.ts';
import { copyObject, hashObject } from './copy.ts';
import {
  type ClaimedJob,
  endFile,
  type FileEnd,
  lockHeld,
  type OpenFile,
  recordKey,
  writeThrough,
} from './file-queries.ts';
import { bufferSource } from './format/byte-source.ts';
import { readImageFormat } from './format/read-format.ts';
import {
  findNamedSlide,
  linkImage,
  lockSlide,
  type NamedSlide,
  purgeObject,
  type SlidePlace,
  type StoredImage,
  touchSlide,
} from './image-queries.ts';
import { holdStudy } from './job-queries.ts';
import { byteSource, readWhole } from './read-object.ts';
import type { FileContext } from './run-file.ts';
import { FileFault } from './tries.ts';

/** The study went while the job ran: nothing more of it can be done. */
export class StudyGone extends Error {
  constructor() {
    super('The study was deleted.');
    this.name = 'StudyGone';
  }
}

/** Where the slide is to be linked to, as the job's `files` ask for it; null where it is there, or they ask for nothing. */
function placeFor({ subjectId, organId }: OpenFile, slide: NamedSlide): SlidePlace | null {
  const isElsewhere = (asked: string | null, is: string | null) => asked !== null && is !== null && asked !== is;
  if (isElsewhere(subjectId, slide.subjectId) || isElsewhere(organId, slide.organId)) {
    throw new FileFault('The slide of that FILE NAME is one of another subject or organ than the job names.');
  }
  const isThere = (subjectId ?? slide.subjectId) === slide.subjectId && (organId ?? slide.organId) === slide.organId;
  return isThere ? null : { subjectId, organId };
}

const otherContent = 'The slide has an image with other content; an ingest with overwrite replaces it.';

/** Copies one object into the service's store and gives the slide of its FILE NAME the image (decisions §5). */
export async function ingestFile(context: FileContext): Promise<FileEnd | null> {
  const { job, pool, store, cloud, file, tries, signal, meter, etags, memory, digests } = context;
  const done = isSmall(file) && (await ingestSmall(context, file));
  if (done) return null;
  const info = await tries.run(() => cloud.head(file.key, { signal }));
  const { sizeBytes } = info;
  const source = { store: cloud, info, tries, signal, etags, memory, digests };

  await context.begin(sizeBytes);
  const there = await findNamedSlide(pool, job.studyId, file.name);
  if (there?.image && !job.overwrite) {
    // Equal content cannot be told without reading it: no provider keeps a SHA-256 for every object.
    const sha256 = there.image.sizeBytes === sizeBytes ? await hashObject(source) : null;
    if (sha256 !== there.image.sha256) throw new FileFault(otherContent);
    await conclude(context, (tx) => skip(tx, context, there.slideId, sha256));
    return null;
  }
  // Before the copy: bytes that are no image need not be moved.
  const format = await readImageFormat(byteSource(source, file.name));
  const imageId = newId();
  const objectKey = keyOf(job, imageId);
  if (!(await recordKey(pool, job, file.fileId, objectKey))) throw new Interruption('lost');
  try {
    const onArrived = (bytes: number) => meter.at(file.fileId, bytes);
    const sha256 = await copyObject({ ...source, onArrived }, { store, key: objectKey });
    context.copied();
    await end(context, { imageId, objectKey, sizeBytes, sha256, ...format });
  } catch (error) {
    // Whoever has the job now may have purged the key before the object stood there.
    if (error instanceof Interruption && error.why === 'lost') await purgeObject(pool, objectKey);
    throw error;
  }
  return null;
}

/** Where the copy of a file stands. */
export const keyOf = (job: ClaimedJob, imageId: string) => `images/${job.studyId}/${imageId}`;

/** 1 MiB: what comes faster than the requests for a part of it take. */
const SMALL_BYTES = 1024 * 1024;
/** 0.5 s, as often as progress is told: a small file that takes no longer goes from PENDING to its end. */
const LONG_MS = 500;

/** Whether the listing told enough to fetch the object in one request and into memory. */
export function isSmall(file: OpenFile): file is OpenFile & { sizeBytes: number; etag: string } {
  return (
    file.sizeBytes !== null && file.sizeBytes <= SMALL_BYTES && file.sizeBytes > 0 && !!file.etag && !file.hasImage
  );
}

/** Copies a small object that is read once; false where it is no longer what was listed. */
async function ingestSmall(
  context: FileContext,
  { key, sizeBytes, etag, imageId }: OpenFile & { sizeBytes: number; etag: string },
): Promise<boolean> {
  if (!imageId) return false;
  const objectKey = keyOf(context.job, imageId);
  const info: ObjectInfo = { key, sizeBytes, etag, modifiedDate: null };
  let begun: Promise<unknown> = Promise.resolve();
  const long = setTimeout(() => {
    begun = context.begin(sizeBytes).catch(() => {}); // Whoever ends the file meets the fault as well.
  }, LONG_MS);
  try {
    const facts = await storeSmall(context, info, objectKey);
    clearTimeout(long);
    await begun;
    await end(context, { imageId, objectKey, sizeBytes, ...facts });
    return true;
  } catch (error) {
    if (error instanceof Interruption && error.why === 'lost') await purgeObject(context.pool, objectKey);
    const { cause } = error as Error;
    if (error instanceof FileFault && cause instanceof ObjectError && cause.kind === 'changed') return false;
    throw error;
  } finally {
    clearTimeout(long);
    await begun;
  }
}

/** Copies the bytes, which are let go of before the end of the file waits to be recorded. */
async function storeSmall(context: FileContext, info: ObjectInfo, objectKey: string) {
  const { store, cloud, file, tries, signal, meter, storing } = context;
  const { sizeBytes } = info;
  let arrived = 0;
  const onReceived = (more: number) => {
    arrived += more;
    meter.at(file.fileId, arrived);
  };
  const bytes = await readWhole({ store: cloud, info, tries, signal, onReceived });
  const stored = await storing.take();
  try {
    // What is left is to wait for the disk; nothing of the cloud is under way any more.
    context.copied();
    const format = await readImageFormat(bufferSource(bytes, file.name));
    const sha256 = createHash('sha256').update(bytes).digest('hex');
    await tries.run(() => store.write(objectKey, only(bytes), { sizeBytes, signal }));
    return { sha256, ...format };
  } finally {
    stored();
  }
}

async function* only(bytes: Buffer): AsyncGenerator<Buffer> {
  yield bytes;
}

/** Makes the copy the image of its slide, and ends the file: with others where the slide is new, else by itself. */
async function end(context: FileContext, image: StoredImage): Promise<void> {
  if (!(await context.commitNew({ file: context.file, image }))) await commit(context, image);
}

/** Makes the copy the image of its slide, and ends the file. */
function commit(context: FileContext, image: StoredImage): Promise<void> {
  return conclude(context, (tx) => giveImage(tx, context, image));
}

type End = FileEnd & { replaces?: boolean };

/** Ends the file with what `work` makes of it, in one transaction. */
async function conclude({ job, pool, file }: FileContext, work: (tx: Tx) => Promise<End>): Promise<void> {
  await transaction(pool, async (tx) => {
    if (!(await holdStudy(tx, job.studyId))) throw new StudyGone();
    const end = await work(tx);
    // Last, as every other file of the job waits for it.
    if (!(await lockHeld(tx, job))) throw new Interruption('lost');
    // The object of an image that was replaced may be gone the moment after.
    if (end.replaces) await writeThrough(tx);
    await endFile(tx, job.id, file.fileId, end);
  });
}

/** Gives the slide its image, in the transaction that ends the file; another job may have been faster. */
async function giveImage(tx: Tx, { job, file }: FileContext, image: StoredImage): Promise<End> {
  const { slide, isNew } = await slideOf(tx, job.studyId, file);
  const { slideId } = slide;
  const { sha256 } = image;
  const isSame = slide.image?.sha256 === sha256;
  if (slide.image && !isSame && !job.overwrite) return { status: 'FAILED', errorMessage: otherContent, slideId };
  const place = placeFor(file, slide);
  if (!isSame) await linkImage(tx, job.studyId, slideId, image);
  if (place || (!isSame && !isNew)) await link(tx, job.studyId, slideId, place);
  if (isSame) return { status: 'SKIPPED', sha256, slideId };
  return { status: 'COMPLETED', sha256, slideId, kept: true, replaces: slide.image !== null };
}

/** Leaves the image as it is, and links its slide; as both are by now, for to read the object may have taken long. */
async function skip(tx: Tx, { job, file }: FileContext, slideId: string, sha256: string): Promise<End> {
  const slide = (await lockSlide(tx, job.studyId, slideId)) && (await findNamedSlide(tx, job.studyId, file.name));
  if (!slide || slide.slideId !== slideId || slide.image?.sha256 !== sha256) throw new FileFault(slideChanged);
  const place = placeFor(file, slide);
  if (place) await link(tx, job.studyId, slideId, place);
  return { status: 'SKIPPED', sha256, slideId };
}

async function link(tx: Tx, studyId: string, slideId: string, place: SlidePlace | null): Promise<void> {
  try {
    await touchSlide(tx, studyId, slideId, place ?? { subjectId: null, organId: null });
  } catch (error) {
    if (isDatabaseError(error) && error.code === '23503') throw new FileFault(goneParent);
    throw error;
  }
}

const slideChanged = 'The slide changed while the image was being linked to it; retry the job.';
const goneParent = 'The subject or organ of the slide was deleted.';

/** The slide of a FILE NAME, locked; created where there is none. */
async function slideOf(tx: Tx, studyId: string, file: OpenFile): Promise<{ slide: NamedSlide; isNew: boolean }> {
  // Whoever creates or deletes the slide at the same time makes another look necessary; 3 are enough for both.
  for (let look = 1; look <= 3; look++) {
    const found = await findNamedSlide(tx, studyId, file.name);
    if (found && (await lockSlide(tx, studyId, found.slideId))) {
      const slide = await findNamedSlide(tx, studyId, file.name);
      if (slide) return { slide, isNew: false };
    }
    const created = await createSlide(tx, studyId, file);
    const { subjectId, organId } = file;
    if (created) return { slide: { slideId: created, subjectId, organId, image: null }, isNew: true };
  }
  throw new FileFault(slideChanged);
}

/** Creates the slide; null where somebody else has just done so. */
async function createSlide(tx: Tx, studyId: string, file: OpenFile): Promise<string | null> {
  const { name: fileName, subjectId, organId } = file;
  const id = newId();
  try {
    await savepoint(tx, () =>
      insertRecords(tx, kinds.slide, studyId, [{ id, subjectId, organId, fileName, attributes: {} }], null),
    );
    return id;
  } catch (error) {
    if (!isDatabaseError(error)) throw error;
    if (error.constraint === kinds.slide.taken.constraint) return null;
    if (error.code === '23503') throw new FileFault(goneParent);
    throw error;
  }
}
