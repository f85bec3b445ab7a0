import { readdir, readFile, stat } from 'node:fs/promises';
import { basename, join, posix } from 'node:path';
import { addAbortSignal } from 'node:stream';
import { crc32 } from 'node:zlib';
import { type Entry, openPromise, type ZipFile } from 'yauzl';
import { SendError } from './error.ts';

/** The transport files of one study, in a directory or a ZIP file. */
export interface Source {
  /** File by domain: `DM` → `dm.xpt`, as it is written on disk or in the archive. */
  files: ReadonlyMap<string, string>;
  /** The whole file of a domain that `files` has. */
  read(domain: string, signal?: AbortSignal): Promise<Buffer>;
  close(): void;
}

/**
 * 1 GiB a file: a hundred times the microscopic findings of a two-year study, and what keeps an archive that unpacks
 * without end (deflate packs up to 1 : 1,032) from taking the machine.
 */
const MAX_FILE_BYTES = 2 ** 30;

/** Opens a directory or a ZIP file; whatever is no `.xpt` file is passed over. Names ignore case. */
export async function openSource(path: string): Promise<Source> {
  try {
    return (await stat(path)).isDirectory() ? await openDirectory(path) : await openZip(path);
  } catch (error) {
    throw asSendError(path, error, 'neither a directory nor a ZIP file that can be read');
  }
}

async function openDirectory(path: string): Promise<Source> {
  const files = byDomain(path, await readdir(path));
  return {
    files,
    close() {},
    async read(domain, signal) {
      const file = files.get(domain) ?? '';
      try {
        const facts = await stat(join(path, file));
        if (!facts.isFile()) throw new SendError(file, null, 'not a regular file');
        checkSize(file, facts.size);
        return await readFile(join(path, file), { signal });
      } catch (error) {
        signal?.throwIfAborted();
        throw asSendError(file, error, 'cannot be read');
      }
    },
  };
}

async function openZip(path: string): Promise<Source> {
  const zip = await openPromise(path, { autoClose: false });
  try {
    const entries = await transportEntries(basename(path), zip);
    const files = byDomain(basename(path), [...entries.keys()]);
    return {
      files,
      close: () => zip.close(),
      async read(domain, signal) {
        const file = files.get(domain) ?? '';
        try {
          return await readEntry(zip, file, entries.get(file), signal);
        } catch (error) {
          signal?.throwIfAborted();
          throw asSendError(file, error, 'cannot be read');
        }
      },
    };
  } catch (error) {
    zip.close();
    throw error;
  }
}

/** The `.xpt` entries of the folder that holds dm.xpt: a study may stand in a sub-folder, but only one in an archive. */
async function transportEntries(zipName: string, zip: ZipFile): Promise<Map<string, Entry>> {
  const all = new Map<string, Entry>();
  for await (const entry of zip.eachEntry()) {
    if (!isTransport(entry.fileName)) continue;
    if (all.has(entry.fileName)) throw new SendError(zipName, null, `holds ${entry.fileName} twice`);
    all.set(entry.fileName, entry);
  }
  const homes = new Set([...all.keys()].filter((name) => domainOf(name) === 'DM').map((name) => posix.dirname(name)));
  if (homes.size > 1) {
    throw new SendError(zipName, null, `holds several studies (dm.xpt in ${[...homes].sort().join(', ')})`);
  }
  return new Map([...all].filter(([name]) => homes.has(posix.dirname(name))));
}

async function readEntry(zip: ZipFile, file: string, entry: Entry | undefined, signal?: AbortSignal): Promise<Buffer> {
  if (!entry?.canDecodeFileData()) throw new SendError(file, null, 'encrypted, or packed in a way other than deflate');
  checkSize(file, entry.uncompressedSize);
  const stream = await zip.openReadStreamPromise(entry);
  if (signal) addAbortSignal(signal, stream);
  // The stream fails when it gives more or fewer bytes than the entry declares, so what was allocated gets filled.
  const bytes = Buffer.allocUnsafe(entry.uncompressedSize);
  let length = 0;
  for await (const chunk of stream) length += (chunk as Buffer).copy(bytes, length);
  if (crc32(bytes) !== entry.crc32) throw new SendError(file, null, 'damaged: its checksum in the ZIP file differs');
  return bytes;
}

function checkSize(file: string, bytes: number): void {
  if (bytes > MAX_FILE_BYTES)
    throw new SendError(file, null, `${bytes} bytes; more than ${MAX_FILE_BYTES} are not read`);
}

/** Whether a file is wanted by its name. macOS puts a shadow (`._dm.xpt`) beside each file in an archive. */
function isTransport(file: string): boolean {
  return /\.xpt$/i.test(file) && !posix.basename(file).startsWith('._');
}

function domainOf(file: string): string {
  return posix.basename(file).slice(0, -'.xpt'.length).toUpperCase();
}

function byDomain(where: string, names: string[]): Map<string, string> {
  const files = new Map<string, string>();
  for (const name of names.filter(isTransport).sort()) {
    const other = files.get(domainOf(name));
    if (other !== undefined) throw new SendError(where, null, `${other} and ${name} differ in case only`);
    files.set(domainOf(name), name);
  }
  return files;
}

/** Faults of the file system and of the archive, told like every other. */
function asSendError(file: string, error: unknown, fault: string): SendError {
  if (error instanceof SendError) return error;
  const { code, message } = error as NodeJS.ErrnoException;
  // All there is to say of it: the system's own words, as a cause, would say it again.
  if (code === 'ENOENT') return new SendError(file, null, 'no such file or directory');
  return new SendError(file, null, `${fault} (${message})`, { cause: error });
}
