import { Socket } from 'node:net';
import type { Readable } from 'node:stream';
import pg from 'pg';
import { to as copyTo } from 'pg-copy-streams';
import { SERVICE_ROLE } from '../db/database.ts';
import { codesMembers } from '../studies/codes-queries.ts';
import { childKinds, type Kind, kinds, memberList, parentJoins } from '../studies/kinds.ts';

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
    return this.#client.query(copyTo(text));
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

/** Byte before the number of scores in a row of {@link copyRecords}: JSON text holds no control characters. */
export const SCORES_MARK = 0x01;

/** Records of a kind in creation order (decisions §4). */
function recordsOf(kind: Kind, studyId: string): string {
  return `select ${memberList(kind)} from ${kind.collection} r ${parentJoins(kind, 'planned')}
    where r.study_id = ${studyId} order by r.created_date, r.${kind.idColumn}`;
}

/** The scores that hang on the record `q`: those of a subject have no organ (decisions §4). */
const ownScores: Record<string, string> = {
  subject: 'r.subject_id = q."subjectId" and r.organ_id is null',
  organ: 'r.subject_id = q."subjectId" and r.organ_id = q."organId"',
};

/** Rows of JSON text and number of scores: the record as the API returns it, with the array `scores`. */
function withScores(kind: Kind, studyId: string): string {
  const score: Kind = kinds.score;
  return `select row_to_json((select t from (select q.*, x.scores) t))::text, x.n
    from (${recordsOf(kind, studyId)}) q cross join lateral (
      select coalesce(json_agg(row_to_json(c) order by c."createdDate", c."scoreId"), '[]') as scores, count(*) as n
      from (select ${memberList(score)} from scores r ${parentJoins(score, 'planned')}
        where r.study_id = ${studyId} and ${ownScores[kind.name]}) c) x`;
}

/**
 * All records of a kind as lines of JSON text, made by the very expressions that the API reads by. A line of a subject
 * or organ ends in {@link SCORES_MARK} and the number of its scores.
 */
export function copyRecords(snapshot: Snapshot, what: Kind | 'codes', studyId: string): Readable {
  const id = pg.escapeLiteral(studyId);
  const rows =
    what === 'codes'
      ? `select row_to_json(q)::text from (select ${codesMembers} from codes r where r.study_id = ${id}) q`
      : ownScores[what.name]
        ? withScores(what, id)
        : `select row_to_json(q)::text from (${recordsOf(what, id)}) q`;
  // CSV whose delimiter and quote cannot occur leaves the text as it is: nothing to undo.
  return snapshot.copy(`copy (${rows}) to stdout (format csv, delimiter e'\\x01', quote e'\\x02')`);
}

/** The attributes of all records of a kind as they are stored, in any order, in binary form. */
export function copyAttributes(snapshot: Snapshot, kind: Kind, studyId: string): Readable {
  const rows = `select attributes from ${kind.collection} where study_id = ${pg.escapeLiteral(studyId)}`;
  return snapshot.copy(`copy (${rows}) to stdout (format binary)`);
}

/** Expressions over the records of a kind, in creation order and binary form. */
export function copyFields(snapshot: Snapshot, kind: Kind, expressions: string[], studyId: string): Readable {
  const rows = `select ${expressions.join(', ')} from ${kind.collection} r ${parentJoins(kind, 'planned')}
    where r.study_id = ${pg.escapeLiteral(studyId)} order by r.created_date, r.${kind.idColumn}`;
  return snapshot.copy(`copy (${rows}) to stdout (format binary)`);
}

type Attributes = Record<string, string | number | boolean | null>;

/** The codes object, as the API returns it. */
export interface Codes {
  codesId: string;
  studyId: string;
  codeLists: Record<string, { code: string; label: string; attributes?: Attributes }[]>;
  attributes: Attributes;
  createdDate: string;
  updatedDate: string;
  version: number;
}

/** The codes object; null where the study has none. */
export async function findCodes(snapshot: Snapshot, studyId: string): Promise<Codes | null> {
  const text = `select row_to_json(q) as record from (select ${codesMembers} from codes r where r.study_id = $1) q`;
  const [row] = await snapshot.query<{ record: Codes }>(text, [studyId]);
  return row?.record ?? null;
}
