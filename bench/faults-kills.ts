import { mkdir, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, relative } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { startS3Server } from '../test/peers/s3-server.ts';
import { type Ask, bodyOf, type ExportJob, endedImageJob, eventually, expectBody, patient } from './faults-client.ts';
import { type ExportStudy, faultsOfExport, makeExportStudy } from './faults-exports.ts';
import { faultsOfIngest, type Images, KEYS, makeImages, putImages, s3Credential } from './faults-images.ts';
import { type Mortal, startMortal } from './faults-mortal.ts';
import type { Figure } from './figures.ts';

/** Findings of the studies that are exported over and over: those of one size are written at once, others take a while. */
const STUDIES = [...Array<number>(12).fill(3_000), ...Array<number>(4).fill(15_000)];
const IMAGE_LANES = 5;
/** A kill comes so long at most after work has begun: an export takes one second and some, an image job about two. */
const LONGEST_WORK_MS = 1_800;
/** A job that has not ended then is lost: it may be taken over several times, 15 s after each death. */
const LOST_AFTER_S = 180;

/** What was done while processes died, and what was not as it should be. */
interface Tally {
  going: boolean;
  exports: number;
  imageJobs: number;
  images: number;
  /** Exports that were taken over three times and met a fourth death: FAILED by contract (decisions §4). */
  givenUp: number;
  lost: string[];
  doubled: string[];
  wrong: string[];
}

/** Has exports of one study under way until the end: starts one, checks its file, deletes it, starts the next. */
async function exportLane(mortal: Mortal, study: ExportStudy, tally: Tally): Promise<void> {
  const surely = patient(mortal.ask);
  const path = `/studies/${study.studyId}/exports`;
  const [accepted, deleted] = [new Set<string>(), new Set<string>()];
  let since = performance.now();
  for (let n = 0; ; await sleep(250)) {
    const { items: jobs } = await expectBody<{ items: ExportJob[] }>(200, surely('GET', path));
    const there = new Set(jobs.map(({ exportId }) => exportId));
    for (const id of accepted) if (!there.has(id)) tally.lost.push(`export ${id}, which was accepted`);
    for (const id of there) if (deleted.has(id)) tally.wrong.push(`export ${id} is there though it was deleted`);
    if (jobs.length > 1) tally.doubled.push(`${jobs.length} exports of one POST: ${[...there].join(', ')}`);
    accepted.clear();
    if (jobs.length === 0) {
      if (!tally.going) return;
      // Not repeated: where the answer is lost, the list tells whether there is a job.
      const format = n++ % 2 ? 'JSON' : 'XLSX';
      const answer = await mortal.ask('POST', path, { format }).catch(() => null);
      since = performance.now();
      if (answer?.status === 202) accepted.add(bodyOf<ExportJob>(answer).exportId);
      else if (answer && answer.status !== 503) tally.wrong.push(`POST of an export: ${answer.status} ${answer.bytes}`);
    }
    for (const job of jobs) {
      const { exportId, exportStatus } = job;
      if (exportStatus.status === 'COMPLETED') {
        const faults = await faultsOfExport(study, job, await surely('GET', `${path}/${exportId}:download`));
        tally.wrong.push(...faults.map((fault) => `export ${exportId}, ${job.format}: ${fault}`));
        tally.exports++;
      } else if (exportStatus.status === 'FAILED') {
        const { rows } = await mortal.db.query('select takeovers from export_jobs where export_id = $1', [exportId]);
        if (rows[0]?.takeovers >= 3) tally.givenUp++;
        else tally.lost.push(`export ${exportId}: FAILED, ${job.errorMessage}`);
      } else if (performance.now() - since > LOST_AFTER_S * 1_000) {
        tally.lost.push(`export ${exportId}: ${exportStatus.status} for ${LOST_AFTER_S} s`);
      } else {
        accepted.add(exportId);
        continue;
      }
      const gone = await surely('DELETE', `${path}/${exportId}`);
      // 404: the answer before was lost.
      if (![204, 404].includes(gone.status)) tally.wrong.push(`DELETE of an export: ${gone.status} ${gone.bytes}`);
      deleted.add(exportId);
    }
  }
}

/** An ingest that ended well, to be looked at again when all is over. */
interface Ingested {
  studyId: string;
  jobId: string;
}

/** Has one ingest after the other under way until the end; keeps the first, and deletes the studies of the others. */
async function imageLane(ask: Ask, credentialId: string, images: Images, tally: Tally): Promise<Ingested> {
  const surely = patient(ask);
  let first: Ingested | null = null;
  do {
    const { studyId } = await expectBody<{ studyId: string }>(
      201,
      surely('POST', '/studies', { name: 'Images of the bench' }),
    );
    const ingest = { studyId, credentialId, prefix: 'in/' };
    // Repeated where the answer is lost: the key makes that one job.
    const key = { 'idempotency-key': `ingest into ${studyId}` };
    const { jobId } = await expectBody<{ jobId: string }>(202, surely('POST', '/image/jobs:ingest', ingest, key));
    await checkIngest(surely, images, { studyId, jobId }, tally);
    const jobs = await expectBody<{ items: object[] }>(200, surely('GET', `/image/jobs?studyId=${studyId}`));
    if (jobs.items.length !== 1) tally.doubled.push(`${jobs.items.length} image jobs of one Idempotency-Key`);
    tally.imageJobs++;
    tally.images += images.size;
    if (first) await surely('DELETE', `/studies/${studyId}`);
    first ??= { studyId, jobId };
  } while (tally.going);
  return first;
}

async function checkIngest(surely: Ask, images: Images, { studyId, jobId }: Ingested, tally: Tally): Promise<void> {
  const job = await endedImageJob(surely, jobId, LOST_AFTER_S).catch((error: Error) => error);
  if (job instanceof Error) return void tally.lost.push(job.message);
  const faults = await faultsOfIngest(surely, images, studyId, job);
  for (const kind of ['lost', 'doubled', 'wrong'] as const) tally[kind].push(...faults[kind]);
}

/** Compares the object store with what the records name, once every purge is through. */
async function checkStore({ db, dir }: Mortal, tally: Tally): Promise<void> {
  const purged = await eventually(async () => {
    const { rows } = await db.query(`select (select count(*)::int from object_purges) as objects,
      (select count(*)::int from studies where deleted_date is not null) as studies`);
    return rows[0].objects + rows[0].studies === 0;
  }, 90);
  if (!purged) tally.wrong.push('the purges of objects and studies did not end');
  const { rows } = await db.query<{ key: string }>(`select object_key as key from images
    union all select thumbnail_key from images where thumbnail_key is not null
    union all select object_key from export_jobs where object_key is not null`);
  const named = new Set(rows.map(({ key }) => key));
  const objects = join(dir, 'objects');
  const files = (await readdir(objects, { recursive: true, withFileTypes: true }))
    .filter((one) => one.isFile())
    .map((one) => relative(objects, join(one.parentPath, one.name)));
  // What a dead writer had begun is no object, and is swept when it is an hour old.
  const there = new Set(files.filter((file) => !file.startsWith('.incoming')));
  for (const key of there) if (!named.has(key)) tally.wrong.push(`object ${key}, which nothing refers to`);
  for (const key of named) if (!there.has(key)) tally.lost.push(`object ${key}`);
}

/** Kills the service again and again in the middle of its work, and counts what that did to exports and images. */
export async function killFigures(kills: number): Promise<Figure[]> {
  const root = await mkdtemp(join(tmpdir(), 'sds-bench-root-'));
  const s3 = await startS3Server({ ...KEYS, buckets: ['scans'] });
  const images = new Map([...(await makeImages('in/', 120, 20_000)), ...(await makeImages('in/large-', 3, 10e6))]);
  await mkdir(join(root, 'in'));
  for (const [key, content] of images) await writeFile(join(root, key), content);
  await putImages(s3.url, 'scans', images);
  const mortal = await startMortal({
    SDS_FILE_ROOTS: `scanner=${root}`,
    SDS_CLOUD_ENDPOINTS: s3.url,
    // Fewer than there are lanes in a lease of 15 s, so that after every kill there is work that nobody has.
    SDS_WORKERS: '3',
  });
  const tally: Tally = {
    going: true,
    exports: 0,
    imageJobs: 0,
    images: 0,
    givenUp: 0,
    lost: [],
    doubled: [],
    wrong: [],
  };
  const hit = { kills: 0, exports: 0, images: 0 };
  try {
    const studies: ExportStudy[] = [];
    for (const findings of STUDIES) studies.push(await makeExportStudy(mortal, mortal.ask, findings));
    const root = { name: 'root', provider: 'FILE', settings: { root: 'scanner' } };
    const file = await expectBody<{ credentialId: string }>(201, mortal.ask('POST', '/cloud/credentials', root));
    const cloud = await s3Credential(mortal.ask, s3.url, 'scans');
    const ingested: Ingested[] = [];
    let broken: unknown;
    const lanes = [
      ...studies.map((study) => exportLane(mortal, study, tally)),
      ...Array.from({ length: IMAGE_LANES }, async (_, n) => {
        ingested.push(await imageLane(mortal.ask, n % 2 ? cloud : file.credentialId, images, tally));
      }),
    ].map((lane) =>
      lane.catch((error: unknown) => {
        broken ??= error;
      }),
    );
    for (let kill = 0; kill < kills && !broken; kill++) {
      const began = await eventually(async () => {
        const { exports, images } = await mortal.underWay();
        return exports + images > 0;
      }, 60);
      if (!began) throw new Error('no work has begun within a minute');
      await sleep(Math.random() * LONGEST_WORK_MS);
      await mortal.kill();
      const { exports, images } = await mortal.underWay();
      if (exports + images > 0) hit.kills++;
      hit.exports += exports;
      hit.images += images;
      await mortal.revive();
    }
    tally.going = false;
    await Promise.all(lanes);
    if (broken) throw broken;
    for (const one of ingested) await checkIngest(patient(mortal.ask), images, one, tally);
    await checkStore(mortal, tally);
  } finally {
    tally.going = false;
    await mortal.stop();
    await s3.close();
    await rm(root, { recursive: true, force: true });
  }
  const { lost, doubled, wrong } = tally;
  for (const [what, faults] of Object.entries({ lost, doubled, wrong })) {
    for (const fault of faults) process.stdout.write(`  ${what}: ${fault}\n`);
  }
  process.stdout.write(
    `  ${kills} kills: ${hit.kills} in the middle of jobs, of ${hit.exports} exports and ${hit.images} image jobs; ` +
      `checked ${tally.exports} exports, ${tally.imageJobs} image jobs with ${tally.images} files; ` +
      `${tally.givenUp} exports given up after four deaths\n`,
  );
  const asked = { unit: 'lost or wrong', target: { atMost: 0 } };
  return [
    { name: 'kill -9 in the middle of jobs', unit: 'faults', value: hit.kills },
    { name: 'exports that a kill broke off', unit: 'faults', value: hit.exports },
    { name: 'image jobs that a kill broke off', unit: 'faults', value: hit.images },
    { name: `lost, of ${tally.exports} exports and ${tally.images} image files`, value: lost.length, ...asked },
    { name: 'doubled, of the same', value: doubled.length, ...asked },
    { name: 'wrong, of the same and the store behind them', value: wrong.length, ...asked },
  ];
}
