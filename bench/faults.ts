import { killFigures } from './faults-kills.ts';
import { s3Figures } from './faults-s3.ts';
import type { Figure } from './figures.ts';

/** Faults on purpose: how many, and how many exports and image files were lost, doubled or wrong by them. */
export async function faultFigures(): Promise<Figure[]> {
  const { SDS_BENCH_KILLS: kills = '50' } = process.env;
  // The service would refuse it, as it refuses every variable that it does not know.
  delete process.env.SDS_BENCH_KILLS;
  // The SDK says at every start for which Node.js it will end; that is no figure.
  process.env.AWS_SDK_JS_NODE_VERSION_SUPPORT_WARNING_DISABLED = 'true';
  return [...(kills === '0' ? [] : await killFigures(Number(kills))), ...(await s3Figures())];
}
