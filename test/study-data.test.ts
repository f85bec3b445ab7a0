import { describe, expect, test } from 'vitest';
import { type Json, useService } from './service.ts';

const service = useService();
const { stringify } = JSON;

async function newStudy(name = 'A study of ten or more'): Promise<string> {
  const { body } = await service.call('POST', '/studies', { name });
  return body.studyId;
}

async function create(study: string, collection: string, body: object): Promise<Json> {
  const answer = await service.call('POST', `/studies/${study}/${collection}`, body);
  expect(answer.status, answer.text).toBe(201);
  return answer.body;
}

/** A study with one subject, organ, slide and finding. */
async function smallStudy() {
  const study = await newStudy();
  const subject = await create(study, 'subjects', { name: '1001', attributes: { SEX: 'M' } });
  const organ = await create(study, 'organs', { subjectId: subject.subjectId, name: 'LIVER' });
  const slide = await create(study, 'slides', { fileName: '1001-LIVER.svs', organId: organ.organId });
  const finding = await create(study, 'findings', { organId: organ.organId, slideId: slide.slideId, name: 'Necrosis' });
  return { study, subject, organ, slide, finding };
}

describe('a record', () => {
  test('is created with 201, Location, ETag and all its members', async () => {
    const answer = await service.call('POST', '/studies', {
      name: 'Ninety days, rat',
      siteId: 'B1',
      attributes: { a: 1 },
    });
    expect(answer.status).toBe(201);
    expect(answer.body).toEqual({
      studyId: expect.stringMatching(/^[0-9A-Za-z]{24}$/),
      name: 'Ninety days, rat',
      studyName: 'Ninety days, rat',
      siteId: 'B1',
      attributes: { a: 1 },
      createdDate: expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/),
      updatedDate: answer.body.createdDate,
      version: 1,
    });
    expect(answer.headers.get('location')).toBe(`/api/v1/studies/${answer.body.studyId}`);
    expect(answer.headers.get('etag')).toBe('"1"');
    const read = await service.call('GET', `/studies/${answer.body.studyId}`);
    expect(read.body).toEqual(answer.body);
  });

  test('is read where the Location of its 201 says, whatever its kind', async () => {
    const { study, subject, organ } = await smallStudy();
    const { subjectId } = subject;
    const { organId } = organ;
    const bodies = {
      subjects: { name: '1002' },
      organs: { subjectId, name: 'LUNG' },
      slides: { fileName: '1001-LUNG.svs' },
      findings: { organId, name: 'Fibrosis' },
      scores: { subjectId, name: 'Weight', value: 1.5 },
    };
    for (const [collection, body] of Object.entries(bodies)) {
      const made = await service.call('POST', `/studies/${study}/${collection}?`, body);
      const [, path = ''] = made.headers.get('location')?.split('/api/v1') ?? [];
      expect(path).not.toContain('?');
      expect((await service.call('GET', path)).body, collection).toEqual(made.body);
    }
  });

  test('carries the server-managed keys of its place, whatever the client sends', async () => {
    const { study, subject, organ, slide, finding } = await smallStudy();
    expect(subject.attributes).toEqual({ SEX: 'M', SUBJID: '1001' });
    expect(organ.attributes).toEqual({ SUBJID: '1001', MISPEC: 'LIVER' });
    expect(slide.attributes).toEqual({ 'FILE NAME': '1001-LIVER.svs', SUBJID: '1001', MISPEC: 'LIVER' });
    expect(slide.subjectId).toBe(subject.subjectId);
    expect(finding).toMatchObject({ subjectId: subject.subjectId, attributes: { SUBJID: '1001', MISPEC: 'LIVER' } });
    const attributes = { SUBJID: 'x', MISPEC: 'y', 'FILE NAME': 'z', kept: true };
    const path = `/studies/${study}/subjects/${subject.subjectId}`;
    const renamed = await service.call('PUT', path, { name: '"1002"', attributes });
    expect(renamed.body.attributes).toEqual({ SUBJID: '"1002"', kept: true });
    const later = await service.call('GET', `/studies/${study}/findings/${finding.findingId}`);
    expect(later.body.attributes).toEqual({ SUBJID: '"1002"', MISPEC: 'LIVER' });
  });

  test('can be read, edited and put back as it is', async () => {
    const { study, slide } = await smallStudy();
    const path = `/studies/${study}/slides/${slide.slideId}`;
    const { body } = await service.call('GET', path);
    const put = await service.call('PUT', path, { ...body, attributes: { ...body.attributes, STAIN: 'HE' } });
    expect(put.status, put.text).toBe(200);
    expect(put.body).toMatchObject({ version: 2, attributes: { STAIN: 'HE', 'FILE NAME': '1001-LIVER.svs' } });
    expect(put.headers.get('etag')).toBe('"2"');
  });

  test('loses the attributes that a PUT leaves out', async () => {
    const { study, subject } = await smallStudy();
    const put = await service.call('PUT', `/studies/${study}/subjects/${subject.subjectId}`, { name: '1001' });
    expect(put.body.attributes).toEqual({ SUBJID: '1001' });
  });

  test('keeps text and attribute keys of every kind as they were sent', async () => {
    const study = await newStudy();
    const attributes = JSON.parse(
      '{"__proto__":"p","constructor":1,"é":"é","e\\u0301":"  spaces ","":null}'.replace('"":null', '"n":null'),
    );
    const long = '😀'.repeat(100_000);
    const subject = await create(study, 'subjects', {
      name: ' 1001 ',
      attributes: { ...attributes, ['__proto__x']: long },
    });
    expect(subject.name).toBe(' 1001 ');
    const raw = stringify({ name: 'proto' }).replace('}', ',"attributes":{"__proto__":"p","a":1.5e3}}');
    const answer = await service.call('POST', `/studies/${study}/subjects`, undefined, { raw });
    expect(Object.keys(answer.body.attributes).sort()).toEqual(['SUBJID', '__proto__', 'a']);
    expect(answer.body.attributes.a).toBe(1500);
    expect(
      (await service.call('GET', `/studies/${study}/subjects/${subject.subjectId}`)).body.attributes.__proto__x,
    ).toBe(long);
  });
});

describe('a request that is malformed', () => {
  test('answers 400 with all its faults at once', async () => {
    const study = await newStudy();
    const answer = await service.call('POST', `/studies/${study}/findings`, {
      organId: 'short',
      slideId: 5,
      attribtues: {},
      attributes: { nested: {}, list: [] },
    });
    expect(answer.status).toBe(400);
    expect(answer.headers.get('content-type')).toMatch(/^application\/problem\+json/);
    expect(answer.body).toMatchObject({
      type: '/errors/bad-request',
      status: 400,
      instance: `/api/v1/studies/${study}/findings`,
    });
    expect(answer.body.errors.map((fault: Json) => fault.pointer).sort()).toEqual(
      ['/attributes/list', '/attributes/nested', '/attribtues', '/name', '/organId', '/slideId'].sort(),
    );
  });

  test.each([
    ['/studies?pageSize=101', 'pageSize'],
    ['/studies?pageSize=0', 'pageSize'],
    ['/studies?pageNumber=0', 'pageNumber'],
    ['/studies?pageNumber=x', 'pageNumber'],
    ['/studies?sort=name', 'sort'],
    ['/studies?sortDirection=asc', 'sortDirection'],
    ['/studies?nonsense=1', 'nonsense'],
    ['/studies?pageSize=5&pageSize=6', 'pageSize'],
    ['/studies?cursor=abc', 'cursor'],
    ['/studies/short', 'studyId'],
  ])('answers 400 that names the parameter: %s', async (path, parameter) => {
    const answer = await service.call('GET', path);
    expect(answer.status).toBe(400);
    expect(answer.body.errors).toMatchObject([{ parameter }]);
  });

  test('answers 400 for what no store can hold', async () => {
    const bodies = [
      '{"name":"nul \\u0000 in a name"}',
      '{"name":"lone \\ud800 surrogate"}',
      '{"name":"a study of ten","attributes":{"k\\u0000":1}}',
    ];
    for (const raw of bodies) {
      const answer = await service.call('POST', '/studies', undefined, { raw });
      expect(answer.status, raw).toBe(400);
      expect(answer.body.errors[0].pointer).toMatch(/^\/(name|attributes\/k)/);
    }
  });

  test('answers 400 for invalid JSON, 415 for another type, 413 for too much', async () => {
    expect((await service.call('POST', '/studies', undefined, { raw: '{' })).status).toBe(400);
    const headers = { 'content-type': 'text/plain' };
    expect((await service.call('POST', '/studies', undefined, { raw: '{}', headers })).body.type).toBe(
      '/errors/unsupported-media-type',
    );
    const raw = stringify({ name: 'x'.repeat(9 * 2 ** 20) });
    expect((await service.call('POST', '/studies', undefined, { raw })).body).toMatchObject({
      status: 413,
      type: '/errors/payload-too-large',
    });
  });
});

describe('a value that breaks a rule', () => {
  test('answers 422 with a pointer; a name is counted in code points', async () => {
    const short = await service.call('POST', '/studies', { name: 'nine char' });
    expect(short.body).toMatchObject({ status: 422, errors: [{ pointer: '/name' }] });
    const studyName = await service.call('POST', '/studies', { studyName: 'short' });
    expect(studyName.body.errors).toMatchObject([{ pointer: '/studyName', detail: expect.stringContaining('name') }]);
    expect((await service.call('POST', '/studies', { name: '😀'.repeat(255) })).status).toBe(201);
    expect((await service.call('POST', '/studies', { name: '😀'.repeat(256) })).status).toBe(422);
    expect((await service.call('POST', '/studies', { name: '😀'.repeat(9) })).status).toBe(422);
    expect((await service.call('POST', '/studies', {})).body).toMatchObject({
      status: 400,
      errors: [{ pointer: '/name' }],
    });
    const attributes = Object.fromEntries(Array.from({ length: 1_001 }, (_, i) => [`k${i}`, i]));
    expect((await service.call('POST', '/studies', { name: 'a study of ten', attributes })).status).toBe(422);
    expect((await service.call('POST', '/studies', { name: 'a study of ten', attributes: { '': 1 } })).status).toBe(
      422,
    );
  });

  test('comes after a missing study and after a version that does not match', async () => {
    const nowhere = '0'.repeat(24);
    expect((await service.call('POST', `/studies/${nowhere}/subjects`, { name: '' })).status).toBe(404);
    const { study, subject } = await smallStudy();
    const path = `/studies/${study}/subjects/${subject.subjectId}`;
    expect((await service.call('PUT', path, { name: '' }, { headers: { 'if-match': '"7"' } })).status).toBe(412);
    expect((await service.call('PUT', path, { name: '' }, { headers: { 'if-match': '"1"' } })).status).toBe(422);
  });

  test('is told for references to what the study does not have', async () => {
    const { study, subject, organ } = await smallStudy();
    const other = await smallStudy();
    const faults = async (collection: string, body: object) => {
      const answer = await service.call('POST', `/studies/${study}/${collection}`, body);
      return [answer.status, answer.body.errors?.map((fault: Json) => fault.pointer)];
    };
    const { subjectId } = subject;
    expect(await faults('organs', { subjectId: other.subject.subjectId, name: 'X' })).toEqual([422, ['/subjectId']]);
    expect(await faults('findings', { organId: other.organ.organId, slideId: other.slide.slideId, name: 'X' })).toEqual(
      [422, ['/organId', '/slideId']],
    );
    expect(await faults('scores', { subjectId, organId: other.organ.organId, name: 'X', value: 1 })).toEqual([
      422,
      ['/organId'],
    ]);
    expect(await faults('slides', { fileName: 'x', organId: other.organ.organId })).toEqual([422, ['/organId']]);
    const second = await create(study, 'subjects', { name: '1002' });
    expect(await faults('slides', { fileName: 'x', subjectId: second.subjectId, organId: organ.organId })).toEqual([
      422,
      ['/organId'],
    ]);
    const slide = await create(study, 'slides', { fileName: 'y', subjectId: second.subjectId });
    expect(await faults('findings', { organId: organ.organId, slideId: slide.slideId, name: 'X' })).toEqual([
      422,
      ['/slideId'],
    ]);
  });

  test('is told for members that are fixed after creation, not for repeating them', async () => {
    const { study, subject, organ, slide } = await smallStudy();
    const second = await create(study, 'subjects', { name: '1002' });
    const path = `/studies/${study}/organs/${organ.organId}`;
    expect((await service.call('PUT', path, { name: 'LIVER', subjectId: second.subjectId })).body.errors).toMatchObject(
      [{ pointer: '/subjectId' }],
    );
    expect((await service.call('PUT', path, { name: 'KIDNEY', subjectId: subject.subjectId })).status).toBe(200);
    expect((await service.call('PUT', path, { name: 'LUNG' })).status).toBe(200);
    const slidePath = `/studies/${study}/slides/${slide.slideId}`;
    expect((await service.call('PUT', slidePath, { fileName: 'other.svs' })).body.errors).toMatchObject([
      { pointer: '/fileName' },
    ]);
    const moved = await service.call('PUT', slidePath, { subjectId: second.subjectId });
    expect(moved.body, 'a slide with findings').toMatchObject({ status: 422, errors: [{ pointer: '/subjectId' }] });
  });
});

describe('names', () => {
  test('of subjects are unique in the study, of organs in the subject, of files in the study: 409', async () => {
    const { study, subject } = await smallStudy();
    expect((await service.call('POST', `/studies/${study}/subjects`, { name: '1001' })).body.type).toBe(
      '/errors/conflict',
    );
    const { subjectId } = subject;
    expect((await service.call('POST', `/studies/${study}/organs`, { subjectId, name: 'LIVER' })).status).toBe(409);
    expect((await service.call('POST', `/studies/${study}/slides`, { fileName: '1001-LIVER.svs' })).status).toBe(409);
    const second = await create(study, 'subjects', { name: '1002' });
    await create(study, 'organs', { subjectId: second.subjectId, name: 'LIVER' });
    const renamed = await service.call('PUT', `/studies/${study}/subjects/${second.subjectId}`, { name: '1001' });
    expect(renamed.status).toBe(409);
    const long = '語'.repeat(1_024);
    await create(study, 'slides', { fileName: long });
    expect((await service.call('POST', `/studies/${study}/slides`, { fileName: long })).status).toBe(409);
  });

  test('of a study are one value under two names', async () => {
    const created = (await service.call('POST', '/studies', { studyName: 'The first name' })).body;
    expect(created.name).toBe('The first name');
    const path = `/studies/${created.studyId}`;
    expect((await service.call('PUT', path, { ...created, name: 'The second name' })).body.studyName).toBe(
      'The second name',
    );
    expect((await service.call('PUT', path, { name: 'The second name', studyName: 'The third name' })).body.name).toBe(
      'The third name',
    );
    expect((await service.call('PUT', path, { name: 'The fourth name', studyName: 'The fifth name' })).status).toBe(
      422,
    );
    expect(
      (await service.call('POST', '/studies', { name: 'The fourth name', studyName: 'The fifth name' })).status,
    ).toBe(422);
  });

  test('taken by two clients at once are given to one', async () => {
    const study = await newStudy();
    const answers = await Promise.all(
      Array.from({ length: 20 }, () => service.call('POST', `/studies/${study}/subjects`, { name: 'the one' })),
    );
    expect(answers.map(({ status }) => status).sort()).toEqual([201, ...Array(19).fill(409)]);
  });
});

describe('DELETE', () => {
  test('is refused while records hang on the one', async () => {
    const { study, subject, organ, finding, slide } = await smallStudy();
    const refused = await service.call('DELETE', `/studies/${study}/subjects/${subject.subjectId}`);
    expect(refused.body).toMatchObject({ status: 422, type: '/errors/validation-failed' });
    expect(refused.body).not.toHaveProperty('errors');
    expect((await service.call('DELETE', `/studies/${study}/organs/${organ.organId}`)).status).toBe(422);
    expect((await service.call('DELETE', `/studies/${study}/findings/${finding.findingId}`)).status).toBe(204);
    const score = await create(study, 'scores', {
      subjectId: subject.subjectId,
      organId: organ.organId,
      name: 'Weight',
      value: 4e13,
      unit: 'g',
    });
    expect(score.value).toBe(4e13);
    expect((await service.call('DELETE', `/studies/${study}/organs/${organ.organId}`)).status).toBe(422);
    expect((await service.call('DELETE', `/studies/${study}/scores/${score.scoreId}`)).status).toBe(204);
    expect((await service.call('DELETE', `/studies/${study}/organs/${organ.organId}`)).status).toBe(204);
    expect((await service.call('DELETE', `/studies/${study}/subjects/${subject.subjectId}`)).status).toBe(204);
    const kept = await service.call('GET', `/studies/${study}/slides/${slide.slideId}`);
    expect(kept.body).toMatchObject({ subjectId: null, organId: null, attributes: { 'FILE NAME': '1001-LIVER.svs' } });
    expect((await service.call('GET', `/studies/${study}/subjects/${subject.subjectId}`)).status).toBe(404);
  });

  test('of a slide empties the slideId of its findings', async () => {
    const { study, slide, finding } = await smallStudy();
    expect((await service.call('DELETE', `/studies/${study}/slides/${slide.slideId}`)).status).toBe(204);
    expect((await service.call('GET', `/studies/${study}/findings/${finding.findingId}`)).body.slideId).toBeNull();
  });

  test('of a study answers 404 for it and everything below at once', async () => {
    const { study, subject } = await smallStudy();
    expect(
      (await service.call('DELETE', `/studies/${study}`, undefined, { headers: { 'if-match': '"9"' } })).status,
    ).toBe(412);
    expect((await service.call('DELETE', `/studies/${study}`)).status).toBe(204);
    for (const path of ['', '/subjects', `/subjects/${subject.subjectId}`, '/findings', '/codes', '/exports']) {
      expect((await service.call('GET', `/studies/${study}${path}`)).status, path).toBe(404);
    }
    expect((await service.call('POST', `/studies/${study}/subjects`, { name: 'x' })).status).toBe(404);
    expect((await service.call('DELETE', `/studies/${study}`)).status).toBe(404);
  });
});

describe('the codes object', () => {
  test('is created once, replaced by PUT and never deleted', async () => {
    const study = await newStudy();
    const path = `/studies/${study}/codes`;
    const codeLists = { MISEV: [{ code: 'MILD', label: 'Mild', attributes: { rank: 2 } }] };
    expect((await service.call('GET', path)).status).toBe(404);
    expect((await service.call('PUT', path, { codeLists })).status).toBe(404);
    const created = await service.call('POST', path, { codeLists });
    expect(created.body).toMatchObject({ codesId: expect.stringMatching(/^\w{24}$/), codeLists, version: 1 });
    expect((await service.call('POST', path, { codeLists })).status).toBe(409);
    const put = await service.call('PUT', path, { codeLists: {} }, { headers: { 'if-match': '"1"' } });
    expect(put.body).toMatchObject({ codeLists: {}, version: 2 });
    const refused = await service.call('DELETE', path);
    expect(refused.status).toBe(405);
    expect(refused.headers.get('allow')).toBe('GET, HEAD, POST, PUT');
  });
});
