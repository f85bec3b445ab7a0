import { execFile } from 'node:child_process';
import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import { type Kind, kinds, memberList, parentJoins } from '../src/studies/kinds.ts';
import { alternate, type Figure, median } from './figures.ts';
import { load, memoryGrowth } from './peers.ts';
import { makeStudy, type Subject, startSubject } from './service.ts';
import { compile } from './xlsx.ts';

const run = promisify(execFile);
const ROUNDS = 3;

interface Job {
  exportId: string;
  exportStatus: { status: string; recordsWritten: number };
  errorMessage: string | null;
  startedDate: string;
}

/** Starts an export and waits for its end; milliseconds from POST to COMPLETED. The job is deleted afterwards. */
async function exportStudy(subject: Subject, study: string, format: 'JSON' | 'XLSX'): Promise<number> {
  const path = `/studies/${study}/exports`;
  const began = performance.now();
  let job = await subject.call<Job>('POST', path, { format });
  while (!['COMPLETED', 'FAILED'].includes(job.exportStatus.status)) {
    await sleep(10);
    job = await subject.call<Job>('GET', `${path}/${job.exportId}`);
  }
  const ms = performance.now() - began;
  if (job.errorMessage) throw new Error(job.errorMessage);
  await remove(subject, study, job.exportId);
  return ms;
}

async function remove(subject: Subject, study: string, exportId: string): Promise<void> {
  const headers = { authorization: `Bearer ${subject.token}` };
  await fetch(`${subject.url}/studies/${study}/exports/${exportId}`, { method: 'DELETE', headers });
}

async function timed(work: () => Promise<unknown>): Promise<number> {
  const began = performance.now();
  await work();
  return performance.now() - began;
}

/** Exports of a study of 1,000,000 findings: time, memory, and what the API feels of them. */
export async function exportFigures(): Promise<Figure[]> {
  const subject = await startSubject();
  try {
    const small = await makeStudy(subject, 1_000);
    const medium = await makeStudy(subject, 100_000);
    const large = await makeStudy(subject, 1_000_000);
    const pid = subject.peer.process.pid as number;
    const seconds = async (study: string, format: 'JSON' | 'XLSX') =>
      (await exportStudy(subject, study, format)) / 1_000;
    const figures: Figure[] = [];

    const finding: Kind = kinds.finding;
    const records = `select row_to_json(q) from (select ${memberList(finding)} from findings r
      ${parentJoins(finding, 'planned')} where r.study_id = '${large.study}' order by r.created_date, r.finding_id) q`;
    const copyOut = (query: string, target: string) =>
      run('psql', [
        subject.databaseUrl,
        '-qc',
        `set timezone = 'UTC'`,
        '-c',
        `\\copy (${query.replaceAll('\n', ' ')}) to ${target}`,
      ]);
    const [json, copied] = await alternate(
      ROUNDS,
      () => seconds(large.study, 'JSON'),
      async () => (await timed(() => copyOut(records, `'${join(subject.dir, 'copy.json')}'`))) / 1_000,
    );
    figures.push({
      name: 'JSON export of 1,000,000 findings',
      unit: 's',
      value: json,
      yardstick: { name: 'psql \\copy', value: copied },
      target: { atMost: 1.25 },
    });
    figures.push(...(await xlsxFigure(subject, large.study, () => seconds(large.study, 'XLSX'))));
    for (const format of ['JSON', 'XLSX'] as const) {
      for (const [size, { study }] of [
        ['100,000', medium],
        ['1,000,000', large],
      ] as const) {
        const { growthMb } = await memoryGrowth(pid, () => exportStudy(subject, study, format));
        const atMost = format === 'JSON' ? 120 : 150;
        figures.push({
          name: `memory of the ${format} export of ${size}`,
          unit: 'MB',
          value: growthMb,
          target: { atMost },
        });
      }
    }
    // Before the next ones, which fill the small study.
    figures.push(await startFigure(subject, small.study));
    figures.push(...(await pressureFigures(subject, small, large.study)));
    return figures;
  } finally {
    await subject.stop();
  }
}

/** From the start of a job (its `startedDate`) to the last byte of its file, which is after the first, of a small study. */
async function startFigure(subject: Subject, study: string): Promise<Figure> {
  const times: number[] = [];
  for (let round = 0; round < 20; round++) {
    let job = await subject.call<Job>('POST', `/studies/${study}/exports`, { format: 'JSON' });
    while (!['COMPLETED', 'FAILED'].includes(job.exportStatus.status)) {
      await sleep(10);
      job = await subject.call<Job>('GET', `/studies/${study}/exports/${job.exportId}`);
    }
    const { mtimeMs } = await stat(join(subject.dir, 'objects', 'exports', job.exportId, '1'));
    times.push(mtimeMs - Date.parse(job.startedDate));
    await remove(subject, study, job.exportId);
  }
  const name = 'start of a job to the first byte (and the last), 1,000 findings';
  return { name, unit: 'ms', value: median(times), target: { atMost: 100 } };
}

/** The workbook against psql and libxlsxwriter in C, both from the database to the finished file. */
async function xlsxFigure(subject: Subject, study: string, ours: () => Promise<number>): Promise<Figure[]> {
  const program = await compile(subject.dir).catch(() => null);
  const keys = ['MIDY', 'MIORRES', 'MIRESCAT', 'MISEQ', 'MISTAT'];
  const columns = [
    ...['finding_id', 'study_id', 'r.subject_id', 'r.organ_id', 'slide_id', 'r.name', 'severity', 's.name', 'o.name'],
    ...[kinds.finding.members.createdDate, kinds.finding.members.updatedDate, 'r.version'],
    ...keys.map((key) => `r.attributes->>'${key}'`),
    ...['o.name', 's.name'],
  ].map((column) => column.replace(/^study_id$/, 'r.study_id'));
  const types = 'tttttttttttnnttnttt';
  const query = `select ${columns.join(', ')} from findings r ${parentJoins(kinds.finding, 'planned')}
    where r.study_id = '${study}' order by r.created_date, r.finding_id`.replaceAll('\n', ' ');
  const target = join(subject.dir, 'yardstick.xlsx');
  const shell = `psql "$1" -qc "set timezone = 'UTC'" -c "\\copy ($2) to stdout" | "$3" "$4" ${types}`;
  if (!program) {
    return [{ name: 'XLSX export of 1,000,000 findings (no libxlsxwriter here)', unit: 's', value: await ours() }];
  }
  const [value, yardstick] = await alternate(ROUNDS, ours, async () => {
    return (await timed(() => run('sh', ['-c', shell, 'sh', subject.databaseUrl, query, program, target]))) / 1_000;
  });
  return [
    {
      name: 'XLSX export of 1,000,000 findings',
      unit: 's',
      value,
      yardstick: { name: 'psql and libxlsxwriter', value: yardstick },
      target: { atMost: 0.45 },
    },
  ];
}

/** p99 of requests while exports of 1,000,000 findings run one after the other, against p99 without. */
async function pressureFigures(
  subject: Subject,
  small: Awaited<ReturnType<typeof makeStudy>>,
  large: string,
): Promise<Figure[]> {
  const { url, token } = subject;
  const requests = {
    'GET one subject': { url: `${url}/studies/${small.study}/subjects/${small.subject}` },
    'POST one finding': {
      url: `${url}/studies/${small.study}/findings`,
      method: 'POST' as const,
      body: { organId: small.organ, name: 'Necrosis' },
    },
  };
  const figures: Figure[] = [];
  for (const [name, request] of Object.entries(requests)) {
    const p99 = async () => (await load({ ...request, token, seconds: 5 })).p99Ms;
    const pressed = async () => {
      let going = true;
      const exports = (async () => {
        for (let n = 0; going; n++) await exportStudy(subject, large, n % 2 ? 'XLSX' : 'JSON');
      })();
      await sleep(500);
      const value = await p99();
      going = false;
      await exports;
      return value;
    };
    const [value, yardstick] = await alternate(ROUNDS, pressed, p99);
    figures.push({
      name: `p99 of ${name} during an export`,
      unit: 'ms',
      value,
      yardstick: { name: 'without', value: yardstick },
      target: { atMost: 3 },
    });
  }
  return figures;
}
