/** Every scope and what it allows (decisions §6). */
export const scopes = {
  'Study:Read': 'Read study data and exports, download export files and slide images.',
  'Study:Write': 'Create and update study data, run bulk actions, start exports.',
  'Study:Delete': 'Delete study data, cancel and delete exports.',
  'Image:Read': 'Read image jobs, their files and their progress.',
  'Image:Write': 'Start, retry and cancel image jobs.',
  'Credential:Read': 'Read cloud credentials, never their secrets.',
  'Credential:Write': 'Create, update and validate cloud credentials.',
  'Credential:Delete': 'Delete cloud credentials.',
  'Audit:Read': 'Read audit events.',
} as const;

export type Scope = keyof typeof scopes;

/** All scopes, in the order in which they are always told. */
export const scopeNames = Object.keys(scopes) as readonly Scope[];

/** A scope that does not exist; the message lists those that do. */
export class UnknownScope extends Error {
  override name = 'UnknownScope';
}

export function isScope(name: string): name is Scope {
  return Object.hasOwn(scopes, name);
}

/**
 * Reads scopes separated by white space (RFC 6749 §3.3), case-sensitive, in the service's own order and each once.
 * @throws UnknownScope
 */
export function parseScopes(text: string): Scope[] {
  const names = text.split(/\s+/).filter((name) => name !== '');
  const unknown = names.filter((name) => !isScope(name));
  if (unknown.length > 0) {
    // 100 characters of what was sent are enough to see the mistake.
    const which = unknown.join(' ').slice(0, 100);
    const what = unknown.length === 1 ? 'is not a scope' : 'are not scopes';
    throw new UnknownScope(`${JSON.stringify(which)} ${what}. Scopes: ${scopeNames.join(' ')}`);
  }
  return inOrder(names);
}

/** The scopes of `names` that exist, in the service's own order. */
export function inOrder(names: Iterable<string>): Scope[] {
  const given = new Set(names);
  return scopeNames.filter((name) => given.has(name));
}

/** The form of RFC 6749 §3.3: separated by one space. */
export function formatScopes(names: Iterable<string>): string {
  return inOrder(names).join(' ');
}
