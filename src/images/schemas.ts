import { Type } from 'typebox';
import { idOf, nullable, Timestamp, text, titled } from '../studies/schemas.ts';
import { fileStatuses, jobStatuses, jobTypes } from './states.ts';

const count = (description: string) => Type.Integer({ minimum: 0, description });
const date = (description: string) => nullable({ ...Timestamp, description });

/** Longest part of a key, in characters; whole keys end at 1,024 bytes of UTF-8 with every provider. */
const KEY_LENGTH = 1024;

const jobMembers = {
  jobId: idOf('image job'),
  type: Type.Enum([...jobTypes], { description: 'INGEST copies from the cloud, TRANSFER to it.' }),
  status: Type.Enum([...jobStatuses], { description: 'COMPLETED, FAILED and PARTIAL are final.' }),
  studyId: idOf('study'),
  credentialId: idOf('credential'),
  clientId: Type.String({ description: 'The client that started it.' }),
  attempt: Type.Integer({ minimum: 1, description: 'From 1; every :retry adds one.' }),
  files: Type.Object({
    total: count('Files of the job; grows while the source is listed.'),
    completed: count('Copied.'),
    skipped: count('Were there already with the same content.'),
    failed: count('Could not be copied.'),
    cancelled: count('Not done when the job was cancelled.'),
  }),
  bytes: Type.Object({
    total: count('Bytes of all files whose size is known.'),
    transferred: count('Bytes that came from the cloud (INGEST) or went to it (TRANSFER).'),
  }),
  errorMessage: nullable(Type.String({ description: 'Why it is FAILED or PARTIAL; null otherwise.' })),
  cancelRequestedDate: date('When :cancel was called; null before.'),
  createdDate: Timestamp,
  startedDate: date('When a worker picked this attempt up; null before.'),
  completedDate: date('When it was COMPLETED, FAILED or PARTIAL; null before.'),
};

/** An image job (decisions §5). */
export const ImageJob = titled('ImageJob', jobMembers);

/** One file of an image job (decisions §5). */
export const ImageFile = titled('ImageFile', {
  fileId: idOf('file'),
  name: Type.String({ description: 'FILE NAME of the slide.' }),
  key: Type.String({ description: 'Key of the object in the cloud.' }),
  slideId: nullable(idOf('slide')),
  status: Type.Enum([...fileStatuses], { description: 'PENDING and RUNNING files are still to be done.' }),
  sizeBytes: nullable(count('Size; null while it is not known.')),
  bytesTransferred: count('Bytes that have come from the cloud (INGEST) or gone to it (TRANSFER) so far.'),
  sha256: nullable(Type.String({ description: 'SHA-256 of the content, hexadecimal; null while it is not known.' })),
  attempts: count('Tries of this attempt of the job; a transient error is tried again.'),
  errorMessage: nullable(Type.String({ description: 'Why it is FAILED or CANCELLED; null otherwise.' })),
  startedDate: date('When it was first tried; null before.'),
  completedDate: date('When it was done, or given up; null before.'),
});

const overwrite = Type.Boolean({
  default: false,
  description: 'Whether an image with other content takes the place of the one that a slide has.',
});

/** Body of `:ingest`; exactly one of `prefix` and `files`. */
export const StartIngest = Type.Object({
  studyId: idOf('study'),
  credentialId: idOf('credential'),
  prefix: Type.Optional(
    Type.String({
      maxLength: KEY_LENGTH,
      description:
        'Every object whose key starts with this; the FILE NAME is the key after the last `/` of the prefix. May be empty: every object.',
      examples: ['scans/2026-03/'],
    }),
  ),
  files: Type.Optional(
    Type.Array(
      Type.Object({
        key: text('Key of the object.', 1, KEY_LENGTH, 'scans/2026-03/1001-LIVER-1.svs'),
        fileName: Type.Optional(
          Type.String({
            minLength: 1,
            maxLength: 1024,
            description: 'FILE NAME; default: the last segment of the key.',
          }),
        ),
        subjectId: Type.Optional({ ...idOf('subject'), description: 'Subject of the slide, where it is created.' }),
        organId: Type.Optional({ ...idOf('organ'), description: 'Organ of the slide, where it is created.' }),
      }),
      { minItems: 1, description: 'These objects.' },
    ),
  ),
  overwrite: Type.Optional(overwrite),
});

/** Body of `:transfer`. */
export const StartTransfer = Type.Object({
  studyId: idOf('study'),
  credentialId: idOf('credential'),
  prefix: Type.Optional(
    Type.String({
      maxLength: KEY_LENGTH,
      description: 'Put before every FILE NAME to make the key of the object, as it is.',
      examples: ['archive/2026-03/'],
    }),
  ),
  slideIds: Type.Optional(
    Type.Array(idOf('slide'), {
      minItems: 1,
      description: 'The slides whose images are copied; default: every slide of the study that has one.',
    }),
  ),
});

/** What `:streamProgress` sends, for the API document: the data of its events are objects in JSON. */
export const ProgressEvents = Type.String({
  description:
    '`progress`: the job record with `bytesPerSecond` and `etaSeconds` (null while nothing is copied), at most 4 a second. `file`: a file record, when its status changed. `end`: the final job record. Every event has an id for Last-Event-ID.',
});
