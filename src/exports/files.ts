import type { ExportFormat } from './schemas.ts';

export const mediaTypes: Record<ExportFormat, string> = {
  JSON: 'application/json',
  XLSX: 'application/vnd.openxmlformats-officedocument.spreadsheetml.sheet',
};

/** Longer names are cut: file systems take 255 bytes, and most dialogs show fewer. */
const NAME_LENGTH = 100;

/** A file name that a person recognises and every system takes: `28-day oral toxicity, rat 2026-03-02.xlsx`. */
export function exportFileName(studyName: string, date: Date, format: ExportFormat): string {
  const name = [
    ...studyName
      .replace(/[\\/:*?"<>|\x00-\x1f\x7f]+/g, ' ')
      .replace(/\s+/g, ' ')
      .trim(),
  ]
    .slice(0, NAME_LENGTH)
    .join('')
    .replace(/^\.+|[. ]+$/g, '');
  return `${name || 'study'} ${date.toISOString().slice(0, 10)}.${format.toLowerCase()}`;
}
