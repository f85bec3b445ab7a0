/** What a request asks for, as faults and counters know it. */
export type Operation =
  | 'bucket'
  | 'list'
  | 'head'
  | 'get'
  | 'put'
  | 'copy'
  | 'delete'
  | 'create'
  | 'part'
  | 'complete'
  | 'abort'
  | 'uploads';

export type Failure =
  /** 503 SlowDown, 500 InternalError, 403 AccessDenied. */
  | 'slow-down'
  | 'internal'
  | 'denied'
  /** The connection is reset. */
  | 'reset'
  /** Nothing more is sent (or read) until the fault is removed. */
  | 'hang'
  /** One bit of the body is flipped on its way. */
  | 'corrupt'
  /** The answer's body ends early. */
  | 'truncate'
  /** The work is done, but the connection is reset instead of the answer. */
  | 'lose-answer';

export interface Fault {
  on: Operation | Operation[];
  does: Failure;
  /** Bytes of the body that pass before it happens (reset, hang, corrupt, truncate). Default 0; for `get` 0 = no headers. */
  afterBytes?: number;
  /** Requests that it lets pass first. Default 0. */
  after?: number;
  /** How often it happens. Default 1; Infinity until removed. */
  times?: number;
  /** Chance of each request to be hit, 0 to 1. Default 1. */
  probability?: number;
  /** Only objects whose key this accepts. */
  key?: (key: string) => boolean;
}

/** A fault that was put in place. */
export interface PlacedFault {
  readonly fault: Fault;
  /** How often it happened. */
  readonly hits: number;
  /** Ends it and lets what hangs by it go on. */
  remove(): void;
  /** Resolves when it is removed. */
  readonly removed: Promise<void>;
}

export interface Faults {
  add(fault: Fault): PlacedFault;
  /** Removes all and releases all that hangs. */
  clear(): void;
  /** Takes the fault that this request meets, if any. */
  take(operation: Operation, key: string): PlacedFault | null;
}

export function createFaults(random: () => number = Math.random): Faults {
  const placed = new Set<PlacedFault & { hits: number; passed: number }>();
  return {
    add(fault) {
      let release = () => {};
      const removed = new Promise<void>((resolve) => {
        release = resolve;
      });
      const entry = {
        fault,
        hits: 0,
        passed: 0,
        removed,
        remove: () => {
          placed.delete(entry);
          release();
        },
      };
      placed.add(entry);
      return entry;
    },
    clear() {
      for (const entry of placed) entry.remove();
    },
    take(operation, key) {
      for (const entry of placed) {
        const { on, after = 0, times = 1, probability = 1, key: accepts } = entry.fault;
        if (![on].flat().includes(operation) || entry.hits >= times || (accepts && !accepts(key))) continue;
        if (entry.passed++ < after || random() >= probability) continue;
        entry.hits++;
        return entry;
      }
      return null;
    },
  };
}
