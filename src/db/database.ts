import pg from 'pg';

/** Whoever only reads or writes single statements takes this; a pool and a connection both are one. */
export interface Db {
  query<R extends pg.QueryResultRow>(query: pg.QueryConfig): Promise<pg.QueryResult<R>>;
}

declare const inTransaction: unique symbol;
/** A connection inside a transaction; only {@link transaction} makes one, so atomic work can ask for it by type. */
export type Tx = Db & { readonly [inTransaction]: true };

/** The role that the service works as: it can append audit events and cannot change them (decisions §7). */
export const SERVICE_ROLE = 'sds_service';

export interface PoolOptions {
  url: string;
  /** Connections at most (default 20: while one write waits for the disk, those of many others can join its flush). */
  max?: number;
  /** Shown in pg_stat_activity. */
  name: string;
  /** How long a statement may take before its connection is given up as dead; default: for ever. */
  queryTimeoutMs?: number;
  /** Called for faults of idle connections, which concern no request. */
  onError?: (error: Error) => void;
}

/**
 * As solid disks and a warm cache have it; sequential reading is 1. By the default of 4, made for turning disks, a batch
 * of some rows by their keys would rather read a whole table of thousands.
 */
const RANDOM_PAGE_COST = 1.1;

pg.types.setTypeParser(pg.types.builtins.INT8, Number);

/** A pool of connections that work as the service's own role. */
export function openPool(options: PoolOptions): pg.Pool {
  const pool = new pg.Pool({
    connectionString: options.url,
    max: options.max ?? 20,
    application_name: options.name,
    options: `-c role=${SERVICE_ROLE} -c timezone=UTC -c random_page_cost=${RANDOM_PAGE_COST}`,
    // 5 s: an unreachable database is answered with 503 before a client gives up.
    connectionTimeoutMillis: 5_000,
    ...(options.queryTimeoutMs === undefined ? {} : { query_timeout: options.queryTimeoutMs }),
    idleTimeoutMillis: 30_000,
  });
  pool.on('error', options.onError ?? (() => {}));
  return pool;
}

/** Runs `work` in one transaction; what it throws rolls everything back. */
export async function transaction<T>(
  pool: Pick<pg.Pool, 'connect'>,
  work: (tx: Tx) => Promise<T>,
  mode: 'READ COMMITTED' | 'REPEATABLE READ READ ONLY' = 'READ COMMITTED',
): Promise<T> {
  const client = await pool.connect();
  let fault: Error | undefined;
  try {
    await client.query(`BEGIN ISOLATION LEVEL ${mode}`);
    const result = await work(client as unknown as Tx);
    await client.query('COMMIT');
    return result;
  } catch (error) {
    fault = error as Error;
    // Whoever does not answer will not answer a ROLLBACK either; without its connection the transaction ends by itself.
    if (isUnavailable(error)) throw error;
    await client.query('ROLLBACK').then(
      () => {
        fault = undefined;
      },
      () => {},
    );
    throw error;
  } finally {
    // A connection that cannot even roll back is of no use to the next request.
    client.release(fault);
  }
}

/** Runs `work` so that a fault of it undoes only its own writes and the transaction can go on. */
export async function savepoint<T>(tx: Tx, work: () => Promise<T>): Promise<T> {
  await tx.query({ text: 'SAVEPOINT before_work' });
  try {
    return await work();
  } catch (error) {
    await tx.query({ text: 'ROLLBACK TO SAVEPOINT before_work' });
    throw error;
  }
}

/** A fault that the database reported, as against one of the way to it. */
export function isDatabaseError(error: unknown): error is pg.DatabaseError {
  return error instanceof pg.DatabaseError;
}

/** Whether the database gave a transaction up for the sake of another (deadlock, serialisation): worth another try. */
export function isWorthRetry(error: unknown): boolean {
  return isDatabaseError(error) && (error.code === '40P01' || error.code === '40001');
}

/** Whether a constraint said no: class 23 of SQLSTATE. */
export function isConstraintViolation(error: unknown): boolean {
  return isDatabaseError(error) && error.code?.startsWith('23') === true;
}

/** Whether the error means that the database cannot be reached or is going away: a 503, worth another try. */
export function isUnavailable(error: unknown): boolean {
  if (isDatabaseError(error)) {
    // FATAL ends the connection, whatever it says. Classes 08 (connection), 57P0x (shutdown), 53300 (too many
    // connections), 25006 (a standby: read-only).
    return error.severity === 'FATAL' || /^(08|57P0|53300|25006)/.test(error.code ?? '');
  }
  const { code, message } = error as NodeJS.ErrnoException;
  return (
    ['ECONNREFUSED', 'ECONNRESET', 'ENOENT', 'EPIPE', 'ETIMEDOUT', 'EHOSTUNREACH', 'ENOTFOUND', 'EAI_AGAIN'].includes(
      code ?? '',
    ) ||
    /Connection terminated|Query read timeout|timeout exceeded when trying to connect|not queryable/i.test(
      message ?? '',
    )
  );
}
