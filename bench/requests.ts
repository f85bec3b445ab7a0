import { execFile } from 'node:child_process';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { alternate, type Figure, median } from './figures.ts';
import { load, startPeer } from './peers.ts';
import { makeStudy, startSubject } from './service.ts';

/** Alternating runs of each pair; 4 s each, as the first second warms the JIT. */
const ROUNDS = 3;
const FLOOR_TOKEN = 'a-fixed-token';

/** Requests a second against the least that Fastify and pg can do. */
export async function requestFigures(): Promise<Figure[]> {
  const subject = await startSubject();
  const floor = await startPeer(['--import', 'tsx', 'bench/floor.ts', subject.databaseUrl, FLOOR_TOKEN]);
  try {
    const { study, subject: subjectId, organ: organId } = await makeStudy(subject, 100_000);
    const perSecond = async (path: string, method: 'GET' | 'POST' = 'GET', body?: unknown) =>
      (await load({ url: `${subject.url}${path}`, token: subject.token, method, body })).perSecond;
    const floorPerSecond = async (path: string, method: 'GET' | 'POST' = 'GET', body?: unknown) =>
      (await load({ url: `${floor.url}${path}`, token: FLOOR_TOKEN, method, body })).perSecond;
    const figures: Figure[] = [];
    const add = (name: string, unit: string, value: number, yardstick: Figure['yardstick'], target: Figure['target']) =>
      figures.push({ name, unit, value, ...(yardstick ? { yardstick } : {}), ...(target ? { target } : {}) });

    const one = `/studies/${study}/subjects/${subjectId}`;
    const [get, getFloor] = await alternate(
      ROUNDS,
      () => perSecond(one),
      () => floorPerSecond(one),
    );
    add('GET one subject', '/s', get, { name: 'floor', value: getFloor }, { atLeast: 0.65 });

    const all = `/studies/${study}/findings`;
    const [list, listFloor] = await alternate(
      ROUNDS,
      () => perSecond(all),
      () => floorPerSecond(all),
    );
    add('GET 25 of 100,000 findings with the total', '/s', list, { name: 'floor', value: listFloor }, { atLeast: 0.5 });
    const large = await makeStudy(subject, 1_000_000);
    const million = `/studies/${large.study}/findings`;
    const [listMillion, listAgain] = await alternate(
      ROUNDS,
      () => perSecond(million),
      () => perSecond(all),
    );
    add(
      'GET 25 of 1,000,000 findings',
      '/s',
      listMillion,
      { name: 'of 100,000', value: listAgain },
      { atLeast: 1 / 1.3 },
    );

    figures.push(await walkFigure(subject, all));

    const finding = {
      organId,
      name: 'Necrosis',
      severity: 'MILD',
      attributes: { MISEQ: 1, MIORRES: 'Necrosis', MIDY: 29 },
    };
    const [post, postFloor] = await alternate(
      ROUNDS,
      () => perSecond(all, 'POST', finding),
      () => floorPerSecond(all, 'POST', { ...finding, subjectId }),
    );
    add('POST one finding', '/s', post, { name: 'floor', value: postFloor }, { atLeast: 0.7 });
    figures.push(await bulkFigure(subject, study, organId));
    return figures;
  } finally {
    await floor.stop();
    await subject.stop();
  }
}

type Subject = Awaited<ReturnType<typeof startSubject>>;

/** The time of page 2,000 as links.next leads to it, against page 1. */
async function walkFigure(subject: Subject, path: string): Promise<Figure> {
  type Page = { paging: { links: { next: string } } };
  const times = { first: [] as number[], deep: [] as number[] };
  const follow = async (link: string) => subject.call<Page>('GET', link.slice(link.indexOf('/studies')));
  let page = await subject.call<Page>('GET', `${path}?pageSize=25`);
  const timed = async (into: number[], link: string) => {
    const began = performance.now();
    const answer = await follow(link);
    into.push(performance.now() - began);
    return answer;
  };
  for (let number = 2; number < 2_000; number++) page = await follow(page.paging.links.next);
  for (let round = 0; round < 200; round++) {
    await timed(times.first, `${path}?pageSize=25`);
    await timed(times.deep, page.paging.links.next);
  }
  return {
    name: 'page 2,000 by links.next',
    unit: 'ms',
    value: median(times.deep),
    yardstick: { name: 'page 1', value: median(times.first) },
    target: { atMost: 1.3 },
  };
}

/** Findings a second by :bulkCreate, against psql's COPY of the same rows into the same table. */
async function bulkFigure(subject: Subject, study: string, organId: string): Promise<Figure> {
  const calls = 10;
  const size = 1_000;
  const items = Array.from({ length: size }, (_, n) => ({
    organId,
    name: `Finding ${n % 50}`,
    severity: n % 5 === 0 ? 'MILD' : null,
    attributes: { MISEQ: n, MIORRES: 'Vacuolation, hepatocellular', MIRESCAT: 'NON-NEOPLASTIC', MIDY: 29 },
  }));
  const bulk = async () => {
    const began = performance.now();
    for (let call = 0; call < calls; call++)
      await subject.call('POST', `/studies/${study}/findings:bulkCreate`, { items });
    return (calls * size * 1_000) / (performance.now() - began);
  };
  const columns = 'study_id, finding_id, subject_id, organ_id, name, severity, attributes';
  const file = join(subject.dir, 'rows.copy');
  const { rows } = await subject.db.query('select subject_id from organs where organ_id = $1', [organId]);
  let run = 0;
  const copy = async () => {
    run += 1;
    const lines = Array.from({ length: calls * size }, (_, n) => {
      const { name, severity, attributes } = items[n % size] as (typeof items)[number];
      const id = `1B${String(run).padStart(4, '0')}${String(n).padStart(18, '0')}`;
      return [study, id, rows[0].subject_id, organId, name, severity ?? '\\N', JSON.stringify(attributes)].join('\t');
    });
    await writeFile(file, `${lines.join('\n')}\n`);
    const began = performance.now();
    await promisify(execFile)('psql', [subject.databaseUrl, '-qc', `\\copy findings (${columns}) from '${file}'`]);
    return (calls * size * 1_000) / (performance.now() - began);
  };
  const [value, yardstick] = await alternate(5, bulk, copy);
  return {
    name: ':bulkCreate of 1,000 findings a call',
    unit: 'findings/s',
    value,
    yardstick: { name: 'psql COPY', value: yardstick },
    target: { atLeast: 0.3 },
  };
}
