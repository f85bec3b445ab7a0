import { createHash } from 'node:crypto';
import type { Fault } from '../lib/problem.ts';

/** decisions §5. */
const MAX_KEY_LENGTH = 255;

/**
 * The Idempotency-Key of a request, bare or as a quoted string (RFC 8941 §3.3.3, as the IETF draft has it); null without
 * one. A fault where it is empty, too long, or a quoted string that does not end.
 */
export function idempotencyKey(header: string | string[] | undefined): { key: string | null; fault: Fault | null } {
  if (header === undefined) return { key: null, fault: null };
  const fault = (detail: string) => ({ key: null, fault: { header: 'Idempotency-Key', detail } });
  const value = String(header).trim();
  const quoted = /^"((?:[^"\\]|\\["\\])*)"$/.exec(value)?.[1]?.replace(/\\(["\\])/g, '$1');
  if (value.startsWith('"') && quoted === undefined) return fault('is not a quoted string');
  const key = quoted ?? value;
  if (key.length < 1 || key.length > MAX_KEY_LENGTH) return fault(`must have 1 to ${MAX_KEY_LENGTH} characters`);
  return { key, fault: null };
}

/** SHA-256 of a key. */
export function keyHash(key: string): Buffer {
  return createHash('sha256').update(key).digest();
}

/** SHA-256 of a body, whatever the order of its members. */
export function bodyHash(body: unknown): Buffer {
  const sorted = (_: string, value: unknown) =>
    value !== null && typeof value === 'object' && !Array.isArray(value)
      ? Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1)))
      : value;
  return createHash('sha256').update(JSON.stringify(body, sorted)).digest();
}
