import { randomUUID } from 'node:crypto';
import type { S3Client } from '@aws-sdk/client-s3';
import type { Fault, S3Server } from '../test/peers/s3-server.ts';
import { endedImageJob, eventually, expectBody, type ImageJob } from './faults-client.ts';
import { faultsOfIngest, type Images, slidesOf } from './faults-images.ts';
import {
  anyTime,
  early,
  faultsAt,
  type Kit,
  midway,
  type Outcome,
  openUploads,
  removeAll,
  type Trial,
} from './faults-trials.ts';

/** A cloud of one lane's own, and a study whose images are transferred there. */
export interface ImageLane {
  cloud: S3Server;
  client: S3Client;
  /** Credentials of its buckets. */
  scans: string;
  archive: string;
  studyId: string;
}

/** `small/0000.tif` is fetched in one request, and `large/0000.tif` goes in parts both ways. */
export type Size = 'small' | 'large';

interface ImageTrial extends Trial {
  does: 'ingest' | 'transfer' | 'download' | 'deletion';
  size: Size;
  /** Whether the files are listed, or named. */
  listed: boolean;
  /** Which server fails: the customer's, or the service's own. */
  at: 'cloud' | 'store';
}

/** All that can go wrong between an image job and either server. */
export function imageTrials(): ImageTrial[] {
  type Way = Pick<ImageTrial, 'does' | 'at' | 'size'> & { listed?: boolean };
  const of = ({ listed = false, ...way }: Way, on: Fault['on'], does: Fault['does'][], mid = false): ImageTrial[] =>
    faultsAt({ on, does, midway: mid, own: way.at === 'store' }).map(({ fault, lasting }) => {
      return { jobs: 'images', ...way, listed, faults: [fault], lasting };
    });
  const writing = (does: 'ingest' | 'transfer', at: 'store' | 'cloud') => [
    ...of({ does, at, size: 'small' }, 'put', anyTime),
    ...of({ does, at, size: 'small' }, 'put', midway, true),
    ...of({ does, at, size: 'large' }, 'create', anyTime),
    ...of({ does, at, size: 'large' }, 'part', anyTime),
    ...of({ does, at, size: 'large' }, 'part', midway, true),
    ...of({ does, at, size: 'large' }, 'complete', anyTime),
    ...anyTime.map((failure): ImageTrial => {
      const lead: Fault = { on: 'part', does: 'denied', times: Infinity };
      const times = failure === 'hang' && at === 'store' ? 1 : 2;
      const faults: Fault[] = [lead, { on: 'abort', does: failure, times }];
      return { jobs: 'images', does, at, size: 'large', listed: false, faults, lasting: true };
    }),
  ];
  const head = of({ does: 'transfer', at: 'cloud', size: 'small' }, 'head', early);
  return [
    ...of({ does: 'ingest', at: 'cloud', size: 'small', listed: true }, 'list', early),
    ...of({ does: 'ingest', at: 'cloud', size: 'small' }, 'head', early),
    ...of({ does: 'ingest', at: 'cloud', size: 'small', listed: true }, 'get', early),
    ...of({ does: 'ingest', at: 'cloud', size: 'small', listed: true }, 'get', midway, true),
    ...of({ does: 'ingest', at: 'cloud', size: 'large' }, 'get', midway, true).filter(({ lasting }) => !lasting),
    ...writing('ingest', 'store'),
    ...writing('transfer', 'cloud'),
    // A credential may write and not read: then the answer to the write has to do.
    ...head.map((trial) => (trial.faults[0]?.does === 'denied' ? { ...trial, lasting: false } : trial)),
    ...of({ does: 'transfer', at: 'store', size: 'small' }, 'head', early),
    ...of({ does: 'transfer', at: 'store', size: 'small' }, 'get', early),
    ...of({ does: 'transfer', at: 'store', size: 'small' }, 'get', midway, true),
    ...of({ does: 'download', at: 'store', size: 'small' }, 'get', midway, true),
    ...of({ does: 'download', at: 'store', size: 'large' }, 'get', midway, true),
    ...of({ does: 'deletion', at: 'store', size: 'small' }, 'delete', anyTime),
  ];
}

/** Of what the service says where it does not know what to say. */
const VAGUE = /error of its own/;

/** Plays one trial on a lane that no other trial uses meanwhile. */
export async function playImages(
  kit: Kit,
  images: Images,
  trial: ImageTrial,
  lane: ImageLane,
  outcome: Outcome,
): Promise<void> {
  const { ask, store } = kit;
  const { complaints, placed } = outcome;
  const key = `${trial.size}/0000.tif`;
  const content = images.get(key) as Buffer;
  const studyId = ['transfer', 'download'].includes(trial.does) ? lane.studyId : await newStudy(kit);
  const slide = (await slidesOf(ask, studyId)).find(({ image }) => image?.sizeBytes === content.length);
  const stored = `sds/images/${studyId}/`;
  const ofStudy = (name: string) => name.startsWith(stored);
  const place = () => {
    for (const fault of trial.faults) {
      const placing =
        trial.at === 'store' ? store.faults.add({ ...fault, key: ofStudy }) : lane.cloud.faults.add(fault);
      placed.push(placing);
    }
  };
  const lift = () => removeAll(placed);
  const run = async (action: string, body: object) =>
    endedImageJob(ask, (await expectBody<ImageJob>(202, ask('POST', `/image/jobs:${action}`, body))).jobId, 180);
  const again = async ({ jobId }: ImageJob) => {
    await expectBody(202, ask('POST', `/image/jobs/${jobId}:retry`));
    return endedImageJob(ask, jobId, 180);
  };
  const holdFailed = ({ status, errorMessage }: ImageJob) => {
    if (status !== 'FAILED' || !errorMessage || VAGUE.test(errorMessage)) complaints.push(`${status}: ${errorMessage}`);
  };

  if (trial.does === 'download') {
    const path = `/studies/${studyId}/slides/${slide?.slideId}/image`;
    place();
    const file = await ask('GET', path).catch(() => null);
    // It may break off, or tell that it failed, but not pass off other bytes as the file.
    if (file?.status === 200 && !file.bytes.equals(content)) complaints.push('200 with other bytes');
    lift();
    if (!(await ask('GET', path)).bytes.equals(content)) complaints.push('other bytes');
    return;
  }

  if (trial.does === 'transfer') {
    const prefix = `${randomUUID()}/`;
    place();
    const body = { studyId, credentialId: lane.archive, prefix, slideIds: [slide?.slideId] };
    let job = await run('transfer', body);
    lift();
    const [there] = [...lane.cloud.objects('archive').keys()].filter((one) => one.startsWith(prefix));
    outcome.uploadsLeft = await openUploads(lane.client, 'archive', prefix);
    if (trial.lasting) {
      holdFailed(job);
      // Whole, where only the answer was lost.
      if (there && !(await lane.cloud.body('archive', there)).equals(content))
        complaints.push(`${there} is half-written`);
      job = await again(job);
    }
    if (job.status !== 'COMPLETED') complaints.push(`${job.status}: ${job.errorMessage}`);
    const copy = await lane.cloud.body('archive', `${prefix}${slide?.fileName}`).catch(() => null);
    if (!copy?.equals(content)) complaints.push(`${copy?.length ?? 'no'} bytes of ${content.length} in the cloud`);
    return;
  }

  if (trial.does === 'ingest') place();
  const files = trial.listed ? { prefix: key.slice(0, key.indexOf('/') + 1) } : { files: [{ key }] };
  let job = await run('ingest', { studyId, credentialId: lane.scans, ...files });
  lift();
  outcome.uploadsLeft = await openUploads(kit.storeClient, 'store', stored);
  if (trial.does === 'ingest' && trial.lasting) {
    holdFailed(job);
    const slides = await slidesOf(ask, studyId);
    if (slides.length > 0) complaints.push(`${slides.length} slides of a job that failed`);
    job = await again(job);
  }
  const { lost, doubled, wrong } = await faultsOfIngest(ask, new Map([[key, content]]), studyId, job);
  complaints.push(...lost, ...doubled, ...wrong);
  if (trial.does === 'deletion') {
    place();
    await ask('DELETE', `/studies/${studyId}`);
    // As with exports: the purge takes its time.
    await eventually(async () => placed.some(({ hits }) => hits > 0), 120);
    if (trial.lasting) lift();
    const gone = async () => ![...store.objects('store').keys()].some(ofStudy);
    if (!(await eventually(gone, 120))) complaints.push(`images of the deleted study ${studyId} are still there`);
  }
}

async function newStudy({ ask }: Kit): Promise<string> {
  const posted = ask('POST', '/studies', { name: 'Images that meet faults' });
  return (await expectBody<{ studyId: string }>(201, posted)).studyId;
}
