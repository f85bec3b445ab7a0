/**
 * A study that cannot be read: which file, which row of it (1-based; null where the fault is of the whole file) and why.
 * The message says all three (decisions §9).
 */
export class SendError extends Error {
  override readonly name = 'SendError';
  readonly file: string;
  readonly record: number | null;
  readonly reason: string;

  constructor(file: string, record: number | null, reason: string, options?: ErrorOptions) {
    super(record === null ? `${file}: ${reason}` : `${file}, record ${record}: ${reason}`, options);
    this.file = file;
    this.record = record;
    this.reason = reason;
  }
}
