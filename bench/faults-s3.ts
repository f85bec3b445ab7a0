import { PutObjectCommand } from '@aws-sdk/client-s3';
import type { Failure } from '../test/peers/s3-faults.ts';
import { type S3Server, startS3Server } from '../test/peers/s3-server.ts';
import { asker, endedImageJob, eventually, expectBody, type ImageJob, patient } from './faults-client.ts';
import { makeExportStudy } from './faults-exports.ts';
import { type Images, KEYS, makeImages, openClient, putImages, s3Credential } from './faults-images.ts';
import { type ExportLane, ExportStarter, exportTrials, playExport } from './faults-s3-exports.ts';
import { type ImageLane, imageTrials, playImages } from './faults-s3-images.ts';
import { type Kit, type Outcome, playAll, pointOf, type Trial } from './faults-trials.ts';
import type { Figure } from './figures.ts';
import { startSubject } from './service.ts';

const EXPORT_LANES = 8;
const IMAGE_LANES = 14;
/** Files of 1 MB and of 8 MB: one goes to S3 in one piece, the other in parts of 5 MiB. */
const SMALL_FINDINGS = 3_000;
const LARGE_FINDINGS = 25_000;
const failures: Failure[] = ['slow-down', 'internal', 'reset', 'hang', 'truncate', 'corrupt', 'denied', 'lose-answer'];

/** Jobs on S3 servers that fail in every way, at every point that a job meets. */
export async function s3Figures(): Promise<Figure[]> {
  const store = await startS3Server({ ...KEYS, buckets: ['store'] });
  const clouds: S3Server[] = [];
  while (clouds.length < IMAGE_LANES) clouds.push(await startS3Server({ ...KEYS, buckets: ['scans', 'archive'] }));
  const storeClient = openClient(store.url);
  const sweep = await failSweep(store);
  const subject = await startSubject({
    SDS_OBJECT_STORE: `s3://store/sds?endpoint=${store.url}&forcePathStyle=true`,
    AWS_ACCESS_KEY_ID: KEYS.accessKeyId,
    AWS_SECRET_ACCESS_KEY: KEYS.secretAccessKey,
    SDS_CLOUD_ENDPOINTS: clouds.map(({ url }) => url).join(','),
    SDS_CLOUD_IDLE_TIMEOUT_S: '1',
    SDS_IMAGE_JOBS_PER_CLIENT: '100',
    // One for each lane: a job that waits for a fault to pass keeps no other waiting.
    SDS_WORKERS: String(EXPORT_LANES + IMAGE_LANES),
    // A job that fails is logged, and here most of them do.
    SDS_LOG_LEVEL: 'fatal',
  });
  try {
    const kit: Kit = { subject, ask: asker(subject.url, subject.token), store, storeClient };
    const outcomes = [await sweep()];
    const images = new Map([...(await makeImages('small/', 1, 20_000)), ...(await makeImages('large/', 1, 11e6))]);
    const exportLanes: ExportLane[] = [];
    while (exportLanes.length < EXPORT_LANES) {
      const small = await makeExportStudy(subject, kit.ask, SMALL_FINDINGS);
      exportLanes.push({ small, large: await makeExportStudy(subject, kit.ask, LARGE_FINDINGS) });
    }
    const imageLanes = await Promise.all(clouds.map((cloud) => openLane(kit, cloud, images)));
    const starter = new ExportStarter(kit);
    const [ofExports, ofImages] = await Promise.all([
      playAll(exportTrials(), exportLanes, (trial, lane, outcome) => playExport(kit, starter, trial, lane, outcome)),
      playAll(imageTrials(), imageLanes, (trial, lane, outcome) => playImages(kit, images, trial, lane, outcome)),
    ]);
    outcomes.push(...ofExports, ...ofImages);
    for (const { client } of imageLanes) client.destroy();
    return figuresOf(outcomes, await remains(kit));
  } finally {
    await subject.stop();
    storeClient.destroy();
    for (const server of [store, ...clouds]) await server.close();
  }
}

/** Has the first look for files that no export knows meet faults, and looks whether it took away what there was. */
async function failSweep(store: S3Server): Promise<() => Promise<Outcome>> {
  const client = openClient(store.url);
  const Key = 'sds/exports/0fNobodyAtAll00000000000/1';
  await client.send(new PutObjectCommand({ Bucket: 'store', Key, Body: 'of an export that nobody knows' }));
  client.destroy();
  const faults = (['slow-down', 'internal', 'reset'] as const).map((does) => ({ on: 'list' as const, does }));
  const placed = faults.map((fault) => store.faults.add(fault));
  return async () => {
    const gone = await eventually(async () => !store.objects('store').has(Key), 30);
    const complaints = gone ? [] : [`${Key}, which no export knows, was not swept`];
    return { trial: { jobs: 'exports', faults, lasting: false }, placed, complaints, uploadsLeft: 0 };
  };
}

/** Puts the images into a cloud, and into a study of the lane. */
async function openLane({ ask }: Kit, cloud: S3Server, images: Images): Promise<ImageLane> {
  await putImages(cloud.url, 'scans', images);
  const scans = await s3Credential(ask, cloud.url, 'scans');
  const archive = await s3Credential(ask, cloud.url, 'archive');
  const created = ask('POST', '/studies', { name: 'Images to be transferred' });
  const { studyId } = await expectBody<{ studyId: string }>(201, created);
  const files = [...images.keys()].map((key) => ({ key, fileName: key }));
  const posted = ask('POST', '/image/jobs:ingest', { studyId, credentialId: scans, files });
  const job = await endedImageJob(ask, (await expectBody<ImageJob>(202, posted)).jobId, 60);
  if (job.status !== 'COMPLETED') throw new Error(`${job.status}: ${job.errorMessage}`);
  return { cloud, client: openClient(cloud.url), scans, archive, studyId };
}

/** What the store holds in the end that no record names, and what it does not hold that one names. */
async function remains({ subject, store, ask }: Kit): Promise<string[]> {
  const surely = patient(ask);
  await surely('GET', '/studies?pageSize=1');
  const purged = await eventually(async () => {
    const { rows } = await subject.db.query('select count(*)::int as n from object_purges');
    return rows[0].n === 0;
  }, 120);
  const { rows } = await subject.db.query<{ key: string }>(`select 'sds/' || object_key as key from images
    union all select 'sds/' || object_key from export_jobs where object_key is not null`);
  const named = new Set(rows.map(({ key }) => key));
  const there = new Set(store.objects('store').keys());
  return [
    ...(purged ? [] : ['the purge of objects did not end']),
    ...[...there].filter((key) => !named.has(key)).map((key) => `object ${key}, which nothing refers to`),
    ...[...named].filter((key) => !there.has(key)).map((key) => `object ${key} is lost`),
  ];
}

interface Hits {
  exports: number;
  images: number;
}

function refusesCleanUp({ faults }: Trial): boolean {
  return faults.some(({ on, does }) => on === 'abort' && does === 'denied');
}

function figuresOf(outcomes: Outcome[], remains: string[]): Figure[] {
  const say = (line: string) => process.stdout.write(`  ${line}\n`);
  const hits = new Map<string, Hits>();
  const missed: string[] = [];
  for (const { trial, placed, complaints, uploadsLeft } of outcomes) {
    const what = `${trial.jobs}, ${trial.faults.map((fault) => `${fault.does} at ${pointOf(fault)}`).join(', then ')}`;
    const title = `${what}${trial.lasting ? ', lasting' : ''}`;
    for (const complaint of complaints) say(`wrong: ${title}: ${complaint}`);
    // Where the store refuses the very clean-up, there is nobody to do it.
    if (uploadsLeft > 0 && !refusesCleanUp(trial)) say(`left open: ${title}: ${uploadsLeft} uploads`);
    for (const one of placed) {
      if (one.hits === 0) missed.push(`${title}: nothing met ${one.fault.does} at ${pointOf(one.fault)}`);
      for (const key of [`${one.fault.does} ${pointOf(one.fault)}`, one.fault.does]) {
        const known = hits.get(key) ?? { exports: 0, images: 0 };
        known[trial.jobs] += one.hits;
        hits.set(key, known);
      }
    }
  }
  for (const line of missed) say(`no hit: ${line}`);
  for (const line of remains) say(`remains: ${line}`);
  const points = [...new Set(outcomes.flatMap(({ trial }) => trial.faults.map(pointOf)))].sort();
  const row = (head: string, cells: string[]) => say(head.padEnd(18) + cells.map((cell) => cell.padStart(12)).join(''));
  const cell = (found: Hits | undefined) => (found ? `${found.exports} / ${found.images}` : '·');
  say('hits by exports / image jobs');
  row('', failures);
  for (const point of points)
    row(
      point,
      failures.map((does) => cell(hits.get(`${does} ${point}`))),
    );
  row('kind', ['trials', 'exports', 'image jobs', 'lost, wrong', 'left open']);
  const figures: Figure[] = [];
  const add = (name: string, unit: string, value: number, target?: Figure['target']) =>
    figures.push({ name, unit, value, ...(target ? { target } : {}) });
  for (const does of failures) {
    const own = outcomes.filter(({ trial }) => trial.faults.at(-1)?.does === does);
    const wrong = own.filter(({ complaints }) => complaints.length > 0).length;
    const left = own.reduce((sum, { uploadsLeft }) => sum + uploadsLeft, 0);
    const { exports, images } = hits.get(does) ?? { exports: 0, images: 0 };
    row(does, [own.length, exports, images, wrong, left].map(String));
    add(`S3 ${does}, hits`, 'faults', exports + images);
    add(`S3 ${does}, in ${own.length} trials`, 'lost or wrong', wrong, { atMost: 0 });
  }
  add('objects that nothing refers to, or that are gone', 'lost or wrong', remains.length, { atMost: 0 });
  const leaky = outcomes.filter(({ trial }) => !refusesCleanUp(trial));
  const left = leaky.reduce((sum, { uploadsLeft }) => sum + uploadsLeft, 0);
  // Nobody can know of them at once: the store's own sweep, or a rule of the bucket, removes them a day later.
  add('multipart uploads left for a later sweep', 'uploads', left);
  add('trials whose fault nothing met', 'bench errors', missed.length, { atMost: 0 });
  if (missed.length > 0) process.exitCode = 1;
  return figures;
}
