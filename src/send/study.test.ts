import {
  cpSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { SendError } from './error.ts';
import { readSendStudy, type SendStudy } from './study.ts';
import { type Cell, memberOf, writeTransport } from './xport-writer.ts';

const SEND = '../shared/data/send';
let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'send-study-'));
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

let made = 0;
type Rows = Record<string, Cell>[];

/** A study of the given rows in a folder of its own; STUDYID and DOMAIN are added where a row has none. */
function write(domains: Record<string, Rows>): string {
  made += 1;
  const path = join(folder, String(made));
  mkdirSync(path);
  for (const [domain, rows] of Object.entries(domains)) {
    const own = /^SUPP|^POOL/.test(domain) ? {} : { DOMAIN: domain };
    const records = rows.map((row) => ({ STUDYID: 'STUDY-000001', ...own, ...row }));
    writeFileSync(join(path, `${domain.toLowerCase()}.xpt`), writeTransport([memberOf(domain, records)]));
  }
  return path;
}

const read = (domains: Record<string, Rows>) => readSendStudy(write(domains));

async function refusal(domains: Record<string, Rows>): Promise<SendError> {
  const error = await read(domains).then(
    () => new Error('was read'),
    (reason: unknown) => reason,
  );
  if (error instanceof SendError) return error;
  throw error;
}

const DM = [
  { USUBJID: 'S-1', SUBJID: '1', SEX: 'M', SETCD: 'A' },
  { USUBJID: 'S-2', SUBJID: '2', SEX: 'F', SETCD: 'B' },
];
const finding = (usubjid: string, sequence: number, more: Record<string, Cell> = {}) => ({
  USUBJID: usubjid,
  MISEQ: sequence,
  MISPEC: 'LIVER',
  MISTRESC: 'Necrosis',
  ...more,
});

describe('the real studies', () => {
  const cases = [
    { study: 'instem', subjects: 241, organs: 7050, slides: 0, findings: 7065, scores: 1650 + 1733 },
    { study: 'pds', subjects: 124, organs: 2405 + 415, slides: 0, findings: 2447, scores: 2746 + 4075 },
    { study: 'ffu', subjects: 10, organs: 230 + 30, slides: 230, findings: 242, scores: 200 + 110 },
  ];
  const studies = new Map<string, SendStudy>();
  beforeAll(async () => {
    for (const { study } of cases) studies.set(study, await readSendStudy(`${SEND}/${study}`));
  });
  const get = (name: string) => studies.get(name) as SendStudy;

  test.each(cases)('$study is read whole', ({ study: name, ...counts }) => {
    const study = get(name);
    const { subjects, organs, slides, findings, scores } = study;
    expect({
      subjects: subjects.length,
      organs: organs.length,
      slides: slides.length,
      findings: findings.length,
      scores: scores.length,
    }).toEqual(counts);
  });

  test.each(cases)('$study keeps the rules of the store', ({ study: name }) => {
    const { name: title, subjects, organs, slides, findings, scores } = get(name);
    expect([...title].length).toBeGreaterThanOrEqual(10);
    expect(new Set(subjects.map((subject) => subject.name)).size).toBe(subjects.length);
    expect(new Set(organs.map((organ) => `${organ.subject} ${organ.name}`)).size).toBe(organs.length);
    expect(new Set(slides.map((slide) => slide.fileName)).size).toBe(slides.length);
    for (const { subject, organ } of [...slides, ...scores]) {
      expect(subjects[subject]).toBeDefined();
      if (organ !== null) expect(organs[organ]?.subject).toBe(subject);
    }
    for (const { organ, slide, name: text } of findings) {
      expect(text.length).toBeGreaterThan(0);
      if (slide !== null) expect(slides[slide]?.subject).toBe(organs[organ]?.subject);
    }
    for (const { value } of scores) if (typeof value === 'string') expect(value).toBe('NOT DONE');
  });

  test('names and sites come from STUDYID, title, SITEID and test facility', () => {
    expect([get('instem'), get('pds'), get('ffu')].map(({ studyId, name, siteId }) => [studyId, name, siteId])).toEqual(
      [
        [
          'GLP003',
          'GLP003: XYZ-12345 One-Month Oral Toxicity Study in Rats with a Two-Week Recovery',
          'Example Lab Name',
        ],
        [
          'PDS2014',
          'PDS2014: 1-month repeated dose oral toxicity study in the rat with a 1-month recovery period',
          'Imaginary Tox Lab',
        ],
        ['Study ID', 'Study ID: Full Title of Report', 'Test Site Name'],
      ],
    );
    expect(get('pds').attributes).toMatchObject({ STUDYID: 'PDS2014', GLPTYP: 'FDA; OECD', TRMSAC: 'P30D; P57D' });
    expect(get('ffu').attributes.TRTV).toBe('15 mM histidine buffer, pH 6.0 ± 0.05');
  });

  test('a subject carries its variables, its trial set and its disposition', () => {
    expect(get('pds').subjects[0]).toMatchObject({
      name: '1',
      attributes: {
        USUBJID: 'PDS2014-0001',
        SEX: 'M',
        SPECIES: 'RAT',
        AGE: 0,
        SETCD: '01',
        SET: 'Male, Vehicle, 0 mg/kg , NON-TK',
        GRPLBL: 'M-Vehicle',
        TRTDOS: '0.0',
        TRTDOSU: 'mg/kg',
        DSDECOD: 'TERMINAL SACRIFICE',
      },
    });
  });

  test('findings carry their variables and qualifiers', () => {
    const { findings, organs } = get('instem');
    const second = findings[1];
    expect(second).toMatchObject({
      name: 'Hyperplasia',
      severity: 'MINIMAL',
      slide: null,
      attributes: { MISEQ: 2, MILAT: 'BILATERAL', MIDY: 29, MIRESMOD: 'cortical cell; focal; unilateral' },
    });
    expect(organs[second?.organ ?? -1]).toMatchObject({ subject: 0, name: 'GLAND, ADRENAL' });
    expect(second?.attributes).not.toHaveProperty('MISEV');
    expect(findings.filter(({ name }) => name === 'NOT DONE')).toHaveLength(4269);
    expect(findings.filter(({ attributes }) => attributes.MIRESMOD !== undefined)).toHaveLength(168);
  });

  test('slides are the MIREFIDs of ffu, each with its organ and findings', () => {
    const { slides, findings, organs } = get('ffu');
    expect(slides[0]).toEqual({ subject: 0, organ: 0, fileName: '1002-1', attributes: { MIREFID: '1002-1' } });
    expect(organs[0]?.name).toBe('EYE');
    for (const { slide, organ, attributes } of findings) {
      expect(slides[slide ?? -1]?.fileName).toBe(attributes.MIREFID);
      expect(slides[slide ?? -1]?.organ).toBe(organ);
    }
  });

  test('scores are organ weights, then body weights', () => {
    const { scores, organs } = get('ffu');
    expect(scores[0]).toMatchObject({ subject: 0, name: 'Weight', value: 69.635, unit: 'g' });
    expect(organs[scores[0]?.organ ?? -1]?.name).toBe('BRAIN');
    expect(scores[0]?.attributes).toMatchObject({ OMTESTCD: 'WEIGHT', OMORRES: '69.635', OMDY: 30 });
    expect(scores[200]).toMatchObject({ subject: 0, organ: null, name: 'Body Weight', value: 2.96, unit: 'kg' });
    const notDone = get('instem').scores.filter(({ value }) => value === 'NOT DONE');
    expect(notDone).toHaveLength(22 + 2);
    expect(notDone[0]).toMatchObject({ name: 'Weight', unit: null });
    expect(notDone[0]?.attributes.OMREASND).toBe('Moribund Sacrifice, No Organ Weights Required');
  });

  test('comments stand at their records', () => {
    const commented = ({ findings, scores }: SendStudy) =>
      [findings, scores].map((records) => records.filter(({ attributes }) => attributes.COVAL !== undefined).length);
    expect(commented(get('instem'))).toEqual([0, 10]);
    expect(commented(get('pds'))).toEqual([21, 89]);
    expect(get('instem').omitted).toContainEqual({
      file: 'co.xpt',
      rows: 432,
      reason: 'comments on LB, a domain that is not imported',
    });
    expect(get('instem').omitted).toContainEqual({
      file: 'ma.xpt',
      rows: null,
      reason: 'a domain that is not imported',
    });
  });

  test('code lists hold the codes of the study with labels and counts', () => {
    const { codeLists } = get('pds');
    expect(codeLists.MISEV).toEqual([
      { code: 'MILD', label: 'MILD', attributes: { rows: 292 } },
      { code: 'MODERATE', label: 'MODERATE', attributes: { rows: 42 } },
      { code: 'SEVERE', label: 'SEVERE', attributes: { rows: 1 } },
    ]);
    expect(codeLists.MISPEC).toHaveLength(57);
    expect(codeLists.SETCD?.[0]).toEqual({
      code: '01',
      label: 'Male, Vehicle, 0 mg/kg , NON-TK',
      attributes: { rows: 10 },
    });
    expect(codeLists.OMTESTCD?.map(({ code, label }) => [code, label])).toEqual([
      ['OWBR', 'Organ to Brain Weight Ratio'],
      ['OWBW', 'Organ to Body Weight Ratio'],
      ['WEIGHT', 'Weight'],
    ]);
    expect(codeLists.VARIABLE).toContainEqual({ code: 'MISEV', label: 'Severity' });
    expect(codeLists.QNAM).toEqual([{ code: 'MIRESMOD', label: 'Result Modifiers' }]);
  });

  test('the incidence table of pds, LIVER, males comes out', () => {
    const { subjects, organs, findings } = get('pds');
    const groups = ['M-V', 'M-L', 'M-M', 'M-H'];
    const table = groups.map((group) => {
      const examined = new Set<number>();
      const severities = new Map<number, string>();
      for (const { organ, name, severity } of findings) {
        const { subject, name: organName } = organs[organ] as SendStudy['organs'][number];
        if (organName !== 'LIVER' || subjects[subject]?.attributes.SPGRPCD !== group) continue;
        if (name !== 'NOT DONE') examined.add(subject);
        // MILD < MODERATE < SEVERE also in the alphabet.
        if (name === 'MPS-aggregates multifocal' && severity !== null && severity > (severities.get(subject) ?? '')) {
          severities.set(subject, severity);
        }
      }
      const animals = (word: string) => [...severities.values()].filter((severity) => severity === word).length;
      return [examined.size, animals('MILD'), animals('MODERATE')];
    });
    expect(table).toEqual([
      [15, 10, 1],
      [10, 4, 1],
      [10, 6, 1],
      [15, 5, 1],
    ]);
  });

  test.each(['DM', 'MI', 'SUPPMI', 'OM', 'BW', 'TX', 'TS', 'CO', 'DS'])(
    '%s cut short refuses the whole study',
    async (domain) => {
      const path = join(folder, `cut-${domain}`);
      cpSync(`${SEND}/pds`, path, { recursive: true });
      const file = `${domain.toLowerCase()}.xpt`;
      const size = readFileSync(join(path, file)).length;
      rmSync(join(path, file));
      writeFileSync(join(path, file), readFileSync(`${SEND}/pds/${file}`));
      truncateSync(join(path, file), size - 81);
      await expect(readSendStudy(path)).rejects.toMatchObject({
        name: 'SendError',
        file,
        message: expect.stringContaining('cut short'),
      });
    },
  );
});

describe('the study', () => {
  const named = async (studyid: string, title?: string) => {
    const TS = title === undefined ? [] : [{ STUDYID: studyid, TSSEQ: 1, TSPARMCD: 'STITLE', TSVAL: title }];
    return (await read({ DM: [{ STUDYID: studyid, USUBJID: 'S-1', SUBJID: '1' }], ...(title ? { TS } : {}) })).name;
  };

  test('is named STUDYID where that has 10 characters, else with the title, else readably', async () => {
    expect(await named('STUDY-0001', 'A title')).toBe('STUDY-0001');
    expect(await named('STUDY-001', 'A title')).toBe('STUDY-001: A title');
    expect(await named('S1')).toBe('SEND study S1');
    expect(await named('S1', 'x')).toBe('SEND study S1');
    expect(await named('S1', 't'.repeat(300))).toBe(`S1: ${'t'.repeat(251)}`);
  });

  test('has a site where all subjects have the same, or the test facility has a name', async () => {
    const site = async (sites: (string | null)[], facility?: string) => {
      const dm = sites.map((SITEID, i) => ({ USUBJID: `S-${i}`, SUBJID: `${i}`, SITEID }));
      const TS = [{ TSSEQ: 1, TSPARMCD: 'TSTFNAM', TSVAL: facility ?? null }];
      return (await read({ DM: dm, TS })).siteId;
    };
    expect(await site(['B', null, 'B'], 'Lab')).toBe('B');
    expect(await site(['B', 'C'], 'Lab')).toBeNull();
    expect(await site([null], 'Lab')).toBe('Lab');
    expect(await site([null])).toBeNull();
  });

  test('has the parameters of TS, repeated ones in the order of TSSEQ, long ones put together', async () => {
    const TS = [
      { TSSEQ: 2, TSPARMCD: 'GLPTYP', TSVAL: 'OECD', TSVAL1: null, TSVALNF: null },
      { TSSEQ: 1, TSPARMCD: 'GLPTYP', TSVAL: 'FDA' },
      { TSSEQ: 1, TSPARMCD: 'STITLE', TSVAL: 'A long', TSVAL1: 'title' },
      { TSSEQ: 1, TSPARMCD: 'AGE', TSVAL: null, TSVALNF: 'NA' },
      { TSSEQ: 1, TSPARMCD: 'EMPTY', TSVAL: null },
      { TSSEQ: 1, TSPARMCD: '__proto__', TSVAL: 'ordinary' },
    ];
    const { attributes } = await read({ DM, TS });
    expect(Object.entries(attributes).sort()).toEqual([
      ['AGE', 'NA'],
      ['GLPTYP', 'FDA; OECD'],
      ['STITLE', 'A long title'],
      ['STUDYID', 'STUDY-000001'],
      ['__proto__', 'ordinary'],
    ]);
  });

  test('needs no domain but DM', async () => {
    const study = await read({ DM });
    expect(study.subjects).toHaveLength(2);
    expect([study.organs, study.slides, study.findings, study.scores, study.omitted]).toEqual([[], [], [], [], []]);
  });

  test('is refused without subjects, without STUDYID, or with two of them', async () => {
    expect((await refusal({ DM: [{ STUDYID: null, USUBJID: 'S-1', SUBJID: '1' }] })).message).toBe(
      'dm.xpt, record 1: STUDYID is blank',
    );
    const two = [
      { USUBJID: 'S-1', SUBJID: '1' },
      { STUDYID: 'OTHER', USUBJID: 'S-2', SUBJID: '2' },
    ];
    expect((await refusal({ DM: two })).message).toBe(
      'dm.xpt, record 2: STUDYID is OTHER, but the study is STUDY-000001',
    );
    const path = join(folder, 'no-subjects');
    mkdirSync(path);
    const columns = ['STUDYID', 'USUBJID', 'SUBJID'].map((name) => ({ name, type: 'text' as const, length: 5 }));
    writeFileSync(join(path, 'dm.xpt'), writeTransport([{ name: 'DM', columns, rows: [] }]));
    await expect(readSendStudy(path)).rejects.toMatchObject({ file: 'dm.xpt', reason: 'has no subjects' });
  });
});

describe('subjects', () => {
  const names = async (dm: Rows) => (await read({ DM: dm })).subjects.map(({ name }) => name);

  test('are named SUBJID, but USUBJID where that is blank or repeats', async () => {
    const dm = [
      { USUBJID: 'S-1', SUBJID: '1' },
      { USUBJID: 'S-2', SUBJID: '2' },
      { USUBJID: 'S-3', SUBJID: '2' },
      { USUBJID: 'S-4', SUBJID: null },
    ];
    expect(await names(dm)).toEqual(['1', 'S-2', 'S-3', 'S-4']);
  });

  test('are named USUBJID throughout where names would clash else', async () => {
    const dm = [
      { USUBJID: 'A', SUBJID: '1' },
      { USUBJID: 'B', SUBJID: '1' },
      { USUBJID: 'C', SUBJID: 'A' },
    ];
    expect(await names(dm)).toEqual(['A', 'B', 'C']);
  });

  test('stand in DM once', async () => {
    expect((await refusal({ DM: [...DM, { USUBJID: 'S-1', SUBJID: '3' }] })).message).toBe(
      'dm.xpt, record 3: USUBJID S-1 stands in an earlier row',
    );
  });

  test('take what TX says of their set, unless DM says it', async () => {
    const TX = [
      { SETCD: 'A', SET: 'Control', TXPARMCD: 'GRPLBL', TXVAL: 'Group 1' },
      { SETCD: 'A', SET: 'Control', TXPARMCD: 'TRTDOS', TXVAL: '0' },
      { SETCD: 'A', SET: 'Control', TXPARMCD: 'TRTDOS', TXVAL: '5' },
      { SETCD: 'A', SET: 'Control', TXPARMCD: 'SEX', TXVAL: 'BOTH' },
      { SETCD: 'Z', SET: 'No one', TXPARMCD: 'TRTDOS', TXVAL: '9' },
    ];
    const { subjects, codeLists } = await read({ DM, TX });
    expect(subjects[0]?.attributes).toMatchObject({ SET: 'Control', GRPLBL: 'Group 1', TRTDOS: '0; 5', SEX: 'M' });
    expect(subjects[1]?.attributes).not.toHaveProperty('SET');
    expect(codeLists.SETCD).toEqual([
      { code: 'A', label: 'Control', attributes: { rows: 1 } },
      { code: 'B', label: 'B', attributes: { rows: 1 } },
      { code: 'Z', label: 'No one' },
    ]);
  });
});

describe('findings', () => {
  test('are one per row, duplicates too, named MISTRESC, MIORRES, MISTAT or (blank)', async () => {
    const MI = [
      finding('S-1', 1, { MIORRES: 'necrosis, mild', MISTAT: null, MISEV: '2 OF 5' }),
      finding('S-1', 1, { MIORRES: 'necrosis, mild', MISEV: '2 OF 5' }),
      finding('S-1', 2, { MISTRESC: null, MIORRES: 'as written' }),
      finding('S-1', 3, { MISTRESC: null, MISTAT: 'NOT DONE' }),
      finding('S-1', 4, { MISTRESC: null, MISPEC: null }),
    ];
    const { findings, organs } = await read({ DM, MI });
    expect(findings.map(({ name, severity }) => [name, severity])).toEqual([
      ['Necrosis', '2 OF 5'],
      ['Necrosis', '2 OF 5'],
      ['as written', null],
      ['NOT DONE', null],
      ['(blank)', null],
    ]);
    expect(findings[0]?.attributes).toEqual({
      STUDYID: 'STUDY-000001',
      DOMAIN: 'MI',
      USUBJID: 'S-1',
      MISEQ: 1,
      MIORRES: 'necrosis, mild',
    });
    expect(organs.map(({ name }) => name)).toEqual(['LIVER', '(blank)']);
  });

  test('longer than a member are cut there, and stand whole among the attributes', async () => {
    const long = 'ü'.repeat(300);
    const { findings } = await read({ DM, MI: [finding('S-1', 1, { MISTRESC: long, MISEV: 's'.repeat(65) })] });
    expect(findings[0]).toMatchObject({
      name: 'ü'.repeat(255),
      severity: 's'.repeat(64),
      attributes: { MISTRESC: long, MISEV: 's'.repeat(65) },
    });
  });

  test('take qualifiers by MISEQ, by another variable, and join repeated ones', async () => {
    const SUPPMI = [
      { RDOMAIN: 'MI', USUBJID: 'S-1', IDVAR: 'MISEQ', IDVARVAL: ' 1.0', QNAM: 'MIRESMOD', QVAL: 'focal' },
      { RDOMAIN: 'MI', USUBJID: 'S-1', IDVAR: 'MISEQ', IDVARVAL: '1', QNAM: 'MIRESMOD', QVAL: 'bilateral' },
      { RDOMAIN: 'MI', USUBJID: 'S-1', IDVAR: 'MIGRPID', IDVARVAL: 'g', QNAM: 'BOTH', QVAL: 'yes' },
      { RDOMAIN: 'MI', USUBJID: 'S-2', IDVAR: null, IDVARVAL: null, QNAM: 'OFANIMAL', QVAL: 'yes' },
    ];
    const MI = [finding('S-1', 1, { MIGRPID: 'g' }), finding('S-1', 2, { MIGRPID: 'g' }), finding('S-2', 1)];
    const { findings, subjects } = await read({ DM, MI, SUPPMI });
    expect(findings.map(({ attributes }) => [attributes.MIRESMOD, attributes.BOTH])).toEqual([
      ['focal; bilateral', 'yes'],
      [undefined, 'yes'],
      [undefined, undefined],
    ]);
    expect(subjects[1]?.attributes.OFANIMAL).toBe('yes');
  });

  test('that a qualifier names and MI lacks refuse the study, for MI may have been cut', async () => {
    const SUPPMI = [{ RDOMAIN: 'MI', USUBJID: 'S-1', IDVAR: 'MISEQ', IDVARVAL: '9', QNAM: 'X', QVAL: 'x' }];
    expect((await refusal({ DM, MI: [finding('S-1', 1)], SUPPMI })).message).toBe(
      'suppmi.xpt, record 1: qualifies MISEQ 9, which MI lacks',
    );
  });
});

describe('slides', () => {
  test('are one per MIREFID of a subject, with the subject in the name where several have it', async () => {
    const MI = [
      finding('S-1', 1, { MIREFID: '10' }),
      finding('S-1', 2, { MIREFID: '10' }),
      finding('S-2', 1, { MIREFID: '10' }),
      finding('S-2', 2, { MIREFID: '1/10' }),
      finding('S-2', 3, { MIREFID: '11' }),
      finding('S-2', 4, { MIREFID: '11', MISPEC: 'KIDNEY' }),
      finding('S-2', 5),
    ];
    const { slides, findings } = await read({ DM, MI });
    expect(slides).toEqual([
      { subject: 0, organ: 0, fileName: '1/10 (2)', attributes: { MIREFID: '10' } },
      { subject: 1, organ: 1, fileName: '2/10', attributes: { MIREFID: '10' } },
      { subject: 1, organ: 1, fileName: '1/10', attributes: { MIREFID: '1/10' } },
      { subject: 1, organ: null, fileName: '11', attributes: { MIREFID: '11' } },
    ]);
    expect(findings.map(({ slide }) => slide)).toEqual([0, 0, 1, 2, 3, 3, null]);
  });
});

describe('scores', () => {
  test('take value and unit from the standard result, else from the original one', async () => {
    const om = (more: Record<string, Cell>) => ({ USUBJID: 'S-1', OMTESTCD: 'WEIGHT', OMTEST: 'Weight', ...more });
    const OM = [
      om({
        OMSPEC: 'HEART',
        OMSTRESN: '4e13',
        OMSTRESC: 'x',
        OMORRES: 'y',
        OMSTRESU: 'g',
        OMORRESU: 'mg',
        OMSTAT: null,
      }),
      om({ OMSPEC: 'HEART', OMSTRESN: '<0.5', OMSTRESC: '<0.5', OMORRES: 'y', OMORRESU: 'mg' }),
      om({ OMSPEC: 'LIVER', OMORRES: '12', OMTEST: null }),
      om({ OMSPEC: 'LIVER', OMSTAT: 'NOT DONE' }),
      om({ OMSPEC: null, OMORRES: '-', OMTESTCD: null, OMTEST: null }),
      om({ OMSPEC: 'LIVER', OMSTRESU: 'g' }),
    ];
    const MI = [finding('S-1', 1)];
    const { scores, organs } = await read({ DM, MI, OM });
    expect(scores.map(({ organ, name, value, unit }) => [organ, name, value, unit])).toEqual([
      [1, 'Weight', 4e13, 'g'],
      [1, 'Weight', '<0.5', 'mg'],
      [0, 'WEIGHT', '12', null],
      [0, 'Weight', 'NOT DONE', null],
      [null, '(blank)', '-', null],
      [0, 'Weight', '(blank)', 'g'],
    ]);
    expect(organs.map(({ name }) => name)).toEqual(['LIVER', 'HEART']);
    expect(scores[0]?.attributes).toMatchObject({ OMSTRESC: 'x', OMORRES: 'y', OMORRESU: 'mg', OMTESTCD: 'WEIGHT' });
    expect(scores[1]?.attributes.OMSTRESN).toBe('<0.5');
  });

  test('of a pool of subjects stay out of the study and are counted', async () => {
    const BW = [
      { USUBJID: null, POOLID: 'P1', BWSEQ: 1, BWTESTCD: 'BW', BWSTRESN: 900 },
      { USUBJID: 'S-1', POOLID: 'P1', BWSEQ: 2, BWTESTCD: 'BW', BWSTRESN: 300 },
    ];
    const { scores, omitted } = await read({ DM, BW });
    expect(scores).toMatchObject([{ subject: 0, name: 'BW', value: 300, attributes: { POOLID: 'P1' } }]);
    expect(omitted).toEqual([{ file: 'bw.xpt', rows: 1, reason: 'of a pool of subjects (POOLID)' }]);
  });
});

describe('comments', () => {
  test('stand at the records, the subject or the study they are about', async () => {
    const co = (more: Record<string, Cell>) => ({
      RDOMAIN: null,
      USUBJID: 'S-1',
      IDVAR: null,
      IDVARVAL: null,
      ...more,
    });
    const CO = [
      co({ RDOMAIN: 'MI', IDVAR: 'MISEQ', IDVARVAL: '1', COVAL: 'first part', COVAL1: 'and second' }),
      co({ RDOMAIN: 'MI', IDVAR: 'MISEQ', IDVARVAL: '1', COVAL: 'another' }),
      co({ RDOMAIN: 'MI', IDVAR: 'MISEQ', IDVARVAL: '99', COVAL: 'on no row' }),
      co({ COVAL: 'on the animal' }),
      co({ USUBJID: null, COVAL: 'on the study' }),
      co({ RDOMAIN: 'CL', IDVAR: 'CLSEQ', IDVARVAL: '1', COVAL: 'left out' }),
    ];
    const study = await read({ DM, MI: [finding('S-1', 1)], CO });
    expect(study.findings[0]?.attributes.COVAL).toBe('first part and second; another');
    expect(study.subjects[0]?.attributes.COVAL).toBe('on no row; on the animal');
    expect(study.attributes.COVAL).toBe('on the study');
    expect(study.omitted).toEqual([
      { file: 'co.xpt', rows: 1, reason: 'comments on CL, a domain that is not imported' },
    ]);
  });
});

describe('rows that do not belong are refused with file, record and reason', () => {
  const TS = [{ STUDYID: 'OTHER', TSSEQ: 1, TSPARMCD: 'A', TSVAL: 'a' }];
  const qualifier = { RDOMAIN: 'MI', IDVAR: 'MISEQ', IDVARVAL: '1', QNAM: 'A', QVAL: 'a' };
  const many = Object.fromEntries(Array.from({ length: 1_001 }, (_, i) => [`V${i}`, 'v']));
  test.each<[string, Record<string, Rows>, string]>([
    ['MI', { MI: [finding('S-1', 1), finding('S-9', 2)] }, 'mi.xpt, record 2: subject S-9 (USUBJID) is not in DM'],
    ['OM', { OM: [{ USUBJID: 'S-9', OMSPEC: 'LIVER' }] }, 'om.xpt, record 1: subject S-9 (USUBJID) is not in DM'],
    ['BW', { BW: [{ USUBJID: 'S-9' }] }, 'bw.xpt, record 1: subject S-9 (USUBJID) is not in DM'],
    ['DS', { DS: [{ USUBJID: 'S-9' }] }, 'ds.xpt, record 1: subject S-9 (USUBJID) is not in DM'],
    ['CO', { CO: [{ USUBJID: 'S-9', COVAL: 'x' }] }, 'co.xpt, record 1: subject S-9 (USUBJID) is not in DM'],
    [
      'SUPPMI',
      { SUPPMI: [{ ...qualifier, USUBJID: 'S-9' }] },
      'suppmi.xpt, record 1: subject S-9 (USUBJID) is not in DM',
    ],
    ['no subject', { BW: [{ USUBJID: null }] }, 'bw.xpt, record 1: names no subject: USUBJID is blank'],
    ['study', { TS }, 'ts.xpt, record 1: STUDYID is OTHER, but the study is STUDY-000001'],
    ['domain', { MI: [finding('S-1', 1, { DOMAIN: 'MA' })] }, 'mi.xpt, record 1: DOMAIN is MA, not MI'],
    ['variable', { MI: [{ USUBJID: 'S-1' }] }, 'mi.xpt: the dataset MI has no variable MISPEC'],
    [
      'organ name',
      { MI: [finding('S-1', 1, { MISPEC: 'x'.repeat(256) })] },
      'mi.xpt, record 1: MISPEC has more than 255 characters',
    ],
    ['attributes', { BW: [{ USUBJID: 'S-1', ...many }] }, 'bw.xpt, record 1: the record has more than 1000 attributes'],
  ])('%s', async (_, domains, message) => {
    expect((await refusal({ DM, ...domains })).message).toBe(message);
  });
});

describe('reading', () => {
  test('tells its progress', async () => {
    const steps: [string, number, number][] = [];
    await readSendStudy(`${SEND}/instem`, { onProgress: (...step) => steps.push(step) });
    expect(steps.filter(([step]) => step === 'mi.xpt')).toEqual([
      ['mi.xpt', 2000, 7065],
      ['mi.xpt', 4000, 7065],
      ['mi.xpt', 6000, 7065],
      ['mi.xpt', 7065, 7065],
    ]);
  });

  test('stops when its signal is aborted', async () => {
    await expect(readSendStudy(`${SEND}/pds`, { signal: AbortSignal.abort() })).rejects.toMatchObject({
      name: 'AbortError',
    });
    const controller = new AbortController();
    const onProgress = (step: string) => step === 'mi.xpt' && controller.abort();
    await expect(readSendStudy(`${SEND}/pds`, { signal: controller.signal, onProgress })).rejects.toMatchObject({
      name: 'AbortError',
    });
  });

  test('leaves the files as they are', async () => {
    const path = write({ DM });
    const before = readFileSync(join(path, 'dm.xpt'));
    await readSendStudy(path);
    expect(readdirSync(path)).toEqual(['dm.xpt']);
    expect(readFileSync(join(path, 'dm.xpt')).equals(before)).toBe(true);
  });
});
