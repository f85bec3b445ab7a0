import { type TObject, Type } from 'typebox';
import { isId } from '../lib/id.ts';
import { Problem } from '../lib/problem.ts';

/** interface.md §8. */
const DEFAULT_PAGE_SIZE = 25;
const MAX_PAGE_SIZE = 100;

/** A place in a sorted list, so that walking costs the same however deep (decisions §3). */
interface Cursor {
  /** Which of the two links this came from. */
  direction: 'next' | 'prev';
  pageNumber: number;
  pageSize: number;
  sort: string;
  sortDirection: string;
  /** Sort value and id of the record at the edge of the page that the link stood on. */
  key: string;
  id: string;
}

export interface PageRequest {
  pageNumber: number;
  pageSize: number;
  sort: string;
  sortDirection: 'ASC' | 'DESC';
  /** Present when it belongs to this very page: a link whose other parameters were edited falls back to counting. */
  cursor: Cursor | null;
}

/** Query parameters of every list (interface.md §4), besides its filters. */
export function pageParameters(sorts: string[]): TObject['properties'] {
  return {
    pageNumber: Type.Optional(Type.Integer({ minimum: 1, default: 1, description: 'Page, 1-based.' })),
    pageSize: Type.Optional(
      Type.Integer({ minimum: 1, maximum: MAX_PAGE_SIZE, default: DEFAULT_PAGE_SIZE, description: 'Items a page.' }),
    ),
    sort: Type.Optional(Type.Enum(sorts, { default: sorts[0], description: 'What the list is sorted by.' })),
    sortDirection: Type.Optional(Type.Enum(['ASC', 'DESC'], { default: 'ASC', description: 'Direction of the sort.' })),
    cursor: Type.Optional(
      Type.String({ description: 'Opaque; stands in links and makes walking the pages equally fast however deep.' }),
    ),
  };
}

/** The page that checked query parameters ask for. */
export function pageRequest(query: Record<string, unknown>, defaultSort: string): PageRequest {
  const page: PageRequest = {
    pageNumber: (query.pageNumber as number | undefined) ?? 1,
    pageSize: (query.pageSize as number | undefined) ?? DEFAULT_PAGE_SIZE,
    sort: (query.sort as string | undefined) ?? defaultSort,
    sortDirection: (query.sortDirection as 'ASC' | 'DESC' | undefined) ?? 'ASC',
    cursor: null,
  };
  const cursor = typeof query.cursor === 'string' ? decodeCursor(query.cursor) : null;
  const belongs =
    cursor !== null &&
    cursor.pageNumber === page.pageNumber &&
    cursor.pageSize === page.pageSize &&
    cursor.sort === page.sort &&
    cursor.sortDirection === page.sortDirection;
  return belongs ? { ...page, cursor } : page;
}

function encodeCursor(cursor: Cursor): string {
  const { direction, pageNumber, pageSize, sort, sortDirection, key, id } = cursor;
  return Buffer.from(JSON.stringify([direction, pageNumber, pageSize, sort, sortDirection, key, id])).toString(
    'base64url',
  );
}

/** Whether the text is a timestamp as the service writes it, of a year that the database knows. */
function isTimestamp(text: string): boolean {
  const date = new Date(text);
  return !Number.isNaN(date.getTime()) && date.toISOString() === text && /^(?!0000)\d{4}-/.test(text);
}

function decodeCursor(text: string): Cursor {
  try {
    const [direction, pageNumber, pageSize, sort, sortDirection, key, id] = JSON.parse(
      Buffer.from(text, 'base64url').toString('utf8'),
    ) as [unknown, number, number, string, string, unknown, unknown];
    const sound = typeof key === 'string' && (/Date$/.test(sort) ? isTimestamp(key) : !key.includes('\0'));
    if ((direction === 'next' || direction === 'prev') && sound && typeof id === 'string' && isId(id)) {
      return { direction, pageNumber, pageSize, sort, sortDirection, key, id };
    }
  } catch {
    // Falls through to the problem: whatever is wrong with it, the client cannot mend it.
  }
  const detail = 'is not a cursor of this service; take it from links as it is';
  throw new Problem('bad-request', `cursor: ${detail}.`, { faults: [{ parameter: 'cursor', detail }] });
}

/** A page of a list: its items as joined JSON text, and where it lies. */
export interface Page {
  items: string;
  totalItems: number;
  request: PageRequest;
  next: string | null;
  prev: string | null;
  hasNext: boolean;
}

interface PageRow {
  items: string | null;
  count: number;
  more: boolean;
  total: number;
  first: [string, string] | null;
  last: [string, string] | null;
}

/**
 * SELECT list of one page: items, total and edges in one round trip. Appends the values that it needs.
 * With a cursor it reads on from the edge of the neighbouring page, else it counts from the beginning.
 */
export function pageSql(list: {
  members: string;
  /** The table, whose alias is `r`. */
  table: string;
  /** Joins of what the members show besides; they neither add nor remove rows. */
  joins: string;
  where: string;
  /** A scalar query. */
  total: string;
  /** Expressions before the id. */
  sort: string[];
  /** Member that shows the sort value. */
  keyMember: string;
  idColumn: string;
  idMember: string;
  request: PageRequest;
  values: unknown[];
}): { text: string; page: PageRequest } {
  const { request, values } = list;
  const { cursor, pageSize } = request;
  const backward = cursor?.direction === 'prev';
  const descending = (request.sortDirection === 'DESC') !== backward;
  const direction = descending ? 'desc' : 'asc';
  const order = [...list.sort, list.idColumn].map((expression) => `${expression} ${direction}`).join(', ');
  const conditions = [list.where];
  let offset = '';
  if (cursor) {
    const key = /Date$/.test(request.sort)
      ? `$${values.push(cursor.key)}::timestamptz`
      : `$${values.push(cursor.key)}::text`;
    const id = `$${values.push(cursor.id)}`;
    const edge = list.sort.map((expression) => (expression.startsWith('left(') ? `left(${key}, 200)` : key));
    conditions.push(
      `(${[...list.sort, list.idColumn].join(', ')}) ${descending ? '<' : '>'} (${[...edge, id].join(', ')})`,
    );
  } else if (request.pageNumber > 1) {
    offset = `offset $${values.push((request.pageNumber - 1) * pageSize)}`;
  }
  // The page size is part of the text, so that the planner knows how few rows are wanted. One row more than the page
  // tells whether there is a next one.
  // The joins come after the limit: they are for the rows of the page alone, whatever the planner thinks of their number.
  const limited = `select r.* from ${list.table} r where ${conditions.join(' and ')} order by ${order} limit ${pageSize + 1} ${offset}`;
  const rows = `select ${list.members} from (${limited}) r ${list.joins} order by ${order}`;
  const edge = (at: string) =>
    `array[(array_agg(q."${list.keyMember}"))[${at}], (array_agg(q."${list.idMember}"))[${at}]]`;
  const kept = `least(count(*), ${pageSize})`;
  const text = `p.*, (${list.total}) as total from (
    select string_agg(item, ',' order by case when ${backward} then -n else n end) filter (where n <= ${pageSize}) as items,
      ${kept} as count, count(*) > ${pageSize} as more,
      ${edge(backward ? kept : '1::bigint')} as first, ${edge(backward ? '1::bigint' : kept)} as last
    from (select row_to_json(q)::text as item, row_number() over () as n, q."${list.keyMember}", q."${list.idMember}" from (${rows}) q) q) p`;
  return { text, page: request };
}

/** The page that a row of {@link pageSql} stands for, with the cursors of its neighbours. */
export function pageOf(row: PageRow, request: PageRequest): Page {
  const { pageNumber, pageSize, sort, sortDirection } = request;
  const cursor = (direction: 'next' | 'prev', edge: [string, string] | null): string | null => {
    if (!edge || row.count === 0) return null;
    const [key, id] = edge;
    const neighbour = direction === 'next' ? pageNumber + 1 : pageNumber - 1;
    return encodeCursor({ direction, pageNumber: neighbour, pageSize, sort, sortDirection, key, id });
  };
  return {
    items: row.items ?? '',
    totalItems: row.total,
    request,
    // A page that was reached backwards has the one it was reached from after it.
    hasNext: request.cursor?.direction === 'prev' ? row.count > 0 : row.more,
    next: cursor('next', row.last),
    prev: cursor('prev', row.first),
  };
}
