import type { IncomingHttpHeaders } from 'node:http';
import { type Fault, Problem } from '../lib/problem.ts';

/** Versions that If-Match names, or `*` for any (RFC 9110 §13.1.1). */
export type IfMatch = '*' | ReadonlySet<string>;

/** 1,000 characters: decisions §7. */
const MAX_REASON_LENGTH = 1_000;

/** The entity tag of a record's version (decisions §1). */
export function etagOf(version: number): string {
  return `"${version}"`;
}

/** Reads If-Match; a value that is no list of entity tags adds a fault. */
export function parseIfMatch(value: string | undefined, malformed: Fault[]): IfMatch | null {
  if (value === undefined) return null;
  const text = value.trim();
  if (text === '*') return '*';
  if (!/^(W\/)?"[^"]*"(\s*,\s*(W\/)?"[^"]*")*$/.test(text)) {
    malformed.push({ header: 'If-Match', detail: 'must be * or entity tags in double quotes, as ETag gives them' });
    return null;
  }
  // Weak tags never match by the strong comparison that If-Match asks for.
  return new Set(text.match(/(W\/)?"[^"]*"/g) ?? []);
}

/** Throws the 412 when the client asked for another version than there is. */
export function checkVersion(ifMatch: IfMatch | null, version: number): void {
  if (ifMatch === null || ifMatch === '*' || ifMatch.has(etagOf(version))) return;
  throw new Problem('precondition-failed', `The record has version ${version} by now; read it again.`);
}

/** Header values arrive as Latin-1; most clients send UTF-8 in them. */
function decode(value: string): string {
  const bytes = Buffer.from(value, 'latin1');
  const text = bytes.toString('utf8');
  return text.includes('\ufffd') ? value : text;
}

/** The client's X-Change-Reason (decisions §7), null when absent or empty; a fault where it is too long. */
export function changeReason(headers: IncomingHttpHeaders): { reason: string | null; fault: Fault | null } {
  const value = headers['x-change-reason'];
  if (typeof value !== 'string' || value.trim() === '') return { reason: null, fault: null };
  const reason = decode(value);
  if ([...reason].length <= MAX_REASON_LENGTH) return { reason, fault: null };
  return {
    reason: null,
    fault: { header: 'X-Change-Reason', detail: `must have at most ${MAX_REASON_LENGTH} characters` },
  };
}
