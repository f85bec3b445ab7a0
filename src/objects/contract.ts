import { randomBytes } from 'node:crypto';
import { Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { afterAll, beforeAll, describe, expect } from 'vitest';
import { describeDeleting } from '../../test/store-contract/deleting.ts';
import { describeListing } from '../../test/store-contract/listing.ts';
import { describeRanges } from '../../test/store-contract/ranges.ts';
import { describeRefusing } from '../../test/store-contract/refusing.ts';
import type { ContractOptions, StoreUnderTest } from '../../test/store-contract/store-under-test.ts';
import { describeWriting } from '../../test/store-contract/writing.ts';
import type { ObjectInfo, ObjectStore } from './store.ts';

export { expectKind } from '../../test/store-contract/store-under-test.ts';

/**
 * What every object store must do, as one suite: `describeStoreContract('file', open)`. `open` makes an empty store;
 * the suite closes it.
 */
export function describeStoreContract(
  name: string,
  open: () => Promise<{ store: ObjectStore; close: () => Promise<void> }>,
  options: ContractOptions = {},
): void {
  describe(`object store contract: ${name}`, () => {
    let store: ObjectStore;
    let close: () => Promise<void>;
    beforeAll(async () => {
      ({ store, close } = await open());
    });
    afterAll(async () => {
      await store?.close();
      await close?.();
    });

    const on: StoreUnderTest = {
      get store() {
        return store;
      },
      options,
      large: randomBytes(options.largeBytes ?? 21 * 1024 * 1024 + 17),
      put: (key, body, write) => store.write(key, Readable.from([Buffer.from(body)]), write),
      get: async (key, read) => buffer(await store.read(key, read)),
      text: async (key, read) => (await on.get(key, read)).toString(),
      async all(prefix) {
        const infos: ObjectInfo[] = [];
        for await (const page of store.list(prefix === undefined ? {} : { prefix })) infos.push(...page);
        return infos;
      },
      keys: async (prefix) => (await on.all(prefix)).map(({ key }) => key),
      noLeftovers: async () => expect((await options.leftovers?.()) ?? 0).toBe(0),
    };
    describeWriting(on);
    describeRanges(on);
    describeListing(on);
    describeDeleting(on);
    describeRefusing(on);
  });
}
