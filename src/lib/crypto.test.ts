import { randomBytes } from 'node:crypto';
import { describe, expect, test } from 'vitest';
import { masterKeyId, sameText, seal, UnsealError, unseal } from './crypto.ts';

const key = randomBytes(32);

describe('a sealed text', () => {
  test('is opened by the same key for the same record', () => {
    const sealed = seal(key, 'ünïcode', 'credential:1');
    expect(sealed.keyId).toBe(masterKeyId(key));
    expect(unseal(key, sealed, 'credential:1').toString()).toBe('ünïcode');
  });

  test('may be empty, and bytes', () => {
    expect(unseal(key, seal(key, '', 'a'), 'a')).toEqual(Buffer.alloc(0));
    expect(unseal(key, seal(key, Buffer.of(0, 255), 'a'), 'a')).toEqual(Buffer.of(0, 255));
  });

  test('does not show the text, and looks different each time', () => {
    const one = seal(key, 'secret secret', 'a').bytes;
    expect(one.includes('secret')).toBe(false);
    expect(one.equals(seal(key, 'secret secret', 'a').bytes)).toBe(false);
  });

  test('serves no other record', () => {
    expect(() => unseal(key, seal(key, 'x', 'credential:1'), 'credential:2')).toThrow(UnsealError);
  });

  test('changed in any byte or cut short is refused', () => {
    const { keyId, bytes } = seal(key, 'secret', 'a');
    for (let i = 0; i < bytes.length; i++) {
      const changed = Buffer.from(bytes);
      changed.writeUInt8(changed.readUInt8(i) ^ 1, i);
      expect(() => unseal(key, { keyId, bytes: changed }, 'a')).toThrow(UnsealError);
      expect(() => unseal(key, { keyId, bytes: bytes.subarray(0, i) }, 'a')).toThrow(UnsealError);
    }
  });

  test('of another key is refused with the names of both keys', () => {
    const other = randomBytes(32);
    const both = new RegExp(`${masterKeyId(other)}.*${masterKeyId(key)}`);
    expect(() => unseal(key, seal(other, 'x', 'a'), 'a')).toThrow(both);
  });
});

test('the id of a master key is 16 hexadecimal digits and differs between keys', () => {
  expect(masterKeyId(key)).toMatch(/^[0-9a-f]{16}$/);
  expect(masterKeyId(key)).not.toBe(masterKeyId(randomBytes(32)));
});

test('texts are the same only when all of them is', () => {
  expect(sameText('abc', 'abc')).toBe(true);
  expect(sameText('abc', 'abd')).toBe(false);
  expect(sameText('abc', 'abcd')).toBe(false);
  expect(sameText('', '')).toBe(true);
});
