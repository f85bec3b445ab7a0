import { createHash } from 'node:crypto';
import { ObjectError } from './store.ts';

/** For {@link readWithIdleTimeout}: compares what arrives with the MD5 that the provider keeps of the whole object. */
export function md5Check(what: string, expected: Uint8Array): (chunk: Buffer | null) => void {
  const md5 = createHash('md5');
  return (chunk) => {
    if (chunk) md5.update(chunk);
    else if (!md5.digest().equals(expected)) {
      throw new ObjectError('transient', `${what} arrived with a wrong checksum.`);
    }
  };
}
