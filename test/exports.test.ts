import { createHash } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { exportStudy, fetchFile, listAll, makeStudy } from './exports-study.ts';
import { type Json, useService } from './service.ts';
import { type ReadCell, readWorkbook, unzip } from './xlsx-reader.ts';

const service = useService();
const COLLECTIONS = ['subjects', 'organs', 'slides', 'findings', 'scores'] as const;
const DATES = ['createdDate', 'updatedDate', 'version'];
const IMAGE = ['imageId', 'sizeBytes', 'sha256', 'format', 'width', 'height', 'ingestedDate'];
const NAMED = ['subjectId', 'subjectName', 'organId', 'organName'];
/** The fixed columns of every sheet: the name of a subject or organ stands right beside its id. */
const FIXED: Record<string, string[]> = {
  study: ['studyId', 'name', 'studyName', 'siteId', ...DATES],
  subjects: ['subjectId', 'name', 'studyId', ...DATES],
  organs: ['organId', 'name', 'studyId', 'subjectId', 'subjectName', ...DATES],
  slides: ['slideId', 'studyId', ...NAMED, 'fileName', ...IMAGE.map((part) => `image.${part}`), ...DATES],
  findings: ['findingId', 'studyId', ...NAMED, 'slideId', 'name', 'severity', ...DATES],
  scores: ['scoreId', 'studyId', ...NAMED, 'name', 'value', 'unit', ...DATES],
};

describe('the file of an export', () => {
  let studyId: string;
  let records: Record<string, Json[]>;
  beforeAll(async () => {
    ({ studyId } = await makeStudy(service));
    // An image as an ingest leaves it.
    const { items } = (await service.call('GET', `/studies/${studyId}/slides`)).body;
    await service.pool.query(
      `insert into images (image_id, study_id, slide_id, object_key, size_bytes, sha256, format, width, height)
       values ('i'||repeat('0', 23), $1, $2, 'images/x', 3000000000, repeat('a', 64), 'SVS', 40000, null)`,
      [studyId, items[2].slideId],
    );
    records = { study: [(await service.call('GET', `/studies/${studyId}`)).body] };
    for (const collection of COLLECTIONS)
      records[collection] = await listAll(service, `/studies/${studyId}/${collection}`);
    records.codes = [(await service.call('GET', `/studies/${studyId}/codes`)).body];
  });

  const download = async (format: 'JSON' | 'XLSX') => {
    const job = await exportStudy(service, studyId, format);
    expect(job).toMatchObject({ exportStatus: { status: 'COMPLETED' }, errorMessage: null });
    const bytes = Buffer.from(await (await fetchFile(service, job.download.downloadUrl)).arrayBuffer());
    return { job, bytes };
  };

  test('is told by its size and SHA-256, and all records are counted', async () => {
    const { job, bytes } = await download('JSON');
    const total = Object.values(records).reduce((sum, list) => sum + list.length, 0);
    expect(job.exportStatus).toEqual({ status: 'COMPLETED', recordsWritten: total, totalRecords: total });
    expect(job.fileSizeBytes).toBe(bytes.length);
    expect(job.sha256).toBe(createHash('sha256').update(bytes).digest('hex'));
    expect(job.startedDate >= job.createdDate && job.completedDate >= job.startedDate).toBe(true);
  });

  test('JSON holds six arrays in order, of records as the API returns them, in creation order', async () => {
    const { bytes } = await download('JSON');
    const document = JSON.parse(bytes.toString());
    expect(Object.keys(document)).toEqual(['study', 'subjects', 'organs', 'slides', 'findings', 'codes']);
    const scoresOf = (subjectId: string, organId: string | null) =>
      records.scores?.filter((score) => score.subjectId === subjectId && score.organId === organId);
    const wanted = {
      study: records.study,
      subjects: records.subjects?.map((one) => ({ ...one, scores: scoresOf(one.subjectId, null) })),
      organs: records.organs?.map((one) => ({ ...one, scores: scoresOf(one.subjectId, one.organId) })),
      slides: records.slides,
      findings: records.findings,
      codes: records.codes,
    };
    expect(document).toEqual(wanted);
    expect(document.subjects[0].scores).toHaveLength(2);
    expect(Object.hasOwn(document.subjects[0].attributes, '__proto__')).toBe(true);
  });

  /** What the workbook must show for a value: text as far as a cell holds it. */
  const shown = (value: Json): ReadCell => {
    if (typeof value !== 'string' || value.length <= 32_767) return value;
    const splits = /[\ud800-\udbff]/.test(value.charAt(32_763));
    return `${value.slice(0, splits ? 32_763 : 32_764)}...`;
  };

  test('XLSX holds one sheet a kind, equal cell by cell to what the API returns', async () => {
    const { job, bytes } = await download('XLSX');
    expect(job.exportStatus.recordsWritten).toBe(job.exportStatus.totalRecords);
    const sheets = await readWorkbook(bytes);
    expect(Object.keys(sheets)).toEqual(['study', 'subjects', 'organs', 'slides', 'findings', 'scores', 'codes']);
    for (const [name, list] of Object.entries(records)) {
      if (name === 'codes') continue;
      const [header = [], ...rows] = sheets[name] ?? [];
      expect(new Set(header).size, name).toBe(header.length);
      const fixed = FIXED[name] ?? [];
      expect(header.slice(0, fixed.length), name).toEqual(fixed);
      const shownMembers = new Set([...fixed.map((column) => column.split('.')[0]), 'attributes']);
      expect(Object.keys(list[0]).filter((member) => !shownMembers.has(member))).toEqual([]);
      const keys = [...new Set(list.flatMap((record) => Object.keys(record.attributes)))];
      const managed = { slides: ['SUBJID', 'MISPEC'], scores: ['MISPEC'] }[name] ?? [];
      const codePoints = (text: string) =>
        [...text].map((character) => String(character.codePointAt(0)).padStart(7, '0')).join();
      const sorted = [...new Set([...keys, ...managed])].sort((a, b) => (codePoints(a) < codePoints(b) ? -1 : 1));
      const headed = sorted.map((key) => {
        if (key === 'attributes.name' && fixed.includes('name')) return 'attributes.attributes.name';
        return fixed.includes(key) ? `attributes.${key}` : key;
      });
      expect(header.slice(fixed.length), name).toEqual(headed);
      expect(rows).toHaveLength(list.length);
      for (const [i, record] of list.entries()) {
        const cell = (column: string) => rows[i]?.[header.indexOf(column)] ?? null;
        for (const column of fixed) {
          const [member = '', part] = column.split('.');
          const nameOf = (collection: string, id: string) =>
            records[collection]?.find((one) => one[id] === record[id])?.name ?? null;
          const value = () => {
            if (column === 'subjectName') return nameOf('subjects', 'subjectId');
            if (column === 'organName') return nameOf('organs', 'organId');
            return part ? (record.image?.[part] ?? null) : record[member];
          };
          expect(cell(column), `${name} ${i} ${column}`).toEqual(value());
        }
        for (const [k, key] of sorted.entries()) {
          const value = Object.hasOwn(record.attributes, key) ? shown(record.attributes[key]) : null;
          expect(cell(headed[k] as string), `${name} ${i} ${key}`).toEqual(value);
        }
      }
    }
  });

  test('XLSX has columns in which dates stand whole, and names have more room than their headers take', async () => {
    const { bytes } = await download('XLSX');
    const findings = (await unzip(bytes)).get('xl/worksheets/sheet5.xml') ?? '';
    const widths = [...findings.matchAll(/<col min="\d+" max="\d+" width="(\d+)"/g)].map(([, width]) => Number(width));
    const widthOf = (column: string) => widths[FIXED.findings?.indexOf(column) as number];
    for (const date of ['createdDate', 'updatedDate']) expect(widthOf(date)).toBeGreaterThanOrEqual(24);
    for (const name of ['subjectName', 'organName', 'name']) expect(widthOf(name)).toBeGreaterThanOrEqual(20);
  });

  test('XLSX has one row a code, with the attributes of the code and of the codes object', async () => {
    const { bytes } = await download('XLSX');
    const [codes] = records.codes as [Json];
    const { codesId, createdDate, updatedDate, version } = codes;
    const common = (list: string, code: string, label: string) => [
      codesId,
      studyId,
      list,
      code,
      label,
      createdDate,
      updatedDate,
      version,
      '2026-03',
      true,
    ];
    expect((await readWorkbook(bytes)).codes).toEqual([
      [
        'codesId',
        'studyId',
        'codeList',
        'code',
        'label',
        'createdDate',
        'updatedDate',
        'version',
        'codes.version',
        'codes.draft',
        'attributes.code',
        'rank',
      ],
      [...common('MISEV', 'MILD', 'Mild'), 'C-1', 2],
      common('MISEV', 'SEVERE', 'Severe'),
    ]);
  });
});

test('XLSX shows the names of subject and organ right beside their ids, as they are now, and none where there is none', async () => {
  const create = async (path: string, body: Json): Promise<Json> => {
    const answer = await service.call('POST', path, body);
    expect(answer.status, answer.text).toBe(201);
    return answer.body;
  };
  const { studyId } = await create('/studies', { name: 'Names beside the ids' });
  const at = `/studies/${studyId}`;
  const { subjectId } = await create(`${at}/subjects`, { name: 'S-1' });
  const { organId } = await create(`${at}/organs`, { subjectId, name: 'LIVER', attributes: { subjectName: 'mine' } });
  await create(`${at}/slides`, { fileName: 'unlinked.svs', attributes: { organName: 'mine' } });
  await create(`${at}/slides`, { fileName: 'subject.svs', subjectId });
  await create(`${at}/slides`, { fileName: 'organ.svs', organId });
  await create(`${at}/findings`, { organId, name: 'Necrosis', attributes: { subjectName: 'mine' } });
  await create(`${at}/scores`, { subjectId, name: 'Body weight', value: 1 });
  const sheets = async () => {
    const { download } = await exportStudy(service, studyId, 'XLSX');
    return readWorkbook(Buffer.from(await (await fetchFile(service, download.downloadUrl)).arrayBuffer()));
  };
  const columns = (sheet: ReadCell[][] | undefined, ...names: string[]) =>
    sheet?.slice(1).map((row) => names.map((name) => row[sheet[0]?.indexOf(name) as number] ?? null));

  const before = await sheets();
  expect(columns(before.findings, ...NAMED)).toEqual([[subjectId, 'S-1', organId, 'LIVER']]);
  const { body: subject } = await service.call('PUT', `${at}/subjects/${subjectId}`, { name: 'S-1 "renamed" <b>' });
  await service.call('PUT', `${at}/organs/${organId}`, { name: 'LEBER', attributes: { subjectName: 'mine' } });
  const after = await sheets();
  const renamed = [subjectId, subject.name];
  expect(subject.name).toBe('S-1 "renamed" <b>');
  expect(columns(after.subjects, 'subjectId', 'name', 'SUBJID')).toEqual([[...renamed, subject.name]]);
  expect(columns(after.organs, 'organId', 'name', 'subjectId', 'subjectName', 'attributes.subjectName')).toEqual([
    [organId, 'LEBER', ...renamed, 'mine'],
  ]);
  expect(columns(after.slides, ...NAMED, 'SUBJID', 'MISPEC', 'attributes.organName')).toEqual([
    [null, null, null, null, null, null, 'mine'],
    [...renamed, null, null, subject.name, null, null],
    [...renamed, organId, 'LEBER', subject.name, 'LEBER', null],
  ]);
  expect(columns(after.findings, ...NAMED, 'SUBJID', 'MISPEC', 'attributes.subjectName')).toEqual([
    [...renamed, organId, 'LEBER', subject.name, 'LEBER', 'mine'],
  ]);
  expect(columns(after.scores, ...NAMED)).toEqual([[...renamed, null, null]]);
});

test('a study of slides alone is exported, its empty arrays and sheets too', async () => {
  const { body: study } = await service.call('POST', '/studies', { name: 'Slides without subjects' });
  await service.call('POST', `/studies/${study.studyId}/slides`, { fileName: 'one.svs' });
  const json = await exportStudy(service, study.studyId, 'JSON');
  expect(await (await fetchFile(service, json.download.downloadUrl)).json()).toMatchObject({
    subjects: [],
    organs: [],
    slides: [{ fileName: 'one.svs', subjectId: null }],
    findings: [],
    codes: [],
  });
  const xlsx = await exportStudy(service, study.studyId, 'XLSX');
  const sheets = await readWorkbook(
    Buffer.from(await (await fetchFile(service, xlsx.download.downloadUrl)).arrayBuffer()),
  );
  expect(sheets.findings).toHaveLength(1);
  expect(sheets.slides?.[1]).toContain('one.svs');
});

test('a codes object without codes is counted, and has no rows', async () => {
  const { body: study } = await service.call('POST', '/studies', { name: 'Codes without a code' });
  await service.call('POST', `/studies/${study.studyId}/subjects`, { name: '1' });
  await service.call('POST', `/studies/${study.studyId}/codes`, { codeLists: {} });
  for (const format of ['JSON', 'XLSX'] as const) {
    const job = await exportStudy(service, study.studyId, format);
    expect(job.exportStatus).toEqual({ status: 'COMPLETED', recordsWritten: 3, totalRecords: 3 });
  }
});

test('more attribute keys than a sheet has columns share the last one, as JSON', async () => {
  const { body: study } = await service.call('POST', '/studies', { name: 'More keys than columns' });
  const attributes = (i: number) =>
    Object.fromEntries(Array.from({ length: 1000 }, (_, k) => [`K${String(i * 1000 + k).padStart(5, '0')}`, k]));
  const items = Array.from({ length: 17 }, (_, i) => ({ name: `S${i}`, attributes: attributes(i) }));
  expect((await service.call('POST', `/studies/${study.studyId}/subjects:bulkCreate`, { items })).status).toBe(201);
  const job = await exportStudy(service, study.studyId, 'XLSX');
  const sheets = await readWorkbook(
    Buffer.from(await (await fetchFile(service, job.download.downloadUrl)).arrayBuffer()),
  );
  const [header = [], ...rows] = sheets.subjects ?? [];
  expect(header).toHaveLength(16_384);
  expect(header.at(-1)).toBe('attributes');
  // 6 fixed columns and 16,377 keys stand before it; SUBJID sorts behind all K…
  expect(header.at(-2)).toBe('K16376');
  expect(rows[0]?.at(-1)).toBe('{"SUBJID":"S0"}');
  const rest = JSON.parse(rows[16]?.at(-1) as string);
  expect(Object.keys(rest)).toHaveLength(624);
  expect(rest).toMatchObject({ SUBJID: 'S16', K16377: 377, K16999: 999 });
});
