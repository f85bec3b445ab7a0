/** What the worker thread tells of itself, for log lines and metrics of the process. */
export type Report =
  | { type: 'log'; level: 'debug' | 'info' | 'warn' | 'error'; message: string; fields: Record<string, unknown> }
  /** A job came to an end here: done, failed, or left for another worker. */
  | { type: 'job'; kind: string; outcome: 'finished' | 'failed' | 'stopped' | 'cancelled' | 'lost'; seconds: number }
  /** Jobs that run here right now. */
  | { type: 'running'; count: number };

export type Tell = (report: Report) => void;

/** Fields of a log line about an error. */
export function errorFields(error: unknown): Record<string, unknown> {
  const { name, message, stack, cause } = error as Error;
  return { err: { type: name, message, stack, ...(cause ? { cause: String(cause) } : {}) } };
}
