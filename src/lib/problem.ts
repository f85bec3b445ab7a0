/** The kinds of problem: name in `/errors/{name}` → status and title (interface.md §7, decisions §8). */
export const problemKinds = {
  'bad-request': { status: 400, title: 'Bad request' },
  unauthorized: { status: 401, title: 'Unauthorized' },
  forbidden: { status: 403, title: 'Forbidden' },
  'not-found': { status: 404, title: 'Not found' },
  'method-not-allowed': { status: 405, title: 'Method not allowed' },
  conflict: { status: 409, title: 'Conflict' },
  gone: { status: 410, title: 'Gone' },
  'precondition-failed': { status: 412, title: 'Precondition failed' },
  'payload-too-large': { status: 413, title: 'Payload too large' },
  'unsupported-media-type': { status: 415, title: 'Unsupported media type' },
  'range-not-satisfiable': { status: 416, title: 'Range not satisfiable' },
  'validation-failed': { status: 422, title: 'Validation failed' },
  'too-many-requests': { status: 429, title: 'Too many requests' },
  internal: { status: 500, title: 'Internal error' },
  unavailable: { status: 503, title: 'Service unavailable' },
} as const;

export type ProblemKind = keyof typeof problemKinds;

/** One fault of a request: where it is (one of the three) and what is wrong (decisions §8). */
export interface Fault {
  /** RFC 6901 pointer into the body. */
  pointer?: string;
  /** Name of a path or query parameter. */
  parameter?: string;
  /** Name of a request header. */
  header?: string;
  /** What is wrong with it, for a person. */
  detail: string;
}

/** An answer that is not a success, thrown by whoever finds out; one place renders it (RFC 9457). */
export class Problem extends Error {
  readonly kind: ProblemKind;
  readonly faults: Fault[];
  /** Further headers of the answer, such as `Allow` or `Retry-After`. */
  readonly headers: Record<string, string>;

  constructor(
    kind: ProblemKind,
    detail: string,
    options: { faults?: Fault[]; headers?: Record<string, string>; cause?: unknown } = {},
  ) {
    super(detail, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = 'Problem';
    this.kind = kind;
    this.faults = options.faults ?? [];
    this.headers = options.headers ?? {};
  }

  get status(): number {
    return problemKinds[this.kind].status;
  }
}

/** A 404 for a record; `what` is its name in the interface (`subject`). */
export function notFound(what: string): Problem {
  return new Problem('not-found', `There is no such ${what}.`);
}

/** A 409: the request is right but conflicts with what is there. */
export function conflict(detail: string, faults: Fault[] = []): Problem {
  return new Problem('conflict', detail, { faults });
}

/** A 400 or 422 that lists all its faults; the detail is the only fault, or counts them. */
export function rejected(kind: 'bad-request' | 'validation-failed', faults: Fault[]): Problem {
  const [first] = faults;
  const where = first?.pointer ?? first?.parameter ?? first?.header;
  const detail =
    faults.length === 1 && first
      ? `${where ? `${where}: ` : ''}${first.detail}`
      : `The request has ${faults.length} faults; see errors.`;
  return new Problem(kind, detail, { faults });
}
