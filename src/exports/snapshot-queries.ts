import { Socket } from 'node:net';
import type { Readable } from 'node:stream';
import pg from 'pg';
import { SERVICE_ROLE } from '../db/database.ts';
import { codesMembers } from '../studies/codes-queries.ts';
import { childKinds, type Kind, kinds, memberList, parentJoins } from '../studies/kinds.ts';
import { CopyOut } from './copy-out.ts';
import type { ExportedKind } from './records.ts';

/** Records of a study by kind, as counted in a snapshot. */
export interface Counts {
  study: number;
  subject: number;
  organ: number;
  slide: number;
  finding: number;
  score: number;
  codes: number;
}

/**
 * Settings of a snapshot's session.
 * - A scan in index order with look-ups of parents gives the first row at once and sorts nothing, so that neither
 *   memory nor temporary files grow with the study; look-ups are remembered in `work_mem`.
 * - No parallel workers and no JIT: an export leaves the other cores to those who wait for an answer.
 * - Every second (where the system can) the server looks whether we are still there, so that an export that was
 *   interrupted ends there too.
 */
const SETTINGS = {
  enable_hashjoin: 'off',
  enable_mergejoin: 'off',
  enable_sort: 'off',
  work_mem: '32MB',
  max_parallel_workers_per_gather: '0',
  jit: 'off',
  statement_timeout: '0',
  idle_in_transaction_session_timeout: '0',
};

/** One point in time of the database, on a connection of its own (decisions §4); writers are not held up by it. */
export class Snapshot {
  readonly #client: pg.Client;
  readonly #end: () => void;

  constructor(client: pg.Client, end: () => void) {
    this.#client = client;
    this.#end = end;
  }

  async query<R extends pg.QueryResultRow>(text: string, values: unknown[] = []): Promise<R[]> {
    const { rows } = await this.#client.query<R>(text, values);
    return rows;
  }

  /** Output of a COPY as it comes; one after the other. */
  copy(text: string): Readable {
    const output = this.#client.query(new CopyOut(text));
    // Whoever reads it hears of it, also who begins only after it broke.
    output.on('error', () => {});
    return output;
  }

  /** Lets go of the connection, also in the middle of a copy. */
  close(): void {
    this.#end();
  }
}

/** Opens a snapshot of the moment; when the signal aborts, its connection breaks. */
export async function openSnapshot(url: string, signal: AbortSignal): Promise<Snapshot> {
  signal.throwIfAborted();
  const socket = new Socket();
  const client = new pg.Client({
    connectionString: url,
    application_name: 'sds export',
    options: `-c role=${SERVICE_ROLE} -c timezone=UTC`,
    connectionTimeoutMillis: 10_000,
    stream: () => socket,
  });
  client.on('error', () => {}); // the query under way rejects with it
  // Not `client.end()`, which waits for the server to take our good-bye: it may be busy sending us rows.
  const end = () => {
    signal.removeEventListener('abort', end);
    socket.destroy();
  };
  signal.addEventListener('abort', end);
  try {
    await client.connect();
    // PostgreSQL refuses it where the operating system cannot tell.
    await client.query("set client_connection_check_interval = '1s'").catch(() => {});
    const settings = Object.entries(SETTINGS).map(([name, value]) => `set local ${name} = '${value}'`);
    await client.query(`begin isolation level repeatable read read only; ${settings.join('; ')}`);
    return new Snapshot(client, end);
  } catch (error) {
    end();
    throw error;
  }
}

/** What the counters say (record_counts of migration 0001): at once, however many records there are. */
export async function sumCounters(snapshot: Snapshot, studyId: string): Promise<Counts> {
  const counted = childKinds.map(
    ({ name }) => `coalesce(sum(n) filter (where kind = '${name}'), 0)::bigint as "${name}"`,
  );
  const text = `select (select count(*) from studies where study_id = $1) as study, ${counted.join(', ')},
    (select count(*) from codes where study_id = $1) as codes from record_counts where study_id = $1`;
  const [row] = await snapshot.query<Counts & pg.QueryResultRow>(text, [studyId]);
  return row as Counts;
}

/** The records themselves, counted. */
export async function countRecords(snapshot: Snapshot, studyId: string): Promise<Counts> {
  const counted = [...childKinds, { name: 'codes', collection: 'codes' }].map(
    ({ name, collection }) => `(select count(*) from ${collection} where study_id = $1) as "${name}"`,
  );
  const text = `select (select count(*) from studies where study_id = $1) as study, ${counted.join(', ')}`;
  const [row] = await snapshot.query<Counts & pg.QueryResultRow>(text, [studyId]);
  return row as Counts;
}

/** SQL of the attributes without those that the service manages. */
export const storedAttributes = 'r.attributes';

/** SQL of the fields of a record, in the order of its members. */
function fieldsOf({ members, managedKeys }: ExportedKind): string[] {
  const managed = managedKeys.map(({ sql }) => sql);
  return members.flatMap((member) => {
    if (member === 'attributes') return [...managed, storedAttributes];
    return 'group' in member ? member.members.map(({ sql }) => sql) : [member.sql];
  });
}

/** The scores that hang on the record `p`: those of a subject have no organ (decisions §4). */
const ownScores: Record<string, string> = {
  subject: 'r.subject_id = p.subject_id and r.organ_id is null',
  organ: 'r.subject_id = p.subject_id and r.organ_id = p.organ_id',
};

/** Whether scores stand in the records of this kind. */
export function hasScores(kind: Kind): boolean {
  return kind.name in ownScores;
}

/** Joins `x`: the scores of a record as a JSON array in creation order, and their number. */
function scoresJoin(kind: Kind, studyId: string): string {
  const score: Kind = kinds.score;
  const ids = kind.name === 'organ' ? 'r.subject_id, r.organ_id' : 'r.subject_id';
  // A join of its own for the ids, as the scores are called `r` too.
  return `cross join lateral (select ${ids}) p cross join lateral (
    select coalesce(json_agg(row_to_json(c) order by c."createdDate", c."scoreId"), '[]') as scores, count(*) as n
    from (select ${memberList(score)} from scores r ${parentJoins(score, 'planned')}
      where r.study_id = ${studyId} and ${ownScores[kind.name]}) c) x`;
}

function copy(snapshot: Snapshot, kind: Kind, fields: string[], studyId: string, join = ''): Readable {
  const rows = `select ${fields.join(', ')} from ${kind.collection} r ${parentJoins(kind, 'planned')} ${join}
    where r.study_id = ${pg.escapeLiteral(studyId)} order by r.created_date, r.${kind.idColumn}`;
  return snapshot.copy(`copy (${rows}) to stdout (format binary)`);
}

/** All records of a kind in creation order; behind those of subjects and organs, their scores and the number of them. */
export function copyRecords(snapshot: Snapshot, exported: ExportedKind, studyId: string): Readable {
  const { kind } = exported;
  const fields = fieldsOf(exported);
  if (!hasScores(kind)) return copy(snapshot, kind, fields, studyId);
  return copy(snapshot, kind, [...fields, 'x.scores', 'x.n'], studyId, scoresJoin(kind, pg.escapeLiteral(studyId)));
}

/** All records of a kind in creation order, these fields of them. */
export function copyFields(snapshot: Snapshot, kind: Kind, fields: string[], studyId: string): Readable {
  return copy(snapshot, kind, fields, studyId);
}

/** The attributes of all records of a kind as they are stored, in any order. */
export function copyAttributes(snapshot: Snapshot, kind: Kind, studyId: string): Readable {
  const rows = `select attributes from ${kind.collection} where study_id = ${pg.escapeLiteral(studyId)}`;
  return snapshot.copy(`copy (${rows}) to stdout (format binary)`);
}

/** The codes object as the API returns it; null where the study has none. */
export async function codesText(snapshot: Snapshot, studyId: string): Promise<string | null> {
  const text = `select row_to_json(q)::text as record from (select ${codesMembers} from codes r where r.study_id = $1) q`;
  const [row] = await snapshot.query<{ record: string }>(text, [studyId]);
  return row?.record ?? null;
}
