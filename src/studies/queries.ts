import type { Db, Tx } from '../db/database.ts';
import { type Page, type PageRequest, pageOf, pageSql } from '../db/paging.ts';
import { prepared } from '../db/statement.ts';
import type { EventWriter } from '../http/gate.ts';
import { type Kind, memberList, parentJoins } from './kinds.ts';

/** A record as JSON text, the way it leaves the service, and its version for the ETag. */
export interface StoredRecord {
  record: string;
  version: number;
}

/** Makes SQL once per kind: the texts are long and the kinds are six. */
function perKind(make: (kind: Kind) => string): (kind: Kind) => string {
  const texts = new Map<string, string>();
  return (kind) => {
    let text = texts.get(kind.name);
    if (!text) {
      text = make(kind);
      texts.set(kind.name, text);
    }
    return text;
  };
}

/** Condition that the study `$1` is there. */
const STUDY_EXISTS = 'exists (select from studies t where t.study_id = $1 and t.deleted_date is null)';

/** Rows of a kind that can be seen: below a study that is there, or studies not deleted. */
function visible(kind: Kind): string {
  return kind.name === 'study' ? 'r.deleted_date is null' : `r.study_id = $1 and ${STUDY_EXISTS}`;
}

const findText = perKind(
  (kind) =>
    `select row_to_json(q)::text as record, version from (
      select ${memberList(kind)} from ${kind.collection} r ${parentJoins(kind, 'planned')}
      where r.study_id = $1 and r.${kind.idColumn} = $2 and ${visible(kind)}) q`,
);

/** One record, or null where there is none (a study is found by its id twice). */
export async function findRecord(db: Db, kind: Kind, studyId: string, id: string): Promise<StoredRecord | null> {
  const { rows } = await db.query<StoredRecord>(prepared(findText(kind), [studyId, id]));
  return rows[0] ?? null;
}

const lockText = perKind(
  (
    kind,
  ) => `select from ${kind.collection} r where r.study_id = $1 and r.${kind.idColumn} = any($2) and ${visible(kind)}
    order by r.${kind.idColumn} for update`,
);

/** Locks records until the transaction ends, in one order for all, so that two bulk calls cannot block each other. */
export async function lockRecords(tx: Tx, kind: Kind, studyId: string, ids: string[]): Promise<void> {
  await tx.query(prepared(lockText(kind), [studyId, ids]));
}

/** Whether the study is there. */
export async function studyExists(db: Db, studyId: string): Promise<boolean> {
  const { rows } = await db.query<{ found: boolean }>(prepared(`select ${STUDY_EXISTS} as found`, [studyId]));
  return rows[0]?.found ?? false;
}

/** Adds to the count of a kind in a study (see record_counts in migration 0001), in SQL over `$1` and a number. */
function countSql(kind: Kind, change: string): string {
  const study = kind.name === 'study' ? `''` : '$1';
  return `slot as (select slot from record_counts where study_id = ${study} and kind = '${kind.name}'
      limit 1 for update skip locked),
    counted as (update record_counts c set n = c.n + (${change}) from slot where c.slot = slot.slot returning 1),
    opened as (insert into record_counts (study_id, kind, n) select ${study}, '${kind.name}', (${change})
      where not exists (select from counted) and (${change}) <> 0)`;
}

const insertText = perKind((kind) => {
  const columns = kind.columns.map(({ column }) => column);
  const incoming = kind.columns.map(({ member, type }) => `"${member}" ${type}`);
  // A derived column's member still comes in where a client may send it.
  const values = kind.columns.map(({ member, derived }) => derived ?? `i."${member}"`);
  const child = kind.name !== 'study';
  return `with items as (select * from json_to_recordset($2::json) as i (id text, ${incoming.join(', ')})),
    written as (
      insert into ${kind.collection} (${child ? 'study_id, ' : ''}${kind.idColumn}, ${columns.join(', ')})
      select ${child ? 'st.study_id, ' : ''}i.id, ${values.join(', ')}
      from items i ${child ? 'cross join studies st where st.study_id = $1 and st.deleted_date is null' : 'where $1::text is null'}
      order by i.id
      returning *, ${kind.idColumn} as id),
    ${countSql(kind, 'select count(*) from written')}`;
});

/** One incoming record: its new id and the values of its columns by member. */
export type Item = { id: string } & Record<string, unknown>;

/** As {@link insertRecords}, of records that a call creates. */
export type Insert = (
  db: Db,
  kind: Kind,
  studyId: string | null,
  items: Item[],
  event: EventWriter | null,
) => Promise<StoredRecord[]>;

/**
 * Creates records of one kind, all or none, and their event in the same statement. No rows: the study is not there.
 * Rejects with the database's constraint violation where a reference or a name does not fit.
 */
export async function insertRecords(
  db: Db,
  kind: Kind,
  studyId: string | null,
  items: Item[],
  event: Pick<EventWriter, 'clause'> | null,
): Promise<StoredRecord[]> {
  const clause = event?.clause(3);
  const text = `${insertText(kind)}${clause ? `, ${clause.sql}` : ''}
    select row_to_json(q)::text as record, version from (
      select ${memberList(kind)} from written r ${parentJoins(kind, 'fenced')} order by r.id) q`;
  const { rows } = await db.query<StoredRecord>(
    prepared(text, [studyId, JSON.stringify(items), ...(clause?.values ?? [])]),
  );
  return rows;
}

const updateText = perKind((kind) => {
  const incoming = kind.columns.map(({ member, type }) => `"${member}" ${type}`);
  const sets = kind.columns.map(({ column, member, derived }) => `${column} = ${derived ?? `i."${member}"`}`);
  return `update ${kind.collection} r set ${sets.join(', ')}, version = r.version + 1, updated_date = now()
    from json_to_recordset($2::json) as i (id text, ${incoming.join(', ')}), (select $1::text as study_id) st
    where r.study_id = $1 and r.${kind.idColumn} = i.id`;
});

/** Writes all columns of records that are locked; rejects with the database's constraint violation. */
export async function updateRecords(tx: Tx, kind: Kind, studyId: string, items: Item[]): Promise<void> {
  await tx.query(prepared(updateText(kind), [studyId, JSON.stringify(items)]));
}

/** Which kinds of dependents a record has, as the interface calls them. */
export async function findDependents(tx: Tx, kind: Kind, studyId: string, id: string): Promise<string[]> {
  if (kind.dependents.length === 0) return [];
  const texts = kind.dependents.map(
    ({ table, what }) =>
      `select '${what}' as what where exists (select from ${table} where study_id = $1 and ${kind.idColumn} = $2)`,
  );
  const { rows } = await tx.query<{ what: string }>(prepared(texts.join(' union all '), [studyId, id]));
  return rows.map(({ what }) => what);
}

/** Deletes a record that is locked, lets go of what stays, and marks the bytes of its image for removal. */
export async function deleteRecord(tx: Tx, kind: Kind, studyId: string, id: string): Promise<void> {
  for (const { table, columns } of kind.unlinks) {
    const sets = columns.map((column) => `${column} = null`).join(', ');
    const text = `update ${table} set ${sets}, version = version + 1, updated_date = now()
      where study_id = $1 and ${kind.idColumn} = $2`;
    await tx.query(prepared(text, [studyId, id]));
  }
  if (kind.name === 'slide') {
    const text = `with gone as (delete from images where study_id = $1 and slide_id = $2 returning object_key)
      insert into object_purges (object_key) select object_key from gone on conflict do nothing`;
    await tx.query(prepared(text, [studyId, id]));
  }
  const text = `with written as (
      delete from ${kind.collection} where study_id = $1 and ${kind.idColumn} = $2 returning 1),
    ${countSql(kind, 'select -count(*) from written')} select`;
  await tx.query(prepared(text, [studyId, id]));
}

/** What a list asks for: filters by parameter, and which page. */
export interface ListRequest {
  filters: Record<string, string>;
  page: PageRequest;
}

/** Total of a list without filters: a sum over the few slots of record_counts, whatever the number of records. */
function countedTotal(kind: Kind): string {
  return `select coalesce(sum(n), 0)::bigint from record_counts where study_id = ${kind.name === 'study' ? `''` : '$1'} and kind = '${kind.name}'`;
}

/** A page of records as joined JSON text; null where the study is not there. */
export async function listRecords(
  db: Db,
  kind: Kind,
  studyId: string | null,
  request: ListRequest,
): Promise<Page | null> {
  const values: unknown[] = [studyId];
  const conditions = [visible(kind)];
  for (const [parameter, value] of Object.entries(request.filters)) {
    const filter = kind.filters[parameter];
    if (!filter) continue;
    values.push(value);
    const at = `$${values.length}`;
    conditions.push(
      filter.substring
        ? `position(lower(${at} collate "und-x-icu") in lower(r.${filter.column} collate "und-x-icu")) > 0`
        : `r.${filter.column} = ${at}`,
    );
  }
  const where = conditions.join(' and ');
  const filtered = conditions.length > 1;
  const { text, page } = pageSql({
    members: memberList(kind),
    table: kind.collection,
    joins: parentJoins(kind, 'fenced'),
    where,
    total: filtered ? `select count(*) from ${kind.collection} r where ${where}` : countedTotal(kind),
    sort: kind.sorts[request.page.sort] ?? [],
    keyMember: request.page.sort,
    idColumn: `r.${kind.idColumn}`,
    idMember: kind.idMember,
    request: request.page,
    values,
  });
  const found = kind.name === 'study' ? '$1::text is null' : STUDY_EXISTS;
  // Planned anew with filters, as their selectivity differs from study to study; prepared without.
  const query = { text: `select ${found} as found, ${text}`, values };
  const { rows } = await db.query<{ found: boolean } & Parameters<typeof pageOf>[0]>(
    filtered ? query : prepared(query.text, values),
  );
  const row = rows[0];
  return row?.found ? pageOf(row, page) : null;
}

/** Marks a study as deleted; its children answer 404 from then on, and the purge takes them away. */
export async function markStudyDeleted(tx: Tx, studyId: string): Promise<void> {
  const text = `with written as (update studies set deleted_date = now() where study_id = $1 returning 1),
    slot as (select slot from record_counts where study_id = '' and kind = 'study' limit 1 for update skip locked),
    counted as (update record_counts c set n = n - 1 from slot where c.slot = slot.slot returning 1)
    insert into record_counts (study_id, kind, n) select '', 'study', -1 where not exists (select from counted)`;
  await tx.query(prepared(text, [studyId]));
}

/** The records that ids in bodies may refer to, as far as they exist in the study. */
export async function findReferences(
  db: Db,
  studyId: string,
  ids: { subjects: string[]; organs: string[]; slides: string[] },
): Promise<{ table: string; id: string; subject_id: string | null; organ_id: string | null }[]> {
  const text = `select 'subjects' as table, subject_id as id, subject_id, null as organ_id
      from subjects where study_id = $1 and subject_id = any($2)
    union all select 'organs', organ_id, subject_id, organ_id from organs where study_id = $1 and organ_id = any($3)
    union all select 'slides', slide_id, subject_id, organ_id from slides where study_id = $1 and slide_id = any($4)`;
  const { rows } = await db.query<{ table: string; id: string; subject_id: string | null; organ_id: string | null }>(
    prepared(text, [studyId, ids.subjects, ids.organs, ids.slides]),
  );
  return rows;
}

/** Which of the names (with their subject, for organs) other records of the study hold already. */
export async function findTaken(
  db: Db,
  kind: Kind,
  studyId: string,
  names: { name: string; subjectId: string | null }[],
): Promise<{ id: string; name: string; subjectId: string | null }[]> {
  const column = kind.name === 'slide' ? 'file_name' : 'name';
  const perSubject = kind.name === 'organ';
  const same =
    kind.name === 'slide' ? '(r.study_id || r.file_name) = ($1 || i.name)' : `r.study_id = $1 and r.${column} = i.name`;
  const text = `select r.${kind.idColumn} as id, r.${column} as name, ${perSubject ? 'r.subject_id' : 'null'} as "subjectId"
    from json_to_recordset($2::json) as i (name text, "subjectId" text)
    join ${kind.collection} r on ${same} ${perSubject ? 'and r.subject_id = i."subjectId"' : ''}`;
  const { rows } = await db.query<{ id: string; name: string; subjectId: string | null }>(
    prepared(text, [studyId, JSON.stringify(names)]),
  );
  return rows;
}
