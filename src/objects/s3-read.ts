import { createHash } from 'node:crypto';
import { type Readable, Transform } from 'node:stream';
import { s3Error } from './s3-errors.ts';
import type { GetOutput } from './s3-get.ts';
import { ObjectError } from './store.ts';

/**
 * The body of an answer as a stream that ends only when all of it came, and as it was stored: it counts the bytes, and
 * of a whole object compares the MD5 where the ETag is one. (Where the store gave a checksum, the SDK compares that.)
 */
export function verifiedBody(output: GetOutput, body: Readable, what: string, whole: boolean): Readable {
  const md5 = whole ? expectedMd5(output) : null;
  const hash = md5 ? createHash('md5') : null;
  let bytes = 0;
  const verified = new Transform({
    transform(chunk: Buffer, _encoding, callback) {
      bytes += chunk.length;
      hash?.update(chunk);
      callback(null, chunk);
    },
    flush(callback) {
      if (output.ContentLength !== undefined && bytes !== output.ContentLength)
        callback(new ObjectError('transient', `${what}: The object arrived incomplete.`));
      else if (hash && hash.digest('hex') !== md5)
        callback(new ObjectError('transient', `${what}: The bytes were damaged on their way.`));
      else callback();
    },
  });
  body.on('error', (error) => verified.destroy(bodyError(error, what)));
  verified.on('close', () => body.destroy());
  return body.pipe(verified);
}

function bodyError(error: Error, what: string): ObjectError {
  const known = s3Error(error, what);
  // Whatever breaks a body that had begun (a reset, a checksum that the SDK compared) may go well next time.
  return known.kind === 'transient' ? known : new ObjectError('transient', known.message, { cause: error });
}

/** The MD5 that the ETag is, or null: that of several parts, or of an object encrypted with a key of KMS, is none. */
function expectedMd5(output: GetOutput): string | null {
  const encrypted = output.SSECustomerAlgorithm || output.ServerSideEncryption?.startsWith('aws:kms');
  const checked =
    output.ChecksumCRC32 ??
    output.ChecksumCRC32C ??
    output.ChecksumCRC64NVME ??
    output.ChecksumSHA1 ??
    output.ChecksumSHA256;
  if (encrypted || checked) return null;
  return /^"?([0-9a-f]{32})"?$/.exec(output.ETag ?? '')?.[1] ?? null;
}
