import { Type } from 'typebox';
import { idOf, nullable, Timestamp, titled } from '../studies/schemas.ts';
import { exportStatuses } from './states.ts';

export const exportFormats = ['JSON', 'XLSX'] as const;
export type ExportFormat = (typeof exportFormats)[number];

const format = Type.Enum([...exportFormats], { description: 'What the file is.', examples: ['JSON'] });
const date = (description: string) => nullable({ ...Timestamp, description });

/** An export job (interface.md §2, decisions §4). */
export const ExportJob = titled('ExportJob', {
  exportId: idOf('export job'),
  studyId: idOf('study'),
  format,
  exportStatus: Type.Object({
    status: Type.Enum([...exportStatuses], { description: 'Poll until COMPLETED or FAILED, every few seconds.' }),
    recordsWritten: Type.Integer({ minimum: 0, description: 'Advances while records are serialised; 0 when queued.' }),
    totalRecords: nullable(Type.Integer({ minimum: 0, description: 'Records of the study; null until it started.' })),
  }),
  download: Type.Object({
    downloadUrl: nullable(
      Type.String({
        description: 'Path of the file; null until COMPLETED.',
        examples: ['/api/v1/studies/0MZ3fW9k000aB7dR2uQxKpLc/exports/0MZ3fW9k000cQ8sT4vZyMrNe:download'],
      }),
    ),
  }),
  fileSizeBytes: nullable(Type.Integer({ minimum: 0, description: 'Size of the file; null until COMPLETED.' })),
  sha256: nullable(Type.String({ description: 'SHA-256 of the file, hexadecimal; null until COMPLETED.' })),
  errorMessage: nullable(Type.String({ description: 'Why it FAILED; null otherwise.' })),
  createdDate: Timestamp,
  startedDate: date('When a worker started it, or started it anew; null while queued.'),
  completedDate: date('When it was COMPLETED or FAILED; null before.'),
});

export const StartExport = Type.Object({ format });
