import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import sharp from 'sharp';
import type { Progress } from '../progress.ts';
import type { DemoClient } from './client.ts';

/** Names of the FILE root and of the folder in it, as a scanner would write one a study. */
export const DEMO_ROOT = 'scanner';
const FOLDER = 'run-1/';
/** Slides that get an image: enough for a bar to move, small enough for a laptop. */
const IMAGES = 12;

/** A pyramidal TIFF of some 100 kB, a different one for each number. */
function makeImage(number: number): Promise<Buffer> {
  const width = 1_200;
  const height = 800;
  const pixels = Buffer.alloc(width * height * 3);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      // Rings around a centre that moves: something to see in the thumbnail.
      const ring = Math.round(127 + 127 * Math.sin(Math.hypot(x - 80 * number, y - height / 2) / 18));
      pixels.set([230 - ring / 8, 150 + ring / 3, 190 + ring / 5], (y * width + x) * 3);
    }
  }
  return sharp(pixels, { raw: { width, height, channels: 3 } })
    .tiff({ tile: true, pyramid: true, compression: 'jpeg', quality: 80 })
    .toBuffer();
}

/** What the image part of the demo has come to. */
export interface DemoImages {
  jobId: string;
  status: string;
  files: Record<string, number>;
  downloaded: string;
}

/**
 * Brings images in from a directory as from a scanner's share: one that is there already is SKIPPED, a damaged one FAILS,
 * and comes in by a retry once it has been mended. One is downloaded and compared byte for byte.
 */
export async function ingestImages(
  client: DemoClient,
  studyId: string,
  root: string,
  progress: Progress,
  say: (message: string) => void,
): Promise<DemoImages> {
  const { items: slides } = await client.call('GET', `/studies/${studyId}/slides?pageSize=${IMAGES}&sort=fileName`);
  const names: string[] = slides.map(({ fileName }: { fileName: string }) => fileName);
  const fileOf = (name: string) => join(root, FOLDER, name);
  await mkdir(dirname(fileOf('x')), { recursive: true });
  for (const [number, name] of names.entries()) {
    await writeFile(fileOf(name), await makeImage(number));
    progress.show('making images', number + 1, names.length);
  }
  const [first, damaged] = names as [string, string];
  const whole = await readFile(fileOf(damaged));
  await writeFile(fileOf(damaged), 'the scanner stopped here');

  const { credentialId } = await client.call('POST', '/cloud/credentials', {
    name: 'demo scanner',
    provider: 'FILE',
    settings: { root: DEMO_ROOT },
  });
  const validation = await client.call('POST', `/cloud/credentials/${credentialId}:validate`, { prefix: FOLDER });
  if (!validation.valid) throw new Error(`The directory cannot be used: ${validation.detail}`);

  const one = await client.call('POST', '/image/jobs:ingest', {
    studyId,
    credentialId,
    files: [{ key: FOLDER + first }],
  });
  await watch(client, one.jobId, progress);
  const { jobId } = await client.call('POST', '/image/jobs:ingest', { studyId, credentialId, prefix: FOLDER });
  let job = await watch(client, jobId, progress);
  say(`Ingested ${FOLDER}: ${job.status}, ${describe(job.files)}.`);
  for (const status of ['SKIPPED', 'FAILED']) {
    const { items } = await client.call('GET', `/image/jobs/${jobId}:listFiles?status=${status}`);
    for (const file of items) say(`  ${status}: ${file.name}${file.errorMessage ? `: ${file.errorMessage}` : ''}`);
  }
  await writeFile(fileOf(damaged), whole);
  await client.call('POST', `/image/jobs/${jobId}:retry`);
  job = await watch(client, jobId, progress);
  say(`Mended ${damaged} and retried: ${job.status}, ${describe(job.files)}.`);
  if (job.status !== 'COMPLETED') throw new Error(`The image job ended as ${job.status}: ${job.errorMessage}`);

  const [slide] = slides;
  const response = await client.fetch('GET', `/studies/${studyId}/slides/${slide.slideId}/image`);
  const bytes = Buffer.from(await response.arrayBuffer());
  if (!bytes.equals(await readFile(fileOf(slide.fileName)))) throw new Error('The image came back with other bytes.');
  say(`Downloaded ${slide.fileName} again: ${bytes.length.toLocaleString('en')} bytes, the same as in the directory.`);
  return { jobId, status: job.status, files: job.files, downloaded: slide.slideId };
}

function describe(files: Record<string, number>): string {
  return Object.entries(files)
    .filter(([what, count]) => what !== 'total' && count > 0)
    .map(([what, count]) => `${count} ${what}`)
    .join(', ');
}

/** Follows a job's progress stream (Server-Sent Events) to its end, which is the final job record. */
async function watch(client: DemoClient, jobId: string, progress: Progress) {
  const response = await client.fetch('GET', `/image/jobs/${jobId}:streamProgress`, undefined, {
    accept: 'text/event-stream',
  });
  let buffered = '';
  for await (const chunk of (response.body as ReadableStream<Uint8Array>).pipeThrough(new TextDecoderStream())) {
    buffered += chunk;
    const events = buffered.split('\n\n');
    buffered = events.pop() as string;
    for (const event of events) {
      const [, type] = /^event: (.+)$/m.exec(event) ?? [];
      const [, data] = /^data: (.+)$/m.exec(event) ?? [];
      if (!data || (type !== 'progress' && type !== 'end')) continue;
      const job = JSON.parse(data);
      const { total, completed, skipped, failed } = job.files;
      if (total > 0) progress.show('ingesting images', completed + skipped + failed, total);
      if (type === 'end') return job;
    }
  }
  throw new Error('The progress stream broke off.');
}
