import { AbortMultipartUploadCommand, ListMultipartUploadsCommand, type S3Client } from '@aws-sdk/client-s3';

/** A day: longer than any upload of the service takes, as S3 does not tell when its last part came. */
const orphanAgeMs = 24 * 3_600_000;

/** Which uploads of a bucket. */
export interface Orphans {
  Bucket: string;
  Prefix: string;
  olderThanMs?: number | undefined;
  abortSignal?: AbortSignal | undefined;
}

/**
 * Aborts uploads in parts that nobody is going to complete: of a process that died, or whose id got lost on the way to
 * us. Their parts cost money and are seen by no listing of objects. Tells how many those were; one that cannot be aborted
 * does not keep the others, and is told at the end.
 */
export async function abortOrphans(client: S3Client, orphans: Orphans): Promise<number> {
  const { olderThanMs = orphanAgeMs, abortSignal, ...where } = orphans;
  const options = abortSignal ? { abortSignal } : {};
  let swept = 0;
  let failure: unknown;
  let markers: { KeyMarker?: string | undefined; UploadIdMarker?: string | undefined } = {};
  for (;;) {
    const page = await client.send(new ListMultipartUploadsCommand({ ...where, ...markers }), options);
    for (const { Key, UploadId, Initiated } of page.Uploads ?? []) {
      if (!Initiated || Date.now() - Initiated.getTime() < olderThanMs) continue;
      try {
        await client.send(new AbortMultipartUploadCommand({ Bucket: where.Bucket, Key, UploadId }), options);
        swept++;
      } catch (error) {
        abortSignal?.throwIfAborted();
        // Otherwise its writer or another node was faster.
        if ((error as Error).name !== 'NoSuchUpload') failure ??= error;
      }
    }
    if (!page.IsTruncated || !page.NextKeyMarker) break;
    markers = { KeyMarker: page.NextKeyMarker, UploadIdMarker: page.NextUploadIdMarker };
  }
  if (failure) throw failure;
  return swept;
}
