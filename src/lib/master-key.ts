import { randomBytes } from 'node:crypto';
import { chmod, link, mkdir, open, rm } from 'node:fs/promises';
import { dirname } from 'node:path';

/** Where the key that encrypts the stored secrets comes from (decisions §10). */
export type MasterKeySource =
  /** `others` decrypt only: while the key is replaced, or until all nodes know of it. */
  | { kind: 'inline'; key: Buffer; others?: Buffer[] }
  /** `create`: the file is made when it is missing. */
  | { kind: 'file'; path: string; create: boolean };

/** AES-256 takes 32 bytes (decisions §5). */
const keyBytes = 32;

/** A key of 32 bytes from its hexadecimal or base64 form (also the URL-safe one, padded or not); null for anything else. */
export function parseMasterKey(text: string): Buffer | null {
  if (/^[0-9a-f]{64}$/i.test(text)) return Buffer.from(text, 'hex');
  if (!/^[0-9A-Za-z+/_-]{43}=?$/.test(text)) return null;
  const key = Buffer.from(text, 'base64');
  return key.length === keyBytes ? key : null;
}

/**
 * Reads the master key, making its file first where the source says so. Several processes may do this at once: all of
 * them get the same key. Rejects with a message for the administrator, which never holds the key.
 */
export async function loadMasterKey(source: MasterKeySource): Promise<Buffer> {
  if (source.kind === 'inline') return source.key;
  const { path, create } = source;
  const found = await readKeyFile(path);
  if (found) return found;
  if (!create) throw new Error(`The master key file ${path} does not exist. Make one with: openssl rand -base64 32`);
  await makeKeyFile(path);
  // Read back instead of returned: another process may have been first.
  const made = await readKeyFile(path);
  if (!made) throw new Error(`The master key file ${path} was removed while it was being made.`);
  return made;
}

/** The key in the file, or null where there is no file. */
async function readKeyFile(path: string): Promise<Buffer | null> {
  const file = await open(path, 'r').catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return null;
    throw new Error(`The master key file ${path} cannot be read (${error.code}).`, { cause: error });
  });
  if (!file) return null;
  try {
    const { mode, size } = await file.stat();
    // Windows keeps access apart from the mode, which always looks open there.
    if (process.platform !== 'win32' && (mode & 0o077) !== 0) {
      const octal = (mode & 0o777).toString(8);
      throw new Error(
        `The master key file ${path} is open to other users (mode ${octal}). Close it with: chmod 600 ${path}`,
      );
    }
    // 1 KiB: far more than any form of a key, so that a wrong path is not read whole.
    const key = size <= 1024 ? parseMasterKey((await file.readFile('utf8')).trim()) : null;
    if (!key) throw new Error(`The master key file ${path} does not hold 32 bytes as base64 or hexadecimal.`);
    return key;
  } finally {
    await file.close();
  }
}

/** Makes the file whole or not at all, and leaves one that is there already as it is. */
async function makeKeyFile(path: string): Promise<void> {
  const directory = dirname(path);
  await mkdir(directory, { recursive: true });
  const draft = `${path}.${randomBytes(8).toString('hex')}`;
  try {
    const file = await open(draft, 'wx', 0o600);
    try {
      // The mode given to `open` passes the umask, which may take the owner's own rights.
      await chmod(draft, 0o600);
      await file.writeFile(`${randomBytes(keyBytes).toString('base64')}\n`);
      await file.sync();
    } finally {
      await file.close();
    }
    // A link, unlike a rename, never replaces the key that another process made meanwhile.
    await link(draft, path).catch((error: NodeJS.ErrnoException) => {
      if (error.code !== 'EEXIST') throw error;
    });
  } finally {
    await rm(draft, { force: true });
  }
  // The name, too, has to survive a power cut: without this key every stored secret is lost.
  const names = await open(directory, 'r');
  await names.sync().finally(() => names.close());
}
