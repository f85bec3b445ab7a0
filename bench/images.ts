import { execFile, spawn } from 'node:child_process';
import { randomFillSync } from 'node:crypto';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import sharp from 'sharp';
import { type Figure, median } from './figures.ts';
import { memoryGrowth, residentMb, startPeer } from './peers.ts';
import { type Subject, startSubject } from './service.ts';

const run = promisify(execFile);
const KEYS = { accessKeyId: 'test-key-id', secretAccessKey: 'test-secret-access-key' };
const BUCKET = 'bench';
const ROUNDS = 3;
const WATCHERS = 2_000;

interface Job {
  jobId: string;
  status: string;
  errorMessage: string | null;
  files: { failed: number };
}

/** rclone on the bench's S3 server, as somebody without this service would use it. */
async function rclone(endpoint: string, args: string[]): Promise<void> {
  const { AWS_CA_BUNDLE: _, ...env } = process.env;
  await run('rclone', args, {
    env: {
      ...env,
      RCLONE_CONFIG: '/dev/null',
      RCLONE_CONFIG_PEER_TYPE: 's3',
      RCLONE_CONFIG_PEER_PROVIDER: 'Other',
      RCLONE_CONFIG_PEER_ENDPOINT: endpoint,
      RCLONE_CONFIG_PEER_ACCESS_KEY_ID: KEYS.accessKeyId,
      RCLONE_CONFIG_PEER_SECRET_ACCESS_KEY: KEYS.secretAccessKey,
    },
  });
}

/** Images of one size: a real TIFF, and bytes after it that make every file another. */
async function makeFiles(dir: string, count: number, bytes: number): Promise<void> {
  const head = await sharp({ create: { width: 64, height: 64, channels: 3, background: '#a6c' } })
    .tiff()
    .toBuffer();
  await mkdir(dir, { recursive: true });
  for (let file = 0; file < count; file++) {
    const body = Buffer.allocUnsafe(bytes);
    randomFillSync(body);
    head.copy(body);
    await writeFile(join(dir, `slide-${String(file).padStart(5, '0')}.tif`), body);
  }
}

/** Waits for a job's end. */
async function finished(subject: Subject, { jobId }: Job): Promise<Job> {
  for (;;) {
    const job = await subject.call<Job>('GET', `/image/jobs/${jobId}`);
    if (['COMPLETED', 'FAILED', 'PARTIAL'].includes(job.status)) return job;
    await sleep(50);
  }
}

/** Seconds of `work`, which does not wait for what others have left to be written to the disk. */
async function timed(work: () => Promise<unknown>): Promise<number> {
  await run('sync');
  const began = performance.now();
  await work();
  return (performance.now() - began) / 1_000;
}

/** Images in and out of an S3 server on this machine, against rclone and sha256sum, and watchers of a job. */
export async function imageFigures(): Promise<Figure[]> {
  if (!(await run('rclone', ['version']).catch(() => null))) {
    process.stdout.write('  images: skipped, as there is no rclone here (Debian: rclone)\n');
    return [];
  }
  const dir = await mkdtemp(join(tmpdir(), 'sds-bench-images-'));
  const peer = await startPeer(
    ['--import', 'tsx', 'test/peers/s3-server.ts', '--port', '0', '--dir', join(dir, 'peer'), '--bucket', BUCKET],
    {},
  );
  const subject = await startSubject({ SDS_CLOUD_ENDPOINTS: peer.url });
  try {
    const { credentialId } = await subject.call('POST', '/cloud/credentials', {
      name: 'bench',
      provider: 'S3',
      settings: {
        region: 'us-east-1',
        bucket: BUCKET,
        endpoint: peer.url,
        forcePathStyle: true,
        accessKeyId: KEYS.accessKeyId,
      },
      secret: { secretAccessKey: KEYS.secretAccessKey },
    });
    const pid = subject.peer.process.pid as number;
    const figures: Figure[] = [];
    const sets = [
      { name: '20 files of 100 MB', prefix: 'large/', count: 20, bytes: 100e6, atLeast: 0.9 },
      { name: '5,000 files of 20 kB', prefix: 'small/', count: 5_000, bytes: 20e3, atLeast: 0.7 },
    ];
    for (const { name, prefix, count, bytes, atLeast } of sets) {
      const source = join(dir, prefix);
      await makeFiles(source, count, bytes);
      await rclone(peer.url, ['copy', source, `peer:${BUCKET}/${prefix}`]);
      const megabytes = (count * bytes) / 1e6;
      const times = { ours: [] as number[], rclone: [] as number[], out: [] as number[], rcloneOut: [] as number[] };
      const growth: number[] = [];
      for (let round = 0; round < ROUNDS; round++) {
        const { studyId } = await subject.call('POST', '/studies', { name: `Bench of images, round ${round}` });
        const ingest = { studyId, credentialId, prefix };
        const job = (path: string, body: object) =>
          timed(async () => {
            const ended = await finished(subject, await subject.call<Job>('POST', path, body));
            if (ended.status !== 'COMPLETED') throw new Error(`${ended.status}: ${ended.errorMessage}`);
          });
        const measured = await memoryGrowth(pid, () => job('/image/jobs:ingest', ingest));
        times.ours.push(measured.result);
        growth.push(measured.growthMb);
        const target = join(dir, 'copied', prefix, String(round));
        await mkdir(target, { recursive: true });
        times.rclone.push(
          await timed(async () => {
            await rclone(peer.url, ['copy', `peer:${BUCKET}/${prefix}`, target]);
            await run('sh', ['-c', 'sha256sum "$1"/* > "$1.sums"', 'sh', target]);
          }),
        );
        // Thousands of small files stay until the end: a file system is slow for minutes where many have gone.
        if (count > 100) continue;
        await rm(target, { recursive: true });
        const transfer = { studyId, credentialId, prefix: `out-${round}/` };
        const out = await memoryGrowth(pid, () => job('/image/jobs:transfer', transfer));
        times.out.push(out.result);
        growth.push(out.growthMb);
        times.rcloneOut.push(await timed(() => rclone(peer.url, ['copy', source, `peer:${BUCKET}/rclone-${round}/`])));
        await rclone(peer.url, ['purge', `peer:${BUCKET}/out-${round}`]);
        await rclone(peer.url, ['purge', `peer:${BUCKET}/rclone-${round}`]);
      }
      const throughput = (seconds: number[]) => megabytes / median(seconds);
      figures.push({
        name: `ingest of ${name}`,
        unit: 'MB/s',
        value: throughput(times.ours),
        yardstick: { name: 'rclone copy and sha256sum', value: throughput(times.rclone) },
        target: { atLeast },
      });
      if (times.out.length > 0) {
        figures.push({
          name: `transfer out of ${name}`,
          unit: 'MB/s',
          value: throughput(times.out),
          yardstick: { name: 'rclone copy', value: throughput(times.rcloneOut) },
          target: { atLeast: 0.9 },
        });
      }
      figures.push({ name: `memory for ${name}`, unit: 'MB', value: Math.max(...growth), target: { atMost: 150 } });
    }
    figures.push(...(await watcherFigures(subject)));
    return figures;
  } finally {
    await subject.stop();
    await peer.stop();
    await rm(dir, { recursive: true, force: true });
  }
}

/** From the commit of a change to the last of 2,000 watchers, and the memory that a watcher takes. */
async function watcherFigures(subject: Subject): Promise<Figure[]> {
  // A job that nobody works on, and that is not at its end: what changes it is this bench alone.
  const { rows } = await subject.db.query(
    `insert into image_jobs (job_id, type, status, study_id, credential_id, client_id, request_id, worker_id, lease_until)
      values ('0BenchOfWatchersOfOneJob', 'INGEST', 'RUNNING', repeat('0', 24), repeat('0', 24), 'bench', 'bench', 'bench',
        now() + interval '1 hour') returning job_id`,
  );
  const url = `${subject.url}/image/jobs/${rows[0].job_id}:streamProgress`;
  const pid = subject.peer.process.pid as number;
  const before = await residentMb(pid);
  const watchers = spawn(
    process.execPath,
    ['--import', 'tsx', 'bench/watchers.ts', url, subject.token, String(WATCHERS)],
    { stdio: ['ignore', 'pipe', 'inherit'] },
  );
  const arrived = new Map<string, number>();
  let open = false;
  createInterface({ input: watchers.stdout }).on('line', (line) => {
    const { id, lastMs } = JSON.parse(line);
    if (id) arrived.set(id, lastMs);
    else open = true;
  });
  const until = async (what: () => boolean) => {
    for (let waited = 0; !what(); waited += 10) {
      if (waited > 60_000) throw new Error('the watchers were not served');
      await sleep(10);
    }
  };
  try {
    await until(() => open);
    await sleep(1_000);
    const memoryMb = (await residentMb(pid)) - before;
    const delays: number[] = [];
    for (let event = 0; event < 40; event++) {
      const changed = await subject.db.query(
        `update image_jobs set event_no = event_no + 1 where job_id = $1 returning event_no`,
        [rows[0].job_id],
      );
      const committedMs = Date.now();
      const id = String(changed.rows[0].event_no);
      await until(() => arrived.has(id));
      delays.push((arrived.get(id) as number) - committedMs);
      await sleep(400);
    }
    delays.sort((a, b) => a - b);
    const p99 = delays[Math.ceil(0.99 * delays.length) - 1] as number;
    return [
      { name: `commit to the last of ${WATCHERS} watchers, p99`, unit: 'ms', value: p99, target: { atMost: 250 } },
      { name: 'memory a watcher', unit: 'kB', value: (memoryMb * 1024) / WATCHERS },
    ];
  } finally {
    watchers.kill();
  }
}
