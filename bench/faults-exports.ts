import { createHash } from 'node:crypto';
import { type ReadCell, readWorkbook } from '../test/xlsx-reader.ts';
import { type Answer, type Ask, type ExportJob, expectBody } from './faults-client.ts';
import { makeStudy, type Subject } from './service.ts';

const collections = ['subjects', 'organs', 'slides', 'findings', 'scores'] as const;
type Counts = Record<(typeof collections)[number], number>;

/** A study that stays as it is, and what the API says it holds. */
export interface ExportStudy {
  studyId: string;
  counts: Counts;
  /** Codes of its codes object. */
  codes: number;
}

interface Items {
  items: Record<string, string>[];
}

/** Makes a study that has something in every collection, most of it findings. */
export async function makeExportStudy(subject: Subject, ask: Ask, findings: number): Promise<ExportStudy> {
  const { study: studyId, subject: subjectId, organ: organId } = await makeStudy(subject, findings);
  const path = `/studies/${studyId}`;
  const many = async (collection: string, bodies: object[]) =>
    (await expectBody<Items>(201, ask('POST', `${path}/${collection}:bulkCreate`, { items: bodies }))).items;
  const numbers = (n: number) => Array.from({ length: n }, (_, i) => i);
  const subjects = await many(
    'subjects',
    numbers(20).map((n) => ({ name: `S-${n}`, attributes: { SEX: n % 2 ? 'M' : 'F', note: `"${n}" <&>, ä\n` } })),
  );
  await many(
    'organs',
    subjects.flatMap((one) => ['KIDNEY', 'HEART'].map((name) => ({ subjectId: one.subjectId, name }))),
  );
  await many(
    'slides',
    numbers(30).map((n) => ({ subjectId, organId, fileName: `slide-${n}.svs` })),
  );
  await many(
    'scores',
    numbers(25).map((n) => ({ subjectId, ...(n % 2 ? { organId } : {}), name: 'WEIGHT', value: n / 4, unit: 'g' })),
  );
  const codeLists = { SEX: ['F', 'M'].map((code) => ({ code, label: code })), SEV: [{ code: '1', label: 'MILD' }] };
  await expectBody(201, ask('POST', `${path}/codes`, { codeLists }));
  const counts = {} as Counts;
  for (const name of collections) {
    const page = await expectBody<{ paging: { totalItems: number } }>(200, ask('GET', `${path}/${name}?pageSize=1`));
    counts[name] = page.paging.totalItems;
  }
  return { studyId, counts, codes: 3 };
}

/** What is wrong with the file of a COMPLETED export; nothing where it is the study's, record by record. */
export async function faultsOfExport(study: ExportStudy, job: ExportJob, file: Answer): Promise<string[]> {
  const found: string[] = [];
  const hold = (what: string, is: unknown, must: unknown) => {
    if (is !== must) found.push(`${what}: ${is} instead of ${must}`);
  };
  hold('status of the download', file.status, 200);
  if (found.length > 0) return found;
  const { status, recordsWritten, totalRecords } = job.exportStatus;
  hold('status of the job', status, 'COMPLETED');
  hold('Content-Length', file.headers.get('content-length'), String(file.bytes.length));
  hold('fileSizeBytes', job.fileSizeBytes, file.bytes.length);
  hold('sha256', job.sha256, createHash('sha256').update(file.bytes).digest('hex'));
  const content = await (job.format === 'JSON' ? readJson : readXlsx)(file.bytes).catch((error: Error) => error);
  if (content instanceof Error) return [...found, `it cannot be read: ${content.message}`];
  const { counts, findings } = content;
  let total = 2; // the study and its codes object
  for (const name of collections) {
    hold(name, counts[name], study.counts[name]);
    total += study.counts[name];
  }
  hold('study', counts.study, 1);
  hold('codes', counts.codes, study.codes);
  hold('totalRecords', totalRecords, total);
  hold('recordsWritten', recordsWritten, total);
  const ids = new Set(findings.map(({ id }) => id));
  hold('different findingIds', ids.size, study.counts.findings);
  // As makeStudy made them: number, name and attribute of a finding go together.
  const strange = findings.filter(({ id, name, seq }) => {
    const n = Number(id.slice(2));
    return seq !== n || name !== `Finding ${n % 50}` || n < 1 || n > study.counts.findings;
  });
  hold('findings with the content of others', strange.length, 0);
  return found;
}

interface Content {
  counts: Counts & { study: number; codes: number };
  findings: { id: string; name: string; seq: number }[];
}

interface Document {
  study: object[];
  subjects: { scores?: object[] }[];
  organs: { scores?: object[] }[];
  slides: object[];
  findings: { findingId: string; name: string; attributes: { MISEQ: number } }[];
  codes: { codeLists: Record<string, object[]> }[];
}

async function readJson(bytes: Buffer): Promise<Content> {
  const { study, subjects, organs, slides, findings, codes } = JSON.parse(bytes.toString()) as Document;
  return {
    counts: {
      study: study.length,
      subjects: subjects.length,
      organs: organs.length,
      slides: slides.length,
      findings: findings.length,
      scores: [...subjects, ...organs].reduce((sum, { scores = [] }) => sum + scores.length, 0),
      codes: codes.flatMap(({ codeLists }) => Object.values(codeLists).flat()).length,
    },
    findings: findings.map(({ findingId, name, attributes }) => ({ id: findingId, name, seq: attributes.MISEQ })),
  };
}

async function readXlsx(bytes: Buffer): Promise<Content> {
  const sheets = await readWorkbook(bytes);
  const rows = (name: string): ReadCell[][] => (sheets[name] ?? []).slice(1);
  const heads = sheets.findings?.[0] ?? [];
  const [id, name, seq] = ['findingId', 'name', 'MISEQ'].map((head) => heads.indexOf(head)) as [number, number, number];
  const counts = { study: rows('study').length, codes: rows('codes').length } as Content['counts'];
  for (const collection of collections) counts[collection] = rows(collection).length;
  return {
    counts,
    findings: rows('findings').map((row) => ({ id: String(row[id]), name: String(row[name]), seq: Number(row[seq]) })),
  };
}
