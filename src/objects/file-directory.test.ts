import { mkdir, mkdtemp, readdir, readlink, rename, rm, rmdir, symlink, unlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { expectKind } from './contract.ts';
import { SharedDirectories, type SharedDirectory } from './file-directory.ts';

let top: string;
let root: string;
let outside: string;
let path: string;
let directories: SharedDirectories;

beforeEach(async () => {
  top = await mkdtemp(join(tmpdir(), 'sds-directories-'));
  [root, outside] = [join(top, 'root'), join(top, 'outside')];
  path = join(root, 'a/b');
  await mkdir(root);
  directories = new SharedDirectories(root, 0o700);
});
afterEach(async () => {
  try {
    expect(await openBelow(top)).toEqual([]);
  } finally {
    await rm(top, { recursive: true });
  }
});

/** What this process has open there; only Linux tells. */
async function openBelow(dir: string): Promise<string[]> {
  const names = await readdir('/proc/self/fd').catch(() => []);
  const open = await Promise.all(names.map((name) => readlink(`/proc/self/fd/${name}`).catch(() => '')));
  return open.filter((target) => target.startsWith(`${dir}/`));
}

/** Elsewhere the system does not tell what became of an open directory. */
const onLinux = test.runIf(process.platform === 'linux');

/** Somebody who is in the directory until `leave` is called. */
async function enter(): Promise<{ directory: SharedDirectory; leave(): Promise<void> }> {
  let leave = () => {};
  const gone = new Promise<void>((resolve) => {
    leave = resolve;
  });
  let used: Promise<void> | undefined;
  const directory = await new Promise<SharedDirectory>((resolve, reject) => {
    used = directories.use(path, 'a/b/key', (entered) => {
      resolve(entered);
      return gone;
    });
    used.catch(reject);
  });
  return {
    directory,
    leave() {
      leave();
      return used as Promise<void>;
    },
  };
}

const write = (name: string) =>
  directories.use(path, `a/b/${name}`, async (directory) => {
    await writeFile(join(directory.path, name), name);
    await directory.sync();
  });

test('who is in a directory at the same time has it open once, and the last to leave closes it', async () => {
  const users = await Promise.all(Array.from({ length: 20 }, enter));
  const late = await enter();
  expect(new Set([...users, late].map(({ directory }) => directory.handle)).size).toBe(1);
  await Promise.all(users.map(({ leave }) => leave()));
  await writeFile(join(late.directory.path, 'last'), 'last');
  await late.leave();
  expect(await readdir(path)).toEqual(['last']);
  expect(await openBelow(top)).toEqual([]);
  const next = await enter();
  expect(next.directory.handle).not.toBe(late.directory.handle);
  await next.leave();
});

test('an error of one is its own, and the others go on', async () => {
  const first = await enter();
  const failure = new Error('it broke');
  await expect(directories.use(path, 'a/b/key', () => Promise.reject(failure))).rejects.toBe(failure);
  await write('second');
  await writeFile(join(first.directory.path, 'first'), 'first');
  await first.directory.sync();
  await first.leave();
  expect((await readdir(path)).sort()).toEqual(['first', 'second']);
});

onLinux('a directory that was removed while somebody had it open is made anew', async () => {
  const first = await enter();
  await rmdir(path);
  await rmdir(join(root, 'a'));
  await Promise.all(['1', '2', '3'].map(write));
  expect((await readdir(path)).sort()).toEqual(['1', '2', '3']);
  await first.leave();
  await write('4');
  expect((await readdir(path)).sort()).toEqual(['1', '2', '3', '4']);
});

onLinux('a directory that was moved out of the root meanwhile is not written into', async () => {
  const first = await enter();
  await rename(path, outside);
  await Promise.all(['1', '2', '3'].map(write));
  // The first one leaves what is elsewhere by now: that concerns nobody in the new one.
  const second = await enter();
  await first.leave();
  const third = await enter();
  expect(second.directory.handle).not.toBe(first.directory.handle);
  expect(third.directory.handle).toBe(second.directory.handle);
  await second.leave();
  await writeFile(join(third.directory.path, '4'), '4');
  await third.leave();
  expect((await readdir(path)).sort()).toEqual(['1', '2', '3', '4']);
  expect(await readdir(outside)).toEqual([]);
});

onLinux('a directory below one that was moved out of the root meanwhile is not written into', async () => {
  const first = await enter();
  await rename(join(root, 'a'), outside);
  await write('1');
  await first.leave();
  expect(await readdir(path)).toEqual(['1']);
  expect(await readdir(join(outside, 'b'))).toEqual([]);
});

onLinux('a link out of the root in place of a directory that is open is refused', async () => {
  const first = await enter();
  await rename(path, outside);
  await symlink(outside, path);
  await expectKind(write('1'), 'denied');
  await first.leave();
  await expectKind(write('2'), 'denied');
  expect(await readdir(outside)).toEqual([]);
  await unlink(path);
  await write('3');
  expect(await readdir(path)).toEqual(['3']);
});

test('a directory that cannot be opened is an error for all who wanted it, and is tried again by who comes next', async () => {
  await writeFile(join(root, 'a'), 'a file');
  const results = await Promise.allSettled(['1', '2', '3'].map(write));
  expect(results.map(({ status }) => status)).toEqual(['rejected', 'rejected', 'rejected']);
  await unlink(join(root, 'a'));
  await write('4');
  expect(await readdir(path)).toEqual(['4']);
});
