import { killFigures } from './faults-kills.ts';
import { s3Figures } from './faults-s3.ts';
import type { Figure } from './figures.ts';

/**
 * Faults on purpose: how many, and how many exports and image files were lost, doubled or wrong by them.
 * @param kills of the service; 0: S3 servers that fail are all.
 */
export async function faultFigures(kills: number): Promise<Figure[]> {
  // The SDK says at every start for which Node.js it will end; that is no figure.
  process.env.AWS_SDK_JS_NODE_VERSION_SUPPORT_WARNING_DISABLED = 'true';
  return [...(kills === 0 ? [] : await killFigures(kills)), ...(await s3Figures())];
}
