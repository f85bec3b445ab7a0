/** Appends a member name or an index to a JSON Pointer (RFC 6901 §3). */
export function pointerTo(parent: string, token: string | number): string {
  const text = String(token);
  return `${parent}/${/[~/]/.test(text) ? text.replaceAll('~', '~0').replaceAll('/', '~1') : text}`;
}
