import { isIPv6 } from 'node:net';
import { isAbsolute, resolve } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

/** A directory tree that the administrator opened by a name (decisions §5). */
export interface FileRoot {
  name: string;
  /** Absolute. */
  path: string;
  readOnly: boolean;
}

/** What a client proves itself with (RFC 6749 §2.3.1). */
export interface ClientPair {
  clientId: string;
  clientSecret: string;
}

// Forms of single values in the environment: each function returns undefined for a text that has not its form.

/** How switches are written (decisions §10). */
export const switches = new Map([
  ['true', true],
  ['1', true],
  ['false', false],
  ['0', false],
]);

/** The value, where it lies in the range; NaN lies in none. */
export function inRange(value: number, min: number, max: number): number | undefined {
  return value >= min && value <= max ? value : undefined;
}

/** `8388608`, `8192KiB`, `8 MiB`; NaN for anything else. */
export function bytesOf(text: string): number {
  const [, digits, unit] = /^(\d{1,12}) ?(B|KiB|MiB)?$/i.exec(text) ?? [];
  const power = { b: 0, kib: 10, mib: 20 }[(unit ?? 'b').toLowerCase()] as number;
  return digits === undefined ? NaN : Number(digits) * 2 ** power;
}

function urlOf(text: string, ...protocols: string[]): URL | undefined {
  const url = URL.canParse(text) ? new URL(text) : undefined;
  return url && protocols.includes(url.protocol) ? url : undefined;
}

/** An http or https URL without user, query and fragment. */
function webUrlOf(text: string): URL | undefined {
  const url = urlOf(text, 'http:', 'https:');
  return url && !/[?#@]/.test(text) ? url : undefined;
}

/** A host name or an address to listen on; an IPv6 one with or without brackets. */
export function hostOf(text: string): string | undefined {
  const bare = text.replace(/^\[(.*)\]$/, '$1');
  return isIPv6(bare) ? bare : /^[0-9A-Za-z]([0-9A-Za-z.-]*[0-9A-Za-z])?$/.test(text) ? text : undefined;
}

/** Without the slash at its end. The version is refused, as the service appends it itself. */
export function publicUrlOf(text: string): string | undefined {
  const url = webUrlOf(text)?.href.replace(/\/+$/, '');
  return url?.endsWith('/api/v1') ? undefined : url;
}

/** Scheme, host and port; a lone slash after them is dropped. */
export function originOf(text: string): string | undefined {
  const url = webUrlOf(text);
  return url?.pathname === '/' ? url.origin : undefined;
}

/** Issuers are compared letter by letter (RFC 9068 §4), so the text is kept as it is. */
export function issuerOf(text: string): string | undefined {
  const url = webUrlOf(text);
  const loopback = url !== undefined && /^(localhost|127\.[\d.]+|\[::1\])$/.test(url.hostname);
  return url?.protocol === 'https:' || loopback ? text : undefined;
}

/** The text itself. A URL with a user and without a host (its `?host=` is the directory of a Unix socket) is one too. */
export function databaseUrlOf(text: string): string | undefined {
  return urlOf(text.replace('@/', '@localhost/'), 'postgres:', 'postgresql:') ? text : undefined;
}

/** A store of files with its path made absolute from `cwd`, or the URL of an S3 bucket as it is. */
export function objectStoreOf(text: string, cwd: string): string | undefined {
  if (text.startsWith('file:')) {
    const path = text.slice('file:'.length);
    if (path === '' || /[?#]/.test(path)) return undefined;
    try {
      // A URL knows no relative path: `new URL('file:objects')` would be /objects.
      return pathToFileURL(path.startsWith('/') ? fileURLToPath(text) : resolve(cwd, decodeURIComponent(path))).href;
    } catch {
      return undefined;
    }
  }
  const url = urlOf(text, 's3:');
  if (!url?.hostname || url.username || url.password || url.port || url.hash) return undefined;
  for (const [name, value] of url.searchParams) {
    const sound =
      name === 'region'
        ? /^[0-9a-z-]+$/.test(value)
        : name === 'endpoint'
          ? webUrlOf(value)
          : name === 'forcePathStyle' && switches.has(value);
    if (!sound) return undefined;
  }
  return text;
}

/** `name=/path` or `name=/path:ro`. */
export function fileRootOf(item: string): FileRoot | undefined {
  const [, name, path, ro] = /^([0-9A-Za-z][0-9A-Za-z._-]{0,63})=(.+?)(:ro)?$/.exec(item) ?? [];
  return name && path && isAbsolute(path) ? { name, path: resolve(path), readOnly: ro !== undefined } : undefined;
}

/** Both parts in the characters of RFC 6749 appendix A. */
export function clientOf(text: string): ClientPair | undefined {
  const [, clientId, clientSecret] = /^([\x21-\x39\x3b-\x7e]{1,255}):([\x20-\x7e]{1,1024})$/.exec(text) ?? [];
  return clientId && clientSecret ? { clientId, clientSecret } : undefined;
}
