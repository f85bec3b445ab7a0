import { mkdir, writeFile } from 'node:fs/promises';
import { exportFigures } from './exports.ts';
import { faultFigures } from './faults.ts';
import { type Figure, lineOf, ratioOf } from './figures.ts';
import { imageFigures } from './images.ts';
import { requestFigures } from './requests.ts';
import { startFigures } from './start.ts';
import { xlsxFigures } from './xlsx.ts';

/** Groups of figures; `npm run bench -- requests` runs one of them. */
const groups: Record<string, () => Promise<Figure[]>> = {
  requests: requestFigures,
  exports: exportFigures,
  xlsx: xlsxFigures,
  images: imageFigures,
  start: startFigures,
  faults: faultFigures,
};

const asked = process.argv.slice(2);
const unknown = asked.filter((name) => !Object.hasOwn(groups, name));
if (unknown.length > 0) {
  process.stderr.write(`There is no group ${unknown.join(', ')}; there are: ${Object.keys(groups).join(', ')}.\n`);
  process.exit(2);
}
const figures: Figure[] = [];
for (const [name, measure] of Object.entries(groups)) {
  if (asked.length > 0 && !asked.includes(name)) continue;
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
