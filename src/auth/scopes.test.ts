import { expect, test } from 'vitest';
import { formatScopes, inOrder, parseScopes, scopeNames, UnknownScope } from './scopes.ts';

test('the scopes are those of decisions §6', () => {
  expect(scopeNames).toEqual([
    'Study:Read',
    'Study:Write',
    'Study:Delete',
    'Image:Read',
    'Image:Write',
    'Credential:Read',
    'Credential:Write',
    'Credential:Delete',
    'Audit:Read',
  ]);
});

test('scopes are read from any white space, once each, in their own order', () => {
  expect(parseScopes(' Study:Write\tStudy:Read  Study:Write\n')).toEqual(['Study:Read', 'Study:Write']);
  expect(parseScopes('')).toEqual([]);
});

test('an unknown scope is refused by its name, along with those that there are', () => {
  expect(() => parseScopes('Study:Read study:read')).toThrow(
    new UnknownScope(`"study:read" is not a scope. Scopes: ${scopeNames.join(' ')}`),
  );
  expect(() => parseScopes('a,b c')).toThrow(/^"a,b c" are not scopes/);
  expect(() => parseScopes('__proto__ toString')).toThrow(UnknownScope);
});

test('scopes are told in their own order, separated by one space', () => {
  expect(formatScopes(['Audit:Read', 'Study:Read'])).toBe('Study:Read Audit:Read');
  expect(inOrder(['Audit:Read', 'Study:Gone', 'Study:Read'])).toEqual(['Study:Read', 'Audit:Read']);
});
