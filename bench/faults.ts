import { killFigures } from './faults-kills.ts';
import type { Figure } from './figures.ts';

/** Faults on purpose: how many, and how many exports and image files were lost, doubled or wrong by them. */
export async function faultFigures(): Promise<Figure[]> {
  const { SDS_BENCH_KILLS: kills = '50' } = process.env;
  // The service would refuse it, as it refuses every variable that it does not know.
  delete process.env.SDS_BENCH_KILLS;
  return await killFigures(Number(kills));
}
