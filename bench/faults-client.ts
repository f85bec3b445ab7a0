import { setTimeout as sleep } from 'node:timers/promises';

/** An answer, read to its end. */
export interface Answer {
  status: number;
  headers: Headers;
  bytes: Buffer;
}

/** Calls the service below /api/v1; rejects where the connection or the answer broke off. */
export type Ask = (method: string, path: string, body?: unknown, headers?: Record<string, string>) => Promise<Answer>;

/** An export job, as far as the bench looks at it. */
export interface ExportJob {
  exportId: string;
  format: 'JSON' | 'XLSX';
  exportStatus: { status: string; recordsWritten: number; totalRecords: number | null };
  download: { downloadUrl: string | null };
  fileSizeBytes: number | null;
  sha256: string | null;
  errorMessage: string | null;
}

/** An image job, as far as the bench looks at it. */
export interface ImageJob {
  jobId: string;
  status: string;
  attempt: number;
  files: { total: number; completed: number; skipped: number };
  bytes: { total: number; transferred: number };
  errorMessage: string | null;
}

export function asker(url: string, token: string): Ask {
  return async (method, path, body, headers = {}) => {
    const response = await fetch(`${url}${path}`, {
      method,
      headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json', ...headers },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    return { status: response.status, headers: response.headers, bytes: Buffer.from(await response.arrayBuffer()) };
  };
}

export function bodyOf<T>(answer: Answer): T {
  return JSON.parse(answer.bytes.toString()) as T;
}

/** Two minutes: a start after a kill takes a second, and a takeover up to 30 s. */
const PATIENCE_MS = 120_000;

/** Asks until there is an answer: again where it broke off, and where the service says that it is not there yet. */
export function patient(ask: Ask): Ask {
  return async (method, path, body, headers) => {
    for (const began = performance.now(); ; await sleep(100)) {
      const answer = await ask(method, path, body, headers).catch(() => null);
      if (answer && answer.status !== 503) return answer;
      if (performance.now() - began > PATIENCE_MS) throw new Error(`${method} ${path}: no answer for two minutes`);
    }
  };
}

/** The body of an answer that must be of this status. */
export async function expectBody<T>(status: number, answering: Promise<Answer>): Promise<T> {
  const answer = await answering;
  if (answer.status !== status) throw new Error(`${answer.status} instead of ${status}: ${answer.bytes}`);
  return bodyOf<T>(answer);
}

/** Looks until there is something to be seen; null after `seconds`. */
export async function eventually<T>(look: () => Promise<T | null | false>, seconds: number): Promise<T | null> {
  for (const began = performance.now(); ; await sleep(100)) {
    const seen = await look();
    if (seen) return seen;
    if (performance.now() - began > seconds * 1_000) return null;
  }
}

/** Waits for the end of an image job. */
export async function endedImageJob(ask: Ask, jobId: string, seconds: number): Promise<ImageJob> {
  const job = await eventually(async () => {
    const now = await expectBody<ImageJob>(200, ask('GET', `/image/jobs/${jobId}`));
    return ['COMPLETED', 'FAILED', 'PARTIAL'].includes(now.status) && now;
  }, seconds);
  if (!job) throw new Error(`the image job ${jobId} did not end within ${seconds} s`);
  return job;
}

/** Waits for the end of an export. */
export async function endedExport(ask: Ask, studyId: string, exportId: string, seconds: number): Promise<ExportJob> {
  const job = await eventually(async () => {
    const now = await expectBody<ExportJob>(200, ask('GET', `/studies/${studyId}/exports/${exportId}`));
    return ['COMPLETED', 'FAILED'].includes(now.exportStatus.status) && now;
  }, seconds);
  if (!job) throw new Error(`the export ${exportId} did not end within ${seconds} s`);
  return job;
}
