import { ObjectError } from '../objects/store.ts';
import { copyObject } from './copy.ts';
import type { FileEnd } from './file-queries.ts';
import { findSlideImage } from './image-queries.ts';
import type { FileContext } from './run-file.ts';
import { FileFault } from './tries.ts';

/** Copies the image of one slide to the cloud, and makes sure that it is there whole (decisions §5). */
export async function transferFile(context: FileContext): Promise<FileEnd> {
  const { job, pool, store, cloud, file, tries, signal, meter, etags, memory, digests } = context;
  const slide = await findSlideImage(pool, job.studyId, file.slideId ?? '');
  if (!slide?.image) throw new FileFault('The slide has no image any more.');
  const { objectKey, sizeBytes, sha256 } = slide.image;
  const info = await tries.run(() => store.head(objectKey, { signal }));
  if (info.sizeBytes !== sizeBytes) throw new FileFault('The stored image has another size than was ingested.');
  await context.begin(sizeBytes);
  const source = { store, info, tries, signal, etags, memory, digests, sha256 };
  await copyObject(source, { store: cloud, key: file.key }, (bytes) => meter.at(file.fileId, bytes));
  const there = await tries.run(() => sizeOf(context));
  if (there !== null && there !== sizeBytes) {
    throw new FileFault(`The cloud has ${there} bytes of the ${sizeBytes} that were written.`);
  }
  return { status: 'COMPLETED', sha256 };
}

/** Size of what was written; null where the credential may write and not read: then the write's own answer has to do. */
async function sizeOf({ cloud, file, signal }: FileContext): Promise<number | null> {
  try {
    return (await cloud.head(file.key, { signal })).sizeBytes;
  } catch (error) {
    if (error instanceof ObjectError && error.kind === 'denied') return null;
    throw error;
  }
}
