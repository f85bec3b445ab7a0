import { describe, expect, test } from 'vitest';
import { DM, finding, studyMaker } from '../../test/send-study-maker.ts';
import type { Cell } from '../../test/xport-writer.ts';

const { read, refusal } = studyMaker();

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
