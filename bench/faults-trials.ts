import { ListMultipartUploadsCommand, type S3Client } from '@aws-sdk/client-s3';
import type { Failure } from '../test/peers/s3-faults.ts';
import type { Fault, PlacedFault, S3Server } from '../test/peers/s3-server.ts';
import type { Ask } from './faults-client.ts';
import type { Subject } from './service.ts';

/** What all trials work with. */
export interface Kit {
  subject: Subject;
  ask: Ask;
  /** The S3 server that is the service's own object store, in the bucket `store` under `sds/`. */
  store: S3Server;
  storeClient: S3Client;
}

/** One thing to be tried: what happens to jobs that meet these faults. */
export interface Trial {
  jobs: 'exports' | 'images';
  /** The last one is what is tried; one before it leads there. */
  faults: Fault[];
  /** No job gets over them: it has to be FAILED, and to come right once they are gone. */
  lasting: boolean;
}

/** What a trial came to. */
export interface Outcome {
  trial: Trial;
  placed: PlacedFault[];
  /** What was lost or wrong. */
  complaints: string[];
  /** Multipart uploads that were left open on the server. */
  uploadsLeft: number;
}

/** Failures that a request can meet before it is served. */
export const early: Failure[] = ['slow-down', 'internal', 'reset', 'hang', 'denied'];
/** Those that a request can meet which changes something. */
export const anyTime: Failure[] = [...early, 'lose-answer'];
/** Those that a body can meet on its way. */
export const midway: Failure[] = ['reset', 'hang', 'truncate', 'corrupt'];

/** Far enough into a body for it to have begun, and so little that going on where it broke needs more tries than there are. */
const MIDWAY_BYTES = 1_000;

interface At {
  on: Fault['on'];
  does: Failure[];
  midway?: boolean;
  /** Whether it is the service's own store, which it waits 30 s for: such a wait is tried once. */
  own: boolean;
}

/** Each failure twice, which every job gets over, and for ever, which hardly any does. */
export function faultsAt({ on, does, midway = false, own }: At): { fault: Fault; lasting: boolean }[] {
  const at = { on, ...(midway ? { afterBytes: MIDWAY_BYTES } : {}) };
  return does.flatMap((failure) => {
    const few = { fault: { ...at, does: failure, times: own && failure === 'hang' ? 1 : 2 }, lasting: false };
    // Whether an upload is complete can be asked for otherwise, where no answer says so.
    const lasting = !(on === 'complete' && failure === 'lose-answer');
    const forEver = { fault: { ...at, does: failure, times: Infinity }, lasting };
    if (failure === 'denied') return [forEver];
    return own && failure === 'hang' ? [few] : [few, forEver];
  });
}

/** Where a fault strikes, as the table calls it. */
export function pointOf({ on, afterBytes = 0 }: Fault): string {
  return afterBytes > 0 ? `${on}, midway` : String(on);
}

/** Multipart uploads that are open below a prefix. */
export async function openUploads(client: S3Client, bucket: string, prefix: string): Promise<number> {
  const { Uploads = [] } = await client.send(new ListMultipartUploadsCommand({ Bucket: bucket }));
  return Uploads.filter(({ Key = '' }) => Key.startsWith(prefix)).length;
}

export function removeAll(placed: PlacedFault[]): void {
  for (const one of placed) one.remove();
}

/** Plays trials on several lanes at once; a trial that throws is one that went wrong. */
export async function playAll<T extends Trial, L>(
  trials: T[],
  lanes: L[],
  play: (trial: T, lane: L, outcome: Outcome) => Promise<void>,
): Promise<Outcome[]> {
  // The long ones first, so that no lane is left alone with them.
  const seconds = ({ faults, lasting }: Trial) => Number(faults.at(-1)?.does === 'hang') * 2 + Number(lasting);
  const queue = [...trials].sort((a, b) => seconds(b) - seconds(a));
  const outcomes: Outcome[] = [];
  const run = async (lane: L) => {
    for (let trial = queue.shift(); trial; trial = queue.shift()) {
      const outcome: Outcome = { trial, placed: [], complaints: [], uploadsLeft: 0 };
      await play(trial, lane, outcome).catch((error: Error) => outcome.complaints.push(error.message));
      removeAll(outcome.placed);
      outcomes.push(outcome);
    }
  };
  await Promise.all(lanes.map(run));
  return outcomes;
}
