import { opendir } from 'node:fs/promises';
import { join } from 'node:path';
import { fileError, hasCode } from './file-errors.ts';
import { compareKeys, type ListOptions, type ObjectInfo } from './store.ts';

/** Objects a page, as S3 does it. */
const pageSize = 1000;

interface Found {
  key: string;
  isLink: boolean;
}

/**
 * Pages of the tree below `root` in key order. Holds the names of one directory per level, never the tree.
 * `info` gives the facts of one name, or null where it is no object; `skip` is a folder that is no part of the store.
 */
export async function* listFiles(
  root: string,
  tree: { skip: string; info: (key: string, isLink: boolean) => Promise<ObjectInfo | null> },
  options: ListOptions,
): AsyncGenerator<ObjectInfo[]> {
  let batch: Found[] = [];
  const facts = async () => {
    const infos = await Promise.all(batch.map(({ key, isLink }) => tree.info(key, isLink)));
    batch = [];
    return infos.filter((info) => info !== null);
  };
  for await (const found of walk(root, '', tree.skip, options)) {
    if (batch.push(found) < pageSize) continue;
    const page = await facts();
    if (page.length > 0) yield page;
  }
  const last = await facts();
  if (last.length > 0) yield last;
}

async function* walk(root: string, folder: string, skip: string, options: ListOptions): AsyncGenerator<Found> {
  const prefix = options.prefix ?? '';
  for (const { key, isLink } of await entries(root, folder, options)) {
    const isFolder = key.endsWith('/');
    if (key === skip) continue;
    if (isFolder && (key.startsWith(prefix) || prefix.startsWith(key))) yield* walk(root, key, skip, options);
    if (!isFolder && key.startsWith(prefix)) yield { key, isLink };
  }
}

/** Keys of one directory, folders with a `/` behind: only so do they sort where the keys below them belong. */
async function entries(root: string, folder: string, options: ListOptions): Promise<Found[]> {
  const found: Found[] = [];
  try {
    for await (const entry of await opendir(join(root, folder), { bufferSize: 1000 })) {
      options.signal?.throwIfAborted();
      const key = folder + entry.name;
      if (entry.isDirectory()) found.push({ key: `${key}/`, isLink: false });
      else if (entry.isFile() || entry.isSymbolicLink()) found.push({ key, isLink: entry.isSymbolicLink() });
    }
  } catch (error) {
    options.signal?.throwIfAborted();
    // A folder may be pruned while we walk; the root may not.
    if (folder !== '' && hasCode(error, 'ENOENT', 'ENOTDIR')) return [];
    throw fileError(error, folder);
  }
  return found.sort((a, b) => compareKeys(a.key, b.key));
}
