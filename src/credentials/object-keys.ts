import type { Fault } from '../lib/problem.ts';
import { checkFileKey } from '../objects/file-keys.ts';
import { checkKey } from '../objects/store.ts';
import type { Provider } from './schemas.ts';

/** Whether an object of the provider can have the key. */
export function isKey(provider: Provider, key: string): boolean {
  try {
    (provider === 'FILE' ? checkFileKey : checkKey)(key);
    return true;
  } catch {
    return false;
  }
}

/** What may follow a prefix in a key: of one that is listed nothing, too. A FILE NAME may begin with a slash. */
const endings = { list: ['', 'x', '/x'], write: ['x', '/x'] };

/** The fault of a body's `prefix` that no key of the provider begins with, whether to list below it or to write there. */
export function prefixFaults(provider: Provider, prefix: string, use: keyof typeof endings): Fault[] {
  if (endings[use].some((ending) => isKey(provider, prefix + ending))) return [];
  return [{ pointer: '/prefix', detail: `begins no key of the provider ${provider}` }];
}
