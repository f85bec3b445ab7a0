import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, renameSync, rmSync, statSync, utimesSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));
const dist = join(root, 'dist');
const compiler = join(root, 'node_modules', 'typescript-native', 'bin', 'tsc');

/** The file by whose age the build is judged; it is put in place last. */
const mark = 'main.js';

/** Compiles a checkout whose build is missing or older than its sources; says nothing unless it fails. */
export function buildWhereNeeded() {
  const built = statSync(join(dist, mark), { throwIfNoEntry: false })?.mtimeMs ?? 0;
  if (lastChange() <= built) return;
  // Without the compiler (npm ci --omit=dev) the build that is there has to do.
  if (existsSync(compiler)) build();
  else if (built === 0)
    throw new Error('This checkout is not built, and has no compiler: run npm ci and npm run build.');
}

/** Time of the last change of what the build is made of; a directory changes when a file of it is added or removed. */
function lastChange() {
  const names = readdirSync(join(root, 'src'), { recursive: true }).filter((name) => !name.endsWith('.test.ts'));
  const paths = ['tsconfig.json', 'tsconfig.build.json', 'src', ...names.map((name) => join('src', name))];
  // A file may go while we look.
  return Math.max(...paths.map((path) => statSync(join(root, path), { throwIfNoEntry: false })?.mtimeMs ?? 0));
}

/**
 * Compiles beside the build and moves file by file over it. So a process that starts meanwhile, or builds as well, finds
 * every module whole at any time.
 */
function build() {
  const start = new Date();
  const draft = mkdtempSync(join(root, '.dist-'));
  try {
    // Types are for `npm run typecheck` to check; without them the build takes a fifth of the time.
    const options = ['-p', join(root, 'tsconfig.build.json'), '--outDir', draft, '--noCheck'];
    const { status, stdout, stderr, error } = spawnSync(process.execPath, [compiler, ...options], {
      cwd: root,
      encoding: 'utf8',
    });
    if (status !== 0) throw new Error(`The build failed.\n${error?.message ?? (stdout + stderr).trim()}`);
    // Dated by its start: what is changed during the build makes the next one.
    utimesSync(join(draft, mark), start, start);
    const files = filesOf(draft);
    for (const file of [...files.filter((name) => name !== mark), mark]) {
      mkdirSync(dirname(join(dist, file)), { recursive: true });
      renameSync(join(draft, file), join(dist, file));
    }
    const wanted = new Set(files);
    for (const file of filesOf(dist)) if (!wanted.has(file)) rmSync(join(dist, file), { force: true });
  } finally {
    rmSync(draft, { recursive: true, force: true });
  }
}

/** @param {string} dir */
function filesOf(dir) {
  const entries = readdirSync(dir, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile());
  return entries.map((entry) => join(entry.parentPath, entry.name).slice(dir.length + 1));
}
