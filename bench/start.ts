import { execFile } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { type Figure, median } from './figures.ts';
import { startPeer } from './peers.ts';

const STUDY = '../shared/data/send/instem';

/** Starts on an empty and on a used data directory, and the import of a real study. */
export async function startFigures(): Promise<Figure[]> {
  const cold: number[] = [];
  const warm: number[] = [];
  const imports: number[] = [];
  for (let round = 0; round < 3; round++) {
    const dir = await mkdtemp(join(tmpdir(), 'sds-bench-'));
    const env = { SDS_DATA_DIR: dir, SDS_PORT: '0', SDS_LOG_LEVEL: 'warn' };
    const first = await startPeer(['dist/main.js', 'serve'], env);
    await first.stop();
    const second = await startPeer(['dist/main.js', 'serve'], env);
    cold.push(first.startMs);
    warm.push(second.startMs);
    const began = performance.now();
    await promisify(execFile)(process.execPath, ['dist/main.js', 'import', 'send', STUDY], {
      env: { ...process.env, ...env },
    });
    imports.push(performance.now() - began);
    await second.stop();
    await rm(dir, { recursive: true, force: true });
  }
  return [
    { name: 'start on an empty data directory', unit: 's', value: median(cold) / 1_000, target: { atMost: 3 } },
    { name: 'start on a used data directory', unit: 's', value: median(warm) / 1_000, target: { atMost: 1 } },
    { name: 'import of the instem study', unit: 's', value: median(imports) / 1_000, target: { atMost: 5 } },
  ];
}
