import { execFile } from 'node:child_process';
import { createReadStream, createWriteStream } from 'node:fs';
import { mkdtemp, open, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import type { Cell } from '../src/exports/xlsx/cells.ts';
import type { CopyField } from '../src/exports/xlsx/copy.ts';
import { type Sheet, writeWorkbook } from '../src/exports/xlsx/workbook.ts';
import { type Figure, lineOf, median } from './figures.ts';

const run = promisify(execFile);
const ROUNDS = 3;
/** A megabyte as RSS is told. */
const MIB = 1024 ** 2;

/** A finding with ten members and six attributes: as COPY text for the yardstick, and as binary COPY for us. */
const HEADERS = [
  ...['findingId', 'studyId', 'organId', 'subjectId', 'slideId', 'name', 'severity', 'createdDate', 'updatedDate'],
  ...['version', 'FLAG', 'MISPEC', 'MISTRESC', 'SEX', 'SUBJID', 'WEIGHT'],
];
const KINDS = 'tttttttttnbttttn';
const KEYS = new Map([10, 12, 13, 15].map((column) => [HEADERS[column] as string, column]));
const FIELDS: CopyField[] = [
  ...[0, 1, 2, 3, 4, 5, 6].map((column) => ({ kind: 'text' as const, column })),
  { kind: 'timestamp', column: 7 },
  { kind: 'timestamp', column: 8 },
  { kind: 'integer', column: 9 },
  { kind: 'text', column: 11 },
  { kind: 'text', column: 14 },
  { kind: 'attributes', columns: KEYS, rest: null },
];

const DIGITS = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';
const NAMES = [
  'Hypertrophy, centrilobular',
  'Infiltrate, mononuclear cell',
  'Vacuolation',
  'Mineralization & fibrosis',
];
const SEVERITIES = ['MINIMAL', 'MILD', 'MODERATE', 'MARKED', null];
const ORGANS = ['LIVER', 'KIDNEY', 'HEART', 'SPLEEN', 'LUNG', 'BRAIN'];

function generator() {
  let seed = 1;
  const below = (end: number) => {
    seed = (Math.imul(seed, 1_103_515_245) + 12_345) >>> 0;
    return Math.floor((seed / 2 ** 32) * end);
  };
  const pick = <T>(values: readonly T[]) => values[below(values.length)] as T;
  const id = () => {
    let text = '0JQz4k7P';
    for (let i = 0; i < 16; i++) text += DIGITS[below(62)];
    return text;
  };
  const study = id();
  return (i: number): Cell[] => {
    const date = new Date(Date.UTC(2026, 0, 1) + i * 3).toISOString();
    const ids = [id(), study, id(), id(), id()];
    const finding = [
      pick(NAMES),
      pick(SEVERITIES),
      date,
      date,
      1 + below(3),
      below(2) === 0,
      pick(ORGANS),
      pick(NAMES),
    ];
    return [...ids, ...finding, pick(['M', 'F']), `S-${1000 + below(900)}`, below(1000) / 4];
  };
}

const asText = (row: Cell[]) => `${row.map((cell) => (cell === null ? '\\N' : cell)).join('\t')}\n`;

function asBinary(row: Cell[]): Buffer {
  const parts: Buffer[] = [];
  const add = (value: Buffer | null) => {
    const length = Buffer.alloc(4);
    length.writeInt32BE(value === null ? -1 : value.length);
    parts.push(length, ...(value === null ? [] : [value]));
  };
  for (const field of FIELDS) {
    const bytes = Buffer.alloc(field.kind === 'timestamp' ? 8 : 4);
    if (field.kind === 'attributes') {
      const entries = [...KEYS].map(([key, column]) => [key, row[column]]);
      add(Buffer.from(JSON.stringify(Object.fromEntries(entries))));
    } else if (field.kind === 'timestamp') {
      bytes.writeBigInt64BE(BigInt(Date.parse(row[field.column] as string) - Date.UTC(2000)) * 1000n);
      add(bytes);
    } else if (field.kind === 'integer') {
      bytes.writeInt32BE(row[field.column] as number);
      add(bytes);
    } else {
      const value = row[field.column];
      add(value === null ? null : Buffer.from(value as string));
    }
  }
  return Buffer.concat([Buffer.of(0, FIELDS.length), ...parts]);
}

/** Files of the same rows in both formats. */
async function generate(directory: string, rows: number): Promise<{ text: string; binary: string }> {
  const paths = { text: join(directory, `${rows}.txt`), binary: join(directory, `${rows}.bin`) };
  const [text, binary] = [await open(paths.text, 'w'), await open(paths.binary, 'w')];
  const next = generator();
  await binary.write(Buffer.from('PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0', 'latin1'));
  for (let start = 0; start < rows; start += 10_000) {
    const batch = Array.from({ length: Math.min(10_000, rows - start) }, (_, i) => next(start + i));
    await text.write(batch.map(asText).join(''));
    await binary.write(Buffer.concat(batch.map(asBinary)));
  }
  await binary.write(Buffer.of(0xff, 0xff));
  await Promise.all([text.close(), binary.close()]);
  return paths;
}

/** Rows of cells out of COPY text: what the simple interface has to be given. */
async function* cellsOf(path: string): AsyncGenerator<Cell[][]> {
  let rest = '';
  const cell = (field: string, column: number): Cell => {
    if (field === '\\N') return null;
    return KINDS[column] === 'n' ? Number(field) : KINDS[column] === 'b' ? field === 'true' : field;
  };
  for await (const chunk of createReadStream(path, { encoding: 'latin1' })) {
    const lines = (rest + chunk).split('\n');
    rest = lines.pop() as string;
    yield lines.map((line) => line.split('\t').map(cell));
  }
}

/** In a process of its own: writes the workbook, prints milliseconds and the bytes that memory grew by at its peak. */
async function child(kind: string, input: string, output: string): Promise<void> {
  const columns = HEADERS.map((header) => ({ header }));
  const before = process.memoryUsage.rss();
  const began = performance.now();
  const rows = kind === 'cells' ? { rows: cellsOf(input) } : { copy: createReadStream(input), fields: FIELDS };
  await writeWorkbook([{ name: 'findings', columns, ...rows } as Sheet], createWriteStream(output));
  const ms = performance.now() - began;
  process.stdout.write(JSON.stringify({ ms, grown: process.resourceUsage().maxRSS * 1024 - before }));
}

export async function compile(directory: string): Promise<string> {
  const program = join(directory, 'libxlsxwriter');
  await run('cc', ['-O2', '-o', program, 'bench/libxlsxwriter.c', '-lxlsxwriter']);
  return program;
}

/**
 * The writer alone, from rows in a file, against libxlsxwriter (Debian: libxlsxwriter-dev, gcc) in its constant-memory
 * mode, and its memory at two sizes.
 */
export async function xlsxFigures(): Promise<Figure[]> {
  const directory = await mkdtemp(join(tmpdir(), 'sds-bench-'));
  const output = join(directory, 'out.xlsx');
  const write = async (kind: string, input: string) => {
    const { stdout } = await run(process.execPath, ['--import', 'tsx', 'bench/xlsx.ts', kind, input, output]);
    return JSON.parse(stdout) as { ms: number; grown: number };
  };
  try {
    const small = await generate(directory, 100_000);
    const large = await generate(directory, 1_000_000);
    const yardstick = await compile(directory).catch(() => null);
    const taken: Record<string, number[]> = { copy: [], cells: [], yardstick: [], small: [], large: [] };
    for (let round = 0; round < ROUNDS; round++) {
      const copy = await write('copy', large.binary);
      taken.copy?.push(copy.ms / 1000);
      taken.large?.push(copy.grown / MIB);
      taken.cells?.push((await write('cells', large.text)).ms / 1000);
      taken.small?.push((await write('copy', small.binary)).grown / MIB);
      if (yardstick === null) continue;
      const began = performance.now();
      await run('sh', ['-c', `"${yardstick}" "${output}.c" ${KINDS} < "${large.text}"`]);
      taken.yardstick?.push((performance.now() - began) / 1000);
    }
    const of = (name: string) => median(taken[name] as number[]);
    const against = yardstick === null ? {} : { yardstick: { name: 'libxlsxwriter', value: of('yardstick') } };
    const target = yardstick === null ? {} : { target: { atMost: 0.45 } };
    return [
      {
        name: `1,000,000 rows × ${HEADERS.length}, binary COPY to XLSX`,
        value: of('copy'),
        unit: 's',
        ...against,
        ...target,
      },
      { name: 'the same from rows of cells', value: of('cells'), unit: 's', ...against, ...target },
      { name: 'memory for 1,000,000 rows', value: of('large'), unit: 'MiB', target: { atMost: 150 } },
      { name: 'memory for 100,000 rows', value: of('small'), unit: 'MiB', target: { atMost: 150 } },
      // A run of 100,000 rows ends before V8's young generation has its full size, 32 MiB.
      {
        name: 'memory that more rows take',
        value: Math.max(0, of('large') - of('small')),
        unit: 'MiB',
        target: { atMost: 32 },
      },
    ];
  } finally {
    await rm(directory, { recursive: true, force: true });
  }
}

const [kind, input, output] = process.argv.slice(2);
if (import.meta.filename === process.argv[1]) {
  if (kind && input && output) await child(kind, input, output);
  else for (const figure of await xlsxFigures()) process.stdout.write(`${lineOf(figure)}\n`);
}
