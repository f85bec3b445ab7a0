import type pg from 'pg';
import { type Db, type Tx, transaction } from '../db/database.ts';
import type { EventDraft } from '../http/gate.ts';
import { newId } from '../lib/id.ts';
import { insertCodes } from './codes-queries.ts';
import { findImported, lockImport } from './import-queries.ts';
import { type Kind, kinds } from './kinds.ts';
import { type Item, insertRecords } from './queries.ts';
import { storedAttributes } from './rules.ts';

type Attributes = Record<string, string | number | boolean | null>;

/** A whole study as it comes from a file; records refer to each other by their index in these lists. */
export interface StudyTree {
  /** STUDYID: what the study is called in its source, and where a second import is recognised by. */
  studyId: string;
  name: string;
  siteId: string | null;
  attributes: Attributes;
  subjects: { name: string; attributes: Attributes }[];
  organs: { subject: number; name: string; attributes: Attributes }[];
  slides: { subject: number; organ: number | null; fileName: string; attributes: Attributes }[];
  findings: { organ: number; slide: number | null; name: string; severity: string | null; attributes: Attributes }[];
  scores: {
    subject: number;
    organ: number | null;
    name: string;
    value: number | string;
    unit: string | null;
    attributes: Attributes;
  }[];
  codeLists: Record<string, unknown>;
}

/** What an import has come to. */
export interface Imported {
  studyId: string;
  name: string;
  counts: { subjects: number; organs: number; slides: number; findings: number; scores: number };
}

/** The STUDYID has been imported before (decisions §9). */
export class AlreadyImported extends Error {
  override name = 'AlreadyImported';
}

/** Rows of one statement, as many as those of a :bulkCreate. */
const BATCH = 1_000;

export interface ImportOptions {
  /** Makes a second study of a STUDYID that is there already. */
  again: boolean;
  /** Who imports, for the audit event. */
  operation: string;
  record: (db: Db, event: EventDraft) => Promise<void>;
  onProgress: (collection: string, done: number, total: number) => void;
  signal: AbortSignal;
}

/** Loads a study in one transaction or not at all. */
export async function importStudy(pool: pg.Pool, tree: StudyTree, options: ImportOptions): Promise<Imported> {
  return transaction(pool, async (tx) => {
    // Two imports of one study at the same moment: the second waits, and then finds the first.
    await lockImport(tx, tree.studyId);
    const before = options.again ? null : await findImported(tx, tree.studyId);
    if (before) {
      throw new AlreadyImported(
        `${tree.studyId} is imported already, as study ${before}; --again makes a second study of it.`,
      );
    }
    const studyId = newId();
    await insert(tx, kinds.study, null, [
      { id: studyId, name: tree.name, siteId: tree.siteId, attributes: stored(tree) },
    ]);
    const load = async (kind: Kind, items: Item[]) => {
      for (let done = 0; done < items.length; done += BATCH) {
        options.signal.throwIfAborted();
        await insert(tx, kind, studyId, items.slice(done, done + BATCH));
        options.onProgress(kind.collection, Math.min(done + BATCH, items.length), items.length);
      }
      return items.map(({ id }) => id);
    };
    const subjects = await load(
      kinds.subject,
      tree.subjects.map((subject) => ({ id: newId(), name: subject.name, attributes: stored(subject) })),
    );
    const organs = await load(
      kinds.organ,
      tree.organs.map((organ) => ({
        id: newId(),
        subjectId: subjects[organ.subject],
        name: organ.name,
        attributes: stored(organ),
      })),
    );
    const organOf = (index: number | null) => (index === null ? null : organs[index]);
    const slides = await load(
      kinds.slide,
      tree.slides.map((slide) => ({
        id: newId(),
        subjectId: subjects[slide.subject],
        organId: organOf(slide.organ),
        fileName: slide.fileName,
        attributes: stored(slide),
      })),
    );
    await load(
      kinds.finding,
      tree.findings.map((finding) => ({
        id: newId(),
        organId: organOf(finding.organ),
        slideId: finding.slide === null ? null : slides[finding.slide],
        name: finding.name,
        severity: finding.severity,
        attributes: stored(finding),
      })),
    );
    await load(
      kinds.score,
      tree.scores.map((score) => ({
        id: newId(),
        subjectId: subjects[score.subject],
        organId: organOf(score.organ),
        name: score.name,
        value: score.value,
        unit: score.unit,
        attributes: stored(score),
      })),
    );
    await insertCodes(tx, studyId, newId(), JSON.stringify(tree.codeLists), '{}');
    await options.record(tx, eventOf(studyId, options.operation));
    const { length: findings } = tree.findings;
    const { length: scores } = tree.scores;
    const counts = { subjects: subjects.length, organs: organs.length, slides: slides.length, findings, scores };
    return { studyId, name: tree.name, counts };
  });
}

async function insert(tx: Tx, kind: Kind, studyId: string | null, items: Item[]): Promise<void> {
  const written = await insertRecords(tx, kind, studyId, items, null);
  if (written.length !== items.length) throw new Error(`${items.length - written.length} ${kind.collection} were lost`);
}

function stored({ attributes }: { attributes: Attributes }): Record<string, unknown> {
  return storedAttributes({ attributes });
}

/** An import is no call of a client, but what it writes has to be on record like any other study's creation. */
function eventOf(studyId: string, operation: string): EventDraft {
  return {
    event: 'STUDY_CREATED',
    clientId: 'sds',
    operation,
    method: 'CLI',
    path: '',
    status: null,
    resourceType: 'study',
    resourceId: studyId,
    resourceIds: null,
    studyId,
    requestId: newId(),
    reason: null,
    changes: null,
  };
}
