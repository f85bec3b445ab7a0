import { Blocks } from './blocks.ts';
import { copiedRows } from './copied-rows.ts';
import { JsonRows } from './json-rows.ts';
import { exportedKinds } from './records.ts';
import { type Counts, codesText, copyRecords, hasScores, type Snapshot } from './snapshot-queries.ts';

/** The arrays of the document, in the order of interface.md §2. Scores stand inside subjects and organs. */
const arrays = [
  exportedKinds.study,
  exportedKinds.subject,
  exportedKinds.organ,
  exportedKinds.slide,
  exportedKinds.finding,
];

/**
 * The JSON document of a study (interface.md §2, decisions §4), one record a line, in constant memory. Counts in
 * `written` what it has rendered.
 */
export async function* jsonDocument(snapshot: Snapshot, studyId: string, written: Counts): AsyncGenerator<Buffer> {
  const blocks = new Blocks();
  const text = (json: string) => {
    const bytes = Buffer.from(json);
    blocks.raw(bytes, 0, bytes.length);
  };
  for (const [i, exported] of arrays.entries()) {
    const { kind, name } = exported;
    text(`${i === 0 ? '{' : ',\n'}"${name}":[`);
    const rows = new JsonRows(blocks, exported, hasScores(kind));
    const scoresBefore = written.score;
    for await (const batch of copiedRows(copyRecords(snapshot, exported, studyId))) {
      rows.add(batch);
      written[kind.name] += batch.count;
      written.score = scoresBefore + rows.scores;
      yield* blocks.takeFull();
    }
    text(written[kind.name] === 0 ? ']' : '\n]');
  }
  const codes = await codesText(snapshot, studyId);
  text(`,\n"codes":[${codes === null ? '' : `\n${codes}\n`}]}\n`);
  written.codes = codes === null ? 0 : 1;
  yield* blocks.takeFull();
  yield blocks.rest();
}
