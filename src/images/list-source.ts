import { clearListing } from './file-queries.ts';
import { addFiles, findImagedSlides, type NewFile } from './job-queries.ts';
import type { JobContext } from './run-file.ts';
import { FileFault, type Tries } from './tries.ts';

/** Slides a step, as a page of a cloud's listing has. */
const PAGE = 1_000;

/**
 * Finds the files of a job that names none: page by page, never all in memory. A listing that broke begins anew, also by
 * another worker or a retry. Rejects with a {@link FileFault} that says why the source cannot be listed.
 */
export async function listSource(context: JobContext, tries: Tries, signal: AbortSignal): Promise<void> {
  const { job, held } = context;
  try {
    await tries.run(async () => {
      await held((tx) => clearListing(tx, job.id));
      const pages = job.type === 'INGEST' ? objectsOf(context, signal) : slidesOf(context);
      for await (const files of pages) {
        signal.throwIfAborted();
        if (files.length > 0) await held((tx) => addFiles(tx, job.id, files, false));
      }
      await held((tx) => addFiles(tx, job.id, [], true));
    });
  } catch (error) {
    if (!(error instanceof FileFault)) throw error;
    await held((tx) => clearListing(tx, job.id));
    throw new FileFault(`The source cannot be listed. ${error.message}`, { cause: error });
  }
}

/** The FILE NAME is the key after the prefix's last `/`; folder markers are not files (decisions §5). */
async function* objectsOf({ job, cloud }: JobContext, signal: AbortSignal): AsyncGenerator<NewFile[]> {
  const prefix = job.prefix ?? '';
  const folder = prefix.lastIndexOf('/') + 1;
  for await (const page of cloud.list({ prefix, signal })) {
    yield page
      .filter(({ key }) => !key.endsWith('/'))
      .map(({ key, sizeBytes, etag }) => ({ name: key.slice(folder), key, sizeBytes, etag }));
  }
}

async function* slidesOf({ job, pool }: JobContext): AsyncGenerator<NewFile[]> {
  for (let after = ''; ; ) {
    const slides = await findImagedSlides(pool, job.studyId, { after, limit: PAGE });
    yield slides.map(({ slideId, fileName, sizeBytes }) => ({
      name: fileName,
      key: `${job.prefix ?? ''}${fileName}`,
      slideId,
      sizeBytes,
    }));
    const last = slides.at(-1);
    if (!last || slides.length < PAGE) return;
    after = last.slideId;
  }
}
