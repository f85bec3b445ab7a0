import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { createWriteStream } from 'node:fs';
import { mkdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { Readable, Transform } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import { createClient } from '../auth/clients.ts';
import { scopeNames } from '../auth/scopes.ts';
import type { Settings } from '../config.ts';
import { serve } from '../serve.ts';
import { command, UsageError } from './command.ts';
import { DemoClient } from './demo/client.ts';
import { type DemoStudy, generateStudy } from './demo/generate.ts';
import { DEMO_ROOT, ingestImages } from './demo/images.ts';
import { openLog } from './log.ts';
import { withDatabase } from './open.ts';
import { Progress } from './progress.ts';

/** The demo works beside the service's own data, never in it; only one that stays up needs a known port. */
function demoSettings({ config, secrets }: Settings, staysUp: boolean): Settings {
  const dataDir = join(config.dataDir, 'demo');
  return {
    config: {
      ...config,
      port: staysUp ? config.port : 0,
      dataDir,
      database: { kind: 'embedded', dir: dataDir },
      objectStore: `file:${join(dataDir, 'objects')}`,
      logLevel: 'error',
      fileRoots: [{ name: DEMO_ROOT, path: scannerDir(dataDir), readOnly: true }],
    },
    secrets: {
      ...secrets,
      databaseUrl: null,
      bootstrapClient: null,
      masterKey: { kind: 'file', path: join(dataDir, 'master.key'), create: true },
    },
  };
}

/** The directory that stands for a scanner's share. */
function scannerDir(dataDir: string): string {
  return join(dataDir, 'scanner');
}

export const demo = command({
  options: {
    seed: { type: 'string', value: 'NUMBER', help: 'Seed of the generated study (default 1).' },
    animals: { type: 'string', value: 'NUMBER', help: 'Animals of the generated study (default 250).' },
    serve: { type: 'boolean', help: 'Leave the service up afterwards.' },
  },
  details: 'Generates a study, loads it over HTTP, exports it, checks the file, and brings images in.',
  async run(call) {
    const number = (name: 'seed' | 'animals', fallback: number) => {
      const value = Number(call.options[name] ?? fallback);
      if (!Number.isInteger(value) || value < 1) throw new UsageError(`--${name} takes a whole number from 1.`);
      return value;
    };
    const seed = number('seed', 1);
    const animals = number('animals', 250);
    const settings = demoSettings(call.settings(), call.options.serve);
    await mkdir(scannerDir(settings.config.dataDir), { recursive: true });
    const service = await serve(settings, openLog(settings.config.logLevel), call.signal);
    const progress = new Progress();
    try {
      const login = await withDatabase({ settings: () => settings, signal: call.signal }, ({ pool }) =>
        createClient(pool, { name: 'demo', scopes: [...scopeNames] }),
      );
      const client = new DemoClient(service.url, login);
      await client.login();
      const study = generateStudy(seed, animals);
      call.say(`The service listens on ${service.url}; its data is in ${settings.config.dataDir}.`);
      const loaded = await load(client, study, progress);
      call.say(`Loaded ${study.name}: ${describe(loaded.counts)}.`);
      const exported = await exportStudy(client, loaded.studyId, settings.config.dataDir, progress);
      await check(exported.file, loaded.counts);
      call.say(`Exported, downloaded and checked: counts agree, SHA-256 ${exported.sha256}.`);
      const scanner = scannerDir(settings.config.dataDir);
      const images = await ingestImages(client, loaded.studyId, scanner, progress, call.say);
      const value = { url: service.url, clientId: login.clientId, ...loaded, ...exported, images };
      if (!call.options.serve) return { value, text: ending(value, null) };
      call.stdout.write(`${call.json ? JSON.stringify(value) : ending(value, login.clientSecret)}\n`);
      if (!call.signal.aborted) await once(call.signal, 'abort');
      return undefined;
    } finally {
      progress.end();
      await service.close();
    }
  },
});

type Counts = Record<'subjects' | 'organs' | 'slides' | 'findings' | 'scores' | 'codes', number>;

function describe(counts: Counts): string {
  return Object.entries(counts)
    .map(([what, count]) => `${count.toLocaleString('en')} ${what}`)
    .join(', ');
}

/** Loads the study through the API, level by level, as each refers to the ids of the one above. */
async function load(
  client: DemoClient,
  study: DemoStudy,
  progress: Progress,
): Promise<{ studyId: string; counts: Counts }> {
  const { name, siteId, attributes, codeLists } = study;
  const { studyId } = await client.call('POST', '/studies', { name, siteId, attributes });
  const add = (collection: string, items: object[]) =>
    client.createAll(`/studies/${studyId}/${collection}`, items, (done, total) =>
      progress.show(`loading ${collection}`, done, total),
    );
  const byKey = <T extends object>(
    records: Record<string, string>[],
    items: T[],
    key: (item: T) => string,
    id: string,
  ) => new Map(items.map((item, index) => [key(item), records[index]?.[id] as string]));
  const place = ({ subject, organ }: { subject: string; organ: string }) => `${subject}/${organ}`;

  const subjects = byKey(await add('subjects', study.subjects), study.subjects, (one) => one.name, 'subjectId');
  const organs = byKey(
    await add(
      'organs',
      study.organs.map(({ subject, ...organ }) => ({ ...organ, subjectId: subjects.get(subject) })),
    ),
    study.organs,
    ({ subject, name: organ }) => place({ subject, organ }),
    'organId',
  );
  const slides = byKey(
    await add(
      'slides',
      study.slides.map(({ subject, organ, ...slide }) => ({
        ...slide,
        organId: organs.get(place({ subject, organ })),
      })),
    ),
    study.slides,
    (slide) => slide.fileName,
    'slideId',
  );
  await add(
    'findings',
    study.findings.map(({ subject, organ, fileName, ...finding }) => ({
      ...finding,
      organId: organs.get(place({ subject, organ })),
      slideId: slides.get(fileName),
    })),
  );
  await add(
    'scores',
    study.scores.map(({ subject, organ, ...score }) => ({
      ...score,
      subjectId: subjects.get(subject),
      organId: organ === null ? null : organs.get(place({ subject, organ })),
    })),
  );
  await client.call('POST', `/studies/${studyId}/codes`, { codeLists });
  const counts = { subjects: 0, organs: 0, slides: 0, findings: 0, scores: 0, codes: 1 };
  for (const collection of ['subjects', 'organs', 'slides', 'findings', 'scores'] as const) {
    const { paging } = await client.call('GET', `/studies/${studyId}/${collection}?pageSize=1`);
    counts[collection] = paging.totalItems;
    if (paging.totalItems !== study[collection].length) throw new Error(`${collection}: ${paging.totalItems} arrived.`);
  }
  return { studyId, counts };
}

interface Exported {
  exportId: string;
  file: string;
  sizeBytes: number;
  sha256: string;
}

/** Starts an export, polls it and downloads the file; its SHA-256 has to be the one that the job tells. */
async function exportStudy(client: DemoClient, studyId: string, dir: string, progress: Progress): Promise<Exported> {
  const path = `/studies/${studyId}/exports`;
  const { exportId } = await client.call('POST', path, { format: 'JSON' });
  let job = await client.call('GET', `${path}/${exportId}`);
  while (job.exportStatus.status === 'QUEUED' || job.exportStatus.status === 'IN_PROGRESS') {
    await sleep(100);
    job = await client.call('GET', `${path}/${exportId}`);
    const { recordsWritten, totalRecords } = job.exportStatus;
    if (totalRecords) progress.show('exporting', recordsWritten, totalRecords);
  }
  if (job.exportStatus.status === 'FAILED') throw new Error(`The export failed: ${job.errorMessage}`);
  const file = join(dir, `${studyId}.json`);
  const hash = createHash('sha256');
  let received = 0;
  const response = await client.fetch('GET', `${path}/${exportId}:download`);
  await pipeline(
    Readable.fromWeb(response.body as Parameters<typeof Readable.fromWeb>[0]),
    new Transform({
      transform(chunk: Buffer, _encoding, done) {
        hash.update(chunk);
        received += chunk.length;
        progress.show('downloading', received, job.fileSizeBytes);
        done(null, chunk);
      },
    }),
    createWriteStream(file),
  );
  const sha256 = hash.digest('hex');
  if (sha256 !== job.sha256) throw new Error(`The file's SHA-256 is ${sha256}, the job says ${job.sha256}.`);
  return { exportId, file, sizeBytes: received, sha256 };
}

/** Counts what is in the file. */
async function check(file: string, counts: Counts): Promise<void> {
  const document = JSON.parse(await readFile(file, 'utf8')) as Record<string, { scores?: unknown[] }[]>;
  const found = (array: string) => document[array]?.length ?? 0;
  const scores = ['subjects', 'organs'].flatMap((array) => document[array] ?? []);
  const inFile: Counts = {
    subjects: found('subjects'),
    organs: found('organs'),
    slides: found('slides'),
    findings: found('findings'),
    scores: scores.reduce((sum, record) => sum + (record.scores?.length ?? 0), 0),
    codes: found('codes'),
  };
  for (const [what, count] of Object.entries(counts)) {
    if (inFile[what as keyof Counts] !== count)
      throw new Error(`The file has ${inFile[what as keyof Counts]} ${what}, not ${count}.`);
  }
}

/** What the user has now, and what to try next. */
function ending(
  { url, clientId, studyId, file, sizeBytes }: Exported & { url: string; clientId: string; studyId: string },
  secret: string | null,
): string {
  const size = `${(sizeBytes / 2 ** 20).toFixed(1)} MiB`;
  const lines = ['', `The export is in ${file} (${size}).`];
  if (secret === null)
    return [...lines, 'Next: npm run demo -- --serve, which leaves the service up to be tried with curl.'].join('\n');
  return [
    ...lines,
    `The service stays up on ${url} until Ctrl-C. Try next, in another terminal:`,
    '',
    `  TOKEN=$(curl -s -u '${clientId}:${secret}' -d grant_type=client_credentials ${url}/oauth/token | sed 's/.*"access_token":"\\([^"]*\\)".*/\\1/')`,
    `  curl -s -H "Authorization: Bearer $TOKEN" '${url}/api/v1/studies/${studyId}/findings?severity=SEVERE&pageSize=3'`,
    `  curl -s -H "Authorization: Bearer $TOKEN" '${url}/api/v1/audit/events?sortDirection=DESC&pageSize=3'`,
    '',
    `The API is documented on ${url}/docs.`,
  ].join('\n');
}
