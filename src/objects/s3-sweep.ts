import { AbortMultipartUploadCommand, ListMultipartUploadsCommand, type S3Client } from '@aws-sdk/client-s3';

/** A day: longer than any upload of the service takes, as S3 does not tell when its last part came. */
const orphanAgeMs = 24 * 3_600_000;

/**
 * Aborts uploads in parts that nobody is going to complete: of a process that died, or whose id got lost on the way to
 * us. Their parts cost money and are seen by no listing of objects. Tells how many those were.
 */
export async function abortOrphans(
  client: S3Client,
  where: { Bucket: string; Prefix: string },
  olderThanMs = orphanAgeMs,
): Promise<number> {
  const { Bucket } = where;
  let swept = 0;
  let markers: { KeyMarker?: string | undefined; UploadIdMarker?: string | undefined } = {};
  for (;;) {
    const page = await client.send(new ListMultipartUploadsCommand({ ...where, ...markers }));
    for (const { Key, UploadId, Initiated } of page.Uploads ?? []) {
      if (!Initiated || Date.now() - Initiated.getTime() < olderThanMs) continue;
      await client.send(new AbortMultipartUploadCommand({ Bucket, Key, UploadId })).catch((error: unknown) => {
        // Its writer or another node was faster.
        if ((error as Error).name !== 'NoSuchUpload') throw error;
      });
      swept++;
    }
    if (!page.IsTruncated || !page.NextKeyMarker) return swept;
    markers = { KeyMarker: page.NextKeyMarker, UploadIdMarker: page.NextUploadIdMarker };
  }
}
