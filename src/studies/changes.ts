type Json = Record<string, unknown>;

/** Members that change with every write and say nothing of what was changed. */
const BOOKKEEPING = new Set(['updatedDate', 'version']);

function same(a: unknown, b: unknown): boolean {
  return a === b || JSON.stringify(a) === JSON.stringify(b);
}

/** What differs between two maps, on both sides; keys may be anything, `__proto__` too. */
function difference(before: Json, after: Json, skip: ReadonlySet<string>): { before: Json; after: Json } {
  const changed = { before: Object.create(null) as Json, after: Object.create(null) as Json };
  for (const key of new Set([...Object.keys(before), ...Object.keys(after)])) {
    const had = Object.hasOwn(before, key);
    const has = Object.hasOwn(after, key);
    if (skip.has(key) || (had && has && same(before[key], after[key]))) continue;
    if (had) changed.before[key] = before[key];
    if (has) changed.after[key] = after[key];
  }
  return changed;
}

/** The `changes` of an update's audit event: only the members that changed, of attributes only the keys (decisions §7). */
export function changesOf(before: Json, after: Json): { before: Json; after: Json } {
  const changed = difference(before, after, BOOKKEEPING);
  if ('attributes' in changed.before || 'attributes' in changed.after) {
    const attributes = difference((before.attributes ?? {}) as Json, (after.attributes ?? {}) as Json, new Set());
    changed.before.attributes = attributes.before;
    changed.after.attributes = attributes.after;
  }
  return changed;
}
