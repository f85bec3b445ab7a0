import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { DM, finding, type Rows, studyMaker } from '../../test/send-study-maker.ts';
import { readSendStudy } from './study.ts';

const SEND = '../shared/data/send';
const { write, refusal } = studyMaker();

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
