import type { Fault, PlacedFault } from '../test/peers/s3-server.ts';
import { type ExportJob, endedExport, eventually, expectBody } from './faults-client.ts';
import { type ExportStudy, faultsOfExport } from './faults-exports.ts';
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

/** Studies of one lane: the file of one goes to the store in one piece, that of the other in parts. */
export interface ExportLane {
  small: ExportStudy;
  large: ExportStudy;
}

interface ExportTrial extends Trial {
  meets: 'writing' | 'download' | 'deletion';
  size: keyof ExportLane;
  format: ExportJob['format'];
}

/** All that can go wrong between an export and the object store. */
export function exportTrials(): ExportTrial[] {
  const own = true;
  const of = (meets: ExportTrial['meets'], size: keyof ExportLane, at: Parameters<typeof faultsAt>[0]) =>
    faultsAt(at).map(({ fault, lasting }, n): ExportTrial => {
      const format = size === 'small' && n % 2 ? 'XLSX' : 'JSON';
      return { jobs: 'exports', meets, size, format, faults: [fault], lasting };
    });
  const aborts = anyTime.map((does): ExportTrial => {
    const lead: Fault = { on: 'part', does: 'denied', times: Infinity };
    const faults = [lead, { on: 'abort' as const, does, times: does === 'hang' ? 1 : 2 }];
    return { jobs: 'exports', meets: 'writing', size: 'large', format: 'JSON', faults, lasting: true };
  });
  return [
    ...of('writing', 'small', { on: 'put', does: anyTime, own }),
    ...of('writing', 'small', { on: 'put', does: midway, midway: true, own }),
    ...of('writing', 'large', { on: 'create', does: anyTime, own }),
    ...of('writing', 'large', { on: 'part', does: anyTime, own }),
    ...of('writing', 'large', { on: 'part', does: midway, midway: true, own }),
    ...of('writing', 'large', { on: 'complete', does: anyTime, own }),
    ...aborts,
    ...of('download', 'small', { on: 'head', does: early, own }),
    ...of('download', 'small', { on: 'get', does: early, own }),
    ...of('download', 'small', { on: 'get', does: midway, midway: true, own }),
    ...of('download', 'large', { on: 'get', does: midway, midway: true, own }),
    ...of('deletion', 'small', { on: 'delete', does: anyTime, own }),
  ];
}

const keyOf = (exportId: string) => `sds/exports/${exportId}/`;

/**
 * Starts exports one after the other: a fault that is to meet the file of one alone has to be there before its name is
 * known, and so takes every export that is not known yet.
 */
export class ExportStarter {
  readonly #kit: Kit;
  readonly #known = new Set<string>();
  #last: Promise<unknown> = Promise.resolve();

  constructor(kit: Kit) {
    this.#kit = kit;
  }

  start(studyId: string, format: string, faults: Fault[]): Promise<{ exportId: string; placed: PlacedFault[] }> {
    const started = this.#last.then(() => this.#start(studyId, format, faults));
    this.#last = started.catch(() => {});
    return started;
  }

  async #start(studyId: string, format: string, faults: Fault[]) {
    const { ask, store } = this.#kit;
    let own: string | null = null;
    const key = (name: string) => {
      const [, id = ''] = /^sds\/exports\/([^/]+)\//.exec(name) ?? [];
      return own === null ? id !== '' && !this.#known.has(id) : id === own;
    };
    const placed = faults.map((fault) => store.faults.add({ ...fault, key }));
    const posted = ask('POST', `/studies/${studyId}/exports`, { format });
    const { exportId } = await expectBody<ExportJob>(202, posted);
    own = exportId;
    this.#known.add(exportId);
    return { exportId, placed };
  }
}

/** Plays one trial, and leaves the lane without exports. */
export async function playExport(
  kit: Kit,
  starter: ExportStarter,
  trial: ExportTrial,
  lane: ExportLane,
  outcome: Outcome,
): Promise<void> {
  const study = lane[trial.size];
  const path = `/studies/${study.studyId}/exports`;
  const { ask } = kit;
  const { complaints, placed } = outcome;
  const lift = () => removeAll(placed);
  const remove = (exportId: string) => ask('DELETE', `${path}/${exportId}`);
  const begin = async (faults: Fault[]) => {
    const started = await starter.start(study.studyId, trial.format, faults);
    placed.push(...started.placed);
    return endedExport(ask, study.studyId, started.exportId, 180);
  };
  const check = async (job: ExportJob) => {
    if (job.errorMessage) return void complaints.push(job.errorMessage);
    const file = await ask('GET', `${path}/${job.exportId}:download`);
    complaints.push(...(await faultsOfExport(study, job, file)));
  };

  if (trial.meets === 'writing') {
    let job = await begin(trial.faults);
    lift();
    outcome.uploadsLeft = await openUploads(kit.storeClient, 'store', keyOf(job.exportId));
    if (trial.lasting) {
      const refusal = await ask('GET', `${path}/${job.exportId}:download`);
      const told = [job.exportStatus.status, job.errorMessage, refusal.status].join(' ');
      if (!/^FAILED The file could not be written to the object store: .+ 409$/.test(told)) complaints.push(told);
      await remove(job.exportId);
      job = await begin([]);
    }
    await check(job);
    await remove(job.exportId);
    return;
  }

  const job = await begin([]);
  const key = (name: string) => name.startsWith(keyOf(job.exportId));
  placed.push(...trial.faults.map((fault) => kit.store.faults.add({ ...fault, key })));
  const [fault] = trial.faults as [Fault];
  if (trial.meets === 'download') {
    const file = await ask('GET', `${path}/${job.exportId}:download`).catch(() => null);
    // It may break off, or tell that it failed, but not pass off other bytes as the file.
    if (file?.status === 200) complaints.push(...(await faultsOfExport(study, job, file)));
    else if (!trial.lasting && fault.does !== 'hang' && !fault.afterBytes) complaints.push(`${file?.status} at once`);
    lift();
    await check(job);
  }
  await remove(job.exportId);
  if (trial.meets === 'deletion') {
    // The purge looks again every 30 s, one file after the other, and waits as long for a store that is silent.
    await eventually(async () => placed.some(({ hits }) => hits > 0), 120);
    if (trial.lasting) lift();
    const gone = async () => ![...kit.store.objects('store').keys()].some(key);
    if (!(await eventually(gone, 120)))
      complaints.push(`the file of the deleted export ${job.exportId} is still there`);
  }
}
