import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeAll, describe, expect, test } from 'vitest';
import { testFolder } from '../../test/send-study-maker.ts';
import { readSendStudy, type SendStudy } from './study.ts';

const SEND = '../shared/data/send';
const folder = testFolder();

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
      const file = `${domain.toLowerCase()}.xpt`;
      mkdirSync(path);
      for (const name of readdirSync(`${SEND}/pds`)) {
        const bytes = readFileSync(`${SEND}/pds/${name}`);
        writeFileSync(join(path, name), name === file ? bytes.subarray(0, -81) : bytes);
      }
      await expect(readSendStudy(path)).rejects.toMatchObject({
        name: 'SendError',
        file,
        message: expect.stringContaining('cut short'),
      });
    },
  );
});
