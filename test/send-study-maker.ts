import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll } from 'vitest';
import { SendError } from '../src/send/error.ts';
import { readSendStudy, type SendStudy } from '../src/send/study.ts';
import { type Cell, memberOf, writeTransport } from './xport-writer.ts';

export type Rows = Record<string, Cell>[];

/** A folder for the files of one test file, removed when its tests are done. */
export function testFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), 'send-'));
  afterAll(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

/** Writes and reads studies that consist of the given rows by domain. */
export function studyMaker() {
  const folder = testFolder();
  let made = 0;

  /** A study in a folder of its own; STUDYID and DOMAIN are added where a row has none. */
  function write(domains: Record<string, Rows>): string {
    made += 1;
    const path = join(folder, String(made));
    mkdirSync(path);
    for (const [domain, rows] of Object.entries(domains)) {
      const own = domain.startsWith('SUPP') ? {} : { DOMAIN: domain };
      const records = rows.map((row) => ({ STUDYID: 'STUDY-000001', ...own, ...row }));
      writeFileSync(join(path, `${domain.toLowerCase()}.xpt`), writeTransport([memberOf(domain, records)]));
    }
    return path;
  }

  return {
    folder,
    write,
    read: (domains: Record<string, Rows>): Promise<SendStudy> => readSendStudy(write(domains)),
    refusal: (domains: Record<string, Rows>): Promise<SendError> => refusalOf(write(domains)),
  };
}

/** The error with which a study is refused; any other outcome fails the test. */
export async function refusalOf(path: string): Promise<SendError> {
  const error = await readSendStudy(path).then(
    () => new Error('was read'),
    (reason: unknown) => reason,
  );
  if (error instanceof SendError) return error;
  throw error;
}

/** Two subjects, S-1 and S-2. */
export const DM = [
  { USUBJID: 'S-1', SUBJID: '1', SEX: 'M', SETCD: 'A' },
  { USUBJID: 'S-2', SUBJID: '2', SEX: 'F', SETCD: 'B' },
];

/** A row of MI. */
export function finding(usubjid: string, sequence: number, more: Record<string, Cell> = {}): Record<string, Cell> {
  return { USUBJID: usubjid, MISEQ: sequence, MISPEC: 'LIVER', MISTRESC: 'Necrosis', ...more };
}
