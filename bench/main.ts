import { mkdir, writeFile } from 'node:fs/promises';
import { exportFigures } from './exports.ts';
import { faultFigures } from './faults.ts';
import { type Figure, lineOf, ratioOf } from './figures.ts';
import { imageFigures } from './images.ts';
import { requestFigures } from './requests.ts';
import { startFigures } from './start.ts';
import { xlsxFigures } from './xlsx.ts';

const { SDS_BENCH_KILLS: kills = '50' } = process.env;
// The service would refuse it, as it refuses every variable that it does not know.
delete process.env.SDS_BENCH_KILLS;

/** Groups of figures; `npm run bench -- requests` runs one of them. */
const groups: Record<string, () => Promise<Figure[]>> = {
  requests: requestFigures,
  exports: exportFigures,
  xlsx: xlsxFigures,
  images: imageFigures,
  start: startFigures,
  faults: () => faultFigures(Number(kills)),
};
/** Run where none is named: all that measure. */
const usual = Object.keys(groups).filter((name) => name !== 'faults');

const asked = process.argv.slice(2);
const unknown = asked.filter((name) => !Object.hasOwn(groups, name));
const wrong = [
  ...(unknown.length > 0
    ? [`There is no group ${unknown.join(', ')}; there are: ${Object.keys(groups).join(', ')}.`]
    : []),
  ...(/^\d+$/.test(kills) ? [] : [`SDS_BENCH_KILLS is a number from 0, not ${JSON.stringify(kills)}.`]),
];
if (wrong.length > 0) {
  process.stderr.write(`${wrong.join('\n')}\n`);
  process.exit(2);
}
const figures: Figure[] = [];
for (const [name, measure] of Object.entries(groups)) {
  if (!(asked.length > 0 ? asked : usual).includes(name)) continue;
  process.stdout.write(`${name}\n`);
  for (const figure of await measure()) {
    figures.push(figure);
    process.stdout.write(`${lineOf(figure)}\n`);
  }
}
await mkdir('bench/results', { recursive: true });
const results = figures.map((figure) => ({ ...figure, ratio: ratioOf(figure) }));
await writeFile(
  'bench/results/latest.json',
  `${JSON.stringify({ date: new Date().toISOString(), results }, null, 2)}\n`,
);
