import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { DM, type Rows, studyMaker } from '../../test/send-study-maker.ts';
import { writeTransport } from '../../test/xport-writer.ts';
import { readSendStudy } from './study.ts';

const { folder, read, refusal } = studyMaker();

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
