import { expect } from 'vitest';
import { eventually, type Json, type TestService } from './service.ts';

/** Attributes that are hard to export: every type, and text that JSON, XML or a spreadsheet could stumble over. */
const ODD_ATTRIBUTES = {
  text: 'Leber, "groß" \\ / <b>&amp;</b> 😀',
  'lines\nand\ttabs': 'one\ntwo\r\nthree\t\u0001\u001f\u2028',
  number: 0.1,
  large: 123456789012345680000,
  small: -1.5e-7,
  yes: true,
  no: false,
  nothing: null,
  empty: '',
  formula: '=SUM(A1:A2)',
  spaces: '  both ends  ',
  escape: '_x0041_',
  name: 'the name of a column',
  'attributes.name': 'the heading of another',
  subjectName: 'a column of some sheets',
  organName: 'a column of some sheets',
  __proto__: 'a key like any other',
  long: `${'x'.repeat(32_763)}😀😀 and more`,
};

/** A study with records of every kind in every place, made by way of the API. */
export async function makeStudy(service: TestService): Promise<{ studyId: string; subjectIds: string[] }> {
  const post = async (path: string, body: unknown): Promise<Json> => {
    const answer = await service.call('POST', path, body);
    expect(answer.status, answer.text).toBe(201);
    return answer.body;
  };
  // JSON.parse, as a literal would set the prototype.
  const attributes = JSON.parse(JSON.stringify(ODD_ATTRIBUTES).replace('{', '{"__proto__":"a key like any other",'));
  const { studyId } = await post('/studies', { name: 'A study to be exported', siteId: 'BASEL-01', attributes });
  const at = `/studies/${studyId}`;
  const subjects = (
    await post(`${at}/subjects:bulkCreate`, {
      items: Array.from({ length: 130 }, (_, i) => ({
        name: `10${i} "ä"`,
        attributes: i === 0 ? attributes : { SEX: 'M' },
      })),
    })
  ).items as Json[];
  const [first, second] = subjects;
  const organs = (
    await post(`${at}/organs:bulkCreate`, {
      items: [
        { subjectId: first.subjectId, name: 'LIVER', attributes },
        { subjectId: first.subjectId, name: 'KIDNEY' },
        { subjectId: second.subjectId, name: 'LIVER' },
      ],
    })
  ).items as Json[];
  const [liver, , otherLiver] = organs;
  const { items: slides } = await post(`${at}/slides:bulkCreate`, {
    items: [
      { fileName: 'unlinked.svs', attributes },
      { fileName: 'subject.svs', subjectId: first.subjectId },
      { fileName: 'organ.svs', subjectId: first.subjectId, organId: liver.organId },
    ],
  });
  await post(`${at}/findings:bulkCreate`, {
    items: [
      { organId: liver.organId, name: 'Vacuolation', severity: 'MILD', attributes },
      {
        organId: liver.organId,
        name: 'Necrosis',
        slideId: slides[2].slideId,
        attributes: { zero: 0, '😀': 1, '\ue000': 2 },
      },
      { organId: otherLiver.organId, name: 'Necrosis' },
    ],
  });
  await post(`${at}/scores:bulkCreate`, {
    items: [
      { subjectId: first.subjectId, name: 'Body weight', value: 251.5, unit: 'g', attributes },
      { subjectId: first.subjectId, name: 'Body weight', value: 'NOT DONE' },
      { subjectId: first.subjectId, organId: liver.organId, name: 'Organ weight', value: 12, unit: 'g' },
      { subjectId: second.subjectId, organId: otherLiver.organId, name: 'Organ weight', value: 1e-9 },
    ],
  });
  await post(`${at}/codes`, {
    codeLists: {
      MISEV: [
        { code: 'MILD', label: 'Mild', attributes: { rank: 2, code: 'C-1' } },
        { code: 'SEVERE', label: 'Severe' },
      ],
      EMPTY: [],
    },
    attributes: { version: '2026-03', draft: true },
  });
  return { studyId, subjectIds: subjects.map(({ subjectId }) => subjectId) };
}

/** All records of a list, page by page. */
export async function listAll(service: TestService, path: string): Promise<Json[]> {
  const items: Json[] = [];
  for (let page = 1; ; page++) {
    const { body } = await service.call('GET', `${path}?pageSize=100&pageNumber=${page}`);
    items.push(...body.items);
    if (!body.paging.links.next) return items;
  }
}

/** Starts an export and waits for its end. */
export async function exportStudy(service: TestService, studyId: string, format: 'JSON' | 'XLSX'): Promise<Json> {
  const started = await service.call('POST', `/studies/${studyId}/exports`, { format });
  expect(started.status, started.text).toBe(202);
  return finished(service, studyId, started.body.exportId);
}

/** The job once it is COMPLETED or FAILED. */
export function finished(service: TestService, studyId: string, exportId: string, seconds = 20): Promise<Json> {
  return eventually(async () => {
    const { body } = await service.call('GET', `/studies/${studyId}/exports/${exportId}`);
    return ['COMPLETED', 'FAILED'].includes(body.exportStatus?.status) && body;
  }, seconds);
}

/** The bytes behind a path of the API, with a token. */
export async function fetchFile(
  service: TestService,
  path: string,
  options: { method?: string; headers?: Record<string, string>; token?: string; signal?: AbortSignal } = {},
): Promise<Response> {
  const token = options.token ?? (await service.client()).token;
  return fetch(`${service.url}${path}`, {
    method: options.method ?? 'GET',
    redirect: 'manual',
    headers: { authorization: `Bearer ${token}`, ...options.headers },
    ...(options.signal ? { signal: options.signal } : {}),
  });
}
