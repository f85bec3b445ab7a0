import { incomingName } from './file-sweep.ts';
import { checkKey, ObjectError } from './store.ts';

/** 255 bytes: the longest file name of ext4, XFS, ZFS and of most shares. */
const maxNameBytes = 255;

/** Refuses keys that a directory tree cannot hold: every segment must name something below the root and fit a file name. */
export function checkFileKey(key: string): void {
  checkKey(key);
  for (const segment of key.split('/')) {
    if (segment === '' || segment === '.' || segment === '..' || Buffer.byteLength(segment) > maxNameBytes)
      throw new ObjectError('invalid-key', `The object key ${JSON.stringify(key)} is no path of file names.`);
  }
  if (key === incomingName || key.startsWith(`${incomingName}/`))
    throw new ObjectError('invalid-key', `The object key ${JSON.stringify(key)} is reserved.`);
}
