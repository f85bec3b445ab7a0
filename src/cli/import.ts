import { recordEvent } from '../audit/record.ts';
import { readSendStudy } from '../send/study.ts';
import { type Imported, importStudy } from '../studies/import.ts';
import { command } from './command.ts';
import { withDatabase } from './open.ts';
import { Progress } from './progress.ts';

/** Reads first and opens the database only for a study that is whole. */
export const importSend = command({
  arguments: ['DIR|ZIP'],
  options: { again: { type: 'boolean', help: 'Make a second study of a STUDYID that is imported already.' } },
  details: 'Reads the SAS transport files (*.xpt) of a SEND study and loads it in one transaction or not at all.',
  async run(call) {
    const [path] = call.arguments;
    const progress = new Progress();
    try {
      const study = await readSendStudy(path, {
        onProgress: (file, done, total) => progress.show(`reading ${file}`, done, total),
        signal: call.signal,
      });
      const imported = await withDatabase(call, ({ pool }) =>
        importStudy(pool, study, {
          again: call.options.again,
          operation: 'sds import send',
          record: recordEvent,
          onProgress: (collection, done, total) => progress.show(`loading ${collection}`, done, total),
          signal: call.signal,
        }),
      );
      for (const { file, rows, reason } of study.omitted) {
        call.say(`left out: ${file}${rows === null ? '' : ` (${rows} rows)`}: ${reason}`);
      }
      return { value: imported, text: summary(imported) };
    } finally {
      progress.end();
    }
  },
});

function summary({ studyId, name, counts }: Imported): string {
  const lines = Object.entries(counts).map(([what, count]) => `  ${what.padEnd(10)}${String(count).padStart(9)}`);
  return [`Imported ${name} as study ${studyId}:`, ...lines].join('\n');
}
