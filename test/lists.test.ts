import { beforeAll, describe, expect, test } from 'vitest';
import { type Json, useService } from './service.ts';

const service = useService();
let study: string;
let subjects: Json[];

const get = (path: string) => service.call('GET', path);

/** Follows links.next from the first page to the last. */
async function walk(path: string): Promise<Json[][]> {
  const pages: Json[][] = [];
  for (let url: string | null = path; url; ) {
    const answer: Json = await get(url);
    expect(answer.status, answer.text).toBe(200);
    pages.push(answer.body.items);
    const { next } = answer.body.paging.links;
    url = next === null ? null : next.slice(next.indexOf('/api/v1') + '/api/v1'.length);
  }
  return pages;
}

beforeAll(async () => {
  study = (await service.call('POST', '/studies', { name: 'A study with lists' })).body.studyId;
  // Names in an order that is neither that of creation nor its reverse.
  const items = Array.from({ length: 57 }, (_, i) => ({ name: `S${(i * 23) % 57}`.padEnd(4, '_') }));
  const answer = await service.call('POST', `/studies/${study}/subjects:bulkCreate`, { items });
  expect(answer.status, answer.text).toBe(201);
  subjects = answer.body.items;
});

describe('a list', () => {
  test('comes in the paging envelope, 25 items a page, with the exact total', async () => {
    const { body } = await get(`/studies/${study}/subjects`);
    expect(body.paging).toEqual({
      pageNumber: 1,
      pageSize: 25,
      totalItems: 57,
      links: {
        next: expect.stringContaining(`${service.url}/api/v1/studies/${study}/subjects?pageNumber=2`),
        prev: null,
      },
    });
    expect(body.items).toEqual(subjects.slice(0, 25));
  });

  test.each([
    ['', (a: Json, b: Json) => subjects.indexOf(a) - subjects.indexOf(b)],
    ['sortDirection=DESC', (a: Json, b: Json) => subjects.indexOf(b) - subjects.indexOf(a)],
    ['sort=name', (a: Json, b: Json) => (a.name < b.name ? -1 : 1)],
    ['sort=name&sortDirection=DESC', (a: Json, b: Json) => (a.name > b.name ? -1 : 1)],
    ['sort=updatedDate', (a: Json, b: Json) => subjects.indexOf(a) - subjects.indexOf(b)],
  ])('can be walked by its links in every order: %s', async (parameters, order) => {
    const pages = await walk(`/studies/${study}/subjects?pageSize=10&${parameters}`);
    expect(pages.map((page) => page.length)).toEqual([10, 10, 10, 10, 10, 7]);
    expect(pages.flat()).toEqual(
      [...subjects].sort((a, b) =>
        order(
          subjects.find((s) => s.name === a.name),
          subjects.find((s) => s.name === b.name),
        ),
      ),
    );
  });

  test('can be walked back by links.prev', async () => {
    const path = `/studies/${study}/subjects?pageSize=20&sort=name`;
    const pages = await walk(path);
    let { body } = await get(`${path}&pageNumber=3`);
    for (const expected of [pages[1], pages[0]]) {
      const { prev } = body.paging.links;
      body = (await get(prev.slice(prev.indexOf('/studies')))).body;
      expect(body.items).toEqual(expected);
      expect(body.paging.links.next).not.toBeNull();
    }
    expect(body.paging.links.prev).toBeNull();
  });

  test('gives the page of a link whose parameters were edited', async () => {
    const { body } = await get(`/studies/${study}/subjects?pageSize=10`);
    const next = new URL(body.paging.links.next);
    next.searchParams.set('pageNumber', '4');
    const answer = await get(`/studies/${study}/subjects?${next.searchParams}`);
    expect(answer.body.items).toEqual(subjects.slice(30, 40));
  });

  test('is empty past its end', async () => {
    const { status, body } = await get(`/studies/${study}/subjects?pageNumber=99`);
    expect(status).toBe(200);
    expect(body.items).toEqual([]);
    expect(body.paging).toMatchObject({ pageNumber: 99, totalItems: 57, links: { next: null } });
  });

  test('keeps the client’s own parameters in its links', async () => {
    const { body } = await get('/studies?name=with%20LISTS&pageSize=1&sortDirection=DESC');
    expect(body.items).toMatchObject([{ studyId: study, name: 'A study with lists' }]);
    await service.call('POST', '/studies', { name: 'Another study with lists' });
    const { links } = (await get('/studies?name=with%20LISTS&pageSize=1&sortDirection=DESC')).body.paging;
    const parameters = new URL(links.next).searchParams;
    expect(Object.fromEntries(parameters)).toMatchObject({
      name: 'with LISTS',
      pageSize: '1',
      sortDirection: 'DESC',
      pageNumber: '2',
    });
  });

  test('filters exactly, and by ids that exist or do not', async () => {
    const [first] = subjects;
    expect((await get(`/studies/${study}/subjects?name=${first.name}`)).body.items).toEqual([first]);
    expect((await get(`/studies/${study}/subjects?name=${first.name.toLowerCase()}`)).body.paging.totalItems).toBe(0);
    expect((await get(`/studies/${study}/organs?subjectId=${'0'.repeat(24)}`)).body.items).toEqual([]);
    expect((await get(`/studies/${study}/organs?subjectId=malformed`)).status).toBe(400);
    expect((await get(`/studies/${'0'.repeat(24)}/organs`)).status).toBe(404);
  });

  test('counts what was created and deleted, by many at once', async () => {
    const { body } = await service.call('POST', '/studies', { name: 'A study that is counted' });
    const path = `/studies/${body.studyId}/subjects`;
    const created = await Promise.all(
      Array.from({ length: 40 }, (_, i) => service.call('POST', path, { name: `n${i}` })),
    );
    await Promise.all(created.slice(0, 15).map((one) => service.call('DELETE', `${path}/${one.body.subjectId}`)));
    expect((await get(path)).body.paging.totalItems).toBe(25);
  });
});

describe('the filters of findings, slides and scores', () => {
  test('find what hangs on a subject, organ or slide', async () => {
    const { body: created } = await service.call('POST', '/studies', { name: 'A study with filters' });
    const base = `/studies/${created.studyId}`;
    const add = async (collection: string, item: object) =>
      (await service.call('POST', `${base}/${collection}`, item)).body;
    const a = await add('subjects', { name: 'a' });
    const b = await add('subjects', { name: 'b' });
    const liver = await add('organs', { subjectId: a.subjectId, name: 'LIVER' });
    const lung = await add('organs', { subjectId: b.subjectId, name: 'LUNG' });
    const slide = await add('slides', { fileName: 'one.svs', organId: liver.organId });
    const mild = await add('findings', { organId: liver.organId, slideId: slide.slideId, name: 'N', severity: 'MILD' });
    const other = await add('findings', { organId: lung.organId, name: 'N' });
    const score = await add('scores', { subjectId: a.subjectId, name: 'Weight', value: '12', unit: 'g' });
    const found = async (path: string) => (await get(`${base}/${path}`)).body.items;
    expect(await found(`findings?subjectId=${a.subjectId}`)).toEqual([mild]);
    expect(await found(`findings?organId=${lung.organId}`)).toEqual([other]);
    expect(await found(`findings?slideId=${slide.slideId}`)).toEqual([mild]);
    expect(await found('findings?name=N&severity=MILD')).toEqual([mild]);
    expect(await found('findings?name=N&sort=name&sortDirection=DESC')).toEqual([other, mild]);
    expect(await found(`slides?organId=${liver.organId}`)).toEqual([slide]);
    expect(await found('slides?fileName=one.svs&sort=fileName')).toEqual([slide]);
    expect(await found(`scores?subjectId=${a.subjectId}`)).toEqual([score]);
    expect(score.value).toBe('12');
  });
});

describe('bulk actions', () => {
  test(':bulkCreate is all or nothing, and its faults point at the items', async () => {
    const base = `/studies/${study}`;
    const path = `${base}/subjects:bulkCreate`;
    const taken = await service.call('POST', path, {
      items: [{ name: 'new' }, { name: subjects[3].name }, { name: 'new' }],
    });
    expect(taken.status).toBe(409);
    expect(taken.body.errors.map((fault: Json) => fault.pointer)).toEqual(['/items/1/name', '/items/2/name']);
    const long = await service.call('POST', path, { items: [{ name: 'new' }, { name: 'x'.repeat(256) }] });
    expect(long.body).toMatchObject({ status: 422, errors: [{ pointer: '/items/1/name' }] });
    const missing = await service.call('POST', path, { items: [{ name: 'new' }, {}] });
    expect(missing.body).toMatchObject({ status: 400, errors: [{ pointer: '/items/1/name' }] });
    expect((await get(`${base}/subjects?name=new`)).body.items).toEqual([]);
    expect((await service.call('POST', path, { items: [] })).status).toBe(400);
    const many = Array.from({ length: 1_001 }, (_, i) => ({ name: `m${i}` }));
    expect((await service.call('POST', path, { items: many })).body.errors).toMatchObject([{ pointer: '/items' }]);
    const organs = await service.call('POST', `${base}/organs:bulkCreate`, {
      items: [
        { subjectId: subjects[0].subjectId, name: 'A' },
        { subjectId: '0'.repeat(24), name: 'A' },
      ],
    });
    expect(organs.body).toMatchObject({ status: 422, errors: [{ pointer: '/items/1/subjectId' }] });
  });

  test('slides:bulkUpdate updates up to 100 slides in full, all or none', async () => {
    const base = `/studies/${study}`;
    const items = Array.from({ length: 101 }, (_, i) => ({ fileName: `bulk-${i}.svs`, attributes: { n: i } }));
    const slides = (await service.call('POST', `${base}/slides:bulkCreate`, { items })).body.items;
    const update = (changes: object[]) => service.call('POST', `${base}/slides:bulkUpdate`, { items: changes });
    const [first, second] = slides;
    const linked = await update([
      { slideId: second.slideId, subjectId: subjects[1].subjectId },
      { slideId: first.slideId, fileName: first.fileName, attributes: { STAIN: 'HE' } },
    ]);
    expect(linked.status, linked.text).toBe(200);
    expect(linked.body.items).toMatchObject([
      {
        slideId: second.slideId,
        subjectId: subjects[1].subjectId,
        version: 2,
        attributes: { SUBJID: subjects[1].name },
      },
      { slideId: first.slideId, version: 2, attributes: { STAIN: 'HE', 'FILE NAME': 'bulk-0.svs' } },
    ]);
    expect((await update(slides.map(({ slideId }: Json) => ({ slideId })))).status).toBe(400);
    const twice = await update([{ slideId: first.slideId }, { slideId: first.slideId }]);
    expect(twice.body).toMatchObject({ status: 400, errors: [{ pointer: '/items/1/slideId' }] });
    const unknown = await update([{ slideId: first.slideId }, { slideId: '0'.repeat(24) }]);
    expect(unknown.status).toBe(404);
    expect(unknown.body.detail).toContain('0'.repeat(24));
    const refused = await update([
      { slideId: first.slideId, attributes: {} },
      { slideId: second.slideId, subjectId: '0'.repeat(24) },
    ]);
    expect(refused.body).toMatchObject({ status: 422, errors: [{ pointer: '/items/1/subjectId' }] });
    expect((await get(`${base}/slides/${first.slideId}`)).body.attributes.STAIN).toBe('HE');
  });
});
