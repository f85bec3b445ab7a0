import { spawn } from 'node:child_process';
import { appendFile, cp, mkdtemp, readdir, readFile, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';

// A build takes a second or two, and more while other tests run.
vi.setConfig({ testTimeout: 120_000 });

const root = fileURLToPath(new URL('..', import.meta.url));

/** A checkout of its own, without a build. */
let checkout: string;
beforeEach(async () => {
  checkout = await mkdtemp(join(tmpdir(), 'sds-checkout-'));
  for (const name of ['bin', 'src', 'package.json', 'tsconfig.json', 'tsconfig.build.json']) {
    await cp(join(root, name), join(checkout, name), { recursive: true });
  }
  await symlink(join(root, 'node_modules'), join(checkout, 'node_modules'));
});
afterEach(() => rm(checkout, { recursive: true, force: true }));

async function sds(...args: string[]) {
  const child = spawn(process.execPath, [join(checkout, 'bin', 'sds.js'), ...args], {
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const [out, err, code] = await Promise.all([
    text(child.stdout),
    text(child.stderr),
    new Promise((resolve) => child.once('exit', resolve)),
  ]);
  return { code, out, err };
}

async function builtAt(): Promise<number> {
  return (await stat(join(checkout, 'dist', 'main.js'))).mtimeMs;
}

test('a checkout builds itself on first use, quietly, also where several start at once', async () => {
  const { version } = JSON.parse(await readFile(join(root, 'package.json'), 'utf8'));
  const runs = await Promise.all([1, 2, 3].map(() => sds('--version')));
  expect(runs).toEqual(Array(3).fill({ code: 0, out: `${version}\n`, err: '' }));
  const left = await readdir(checkout);
  expect(left.sort()).toEqual(
    ['bin', 'dist', 'node_modules', 'package.json', 'src', 'tsconfig.build.json', 'tsconfig.json'].sort(),
  );
});

test('it builds again when a source has changed or gone, and only then', async () => {
  await writeFile(join(checkout, 'src', 'extra.ts'), 'export const extra = 1;\n');
  await sds('--version');
  const first = await builtAt();
  expect(await readdir(join(checkout, 'dist'))).toContain('extra.js');
  await sds('--version');
  expect(await builtAt()).toBe(first);

  await appendFile(join(checkout, 'src', 'cli', 'help.ts'), '\nexport const changed = true;\n');
  await sds('--version');
  expect(await builtAt()).toBeGreaterThan(first);
  expect(await readFile(join(checkout, 'dist', 'cli', 'help.js'), 'utf8')).toContain('changed = true');

  await rm(join(checkout, 'src', 'extra.ts'));
  await sds('--version');
  expect(await readdir(join(checkout, 'dist'))).not.toContain('extra.js');
});

test('a source that is no TypeScript fails the start and names the file', async () => {
  await appendFile(join(checkout, 'src', 'cli', 'help.ts'), '\nexport const = ;\n');
  const { code, out, err } = await sds('--version');
  expect({ code, out }).toEqual({ code: 1, out: '' });
  expect(err).toMatch(/The build failed\.\nsrc\/cli\/help\.ts/);
});

test('an installed package, which has no sources, runs as it is', async () => {
  await sds('--version');
  const built = await builtAt();
  await rm(join(checkout, 'src'), { recursive: true });
  expect(await sds('--version')).toMatchObject({ code: 0, err: '' });
  expect(await builtAt()).toBe(built);
});
