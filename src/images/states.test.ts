import { expect, test } from 'vitest';
import { activeStatuses, jobStatuses, outcomeOf, terminalStatuses, transitions } from './states.ts';

const counts = (more: object) => ({ total: 0, completed: 0, skipped: 0, failed: 0, cancelled: 0, ...more });

test.each([
  [{ total: 2, completed: 2 }, 'COMPLETED'],
  [{ total: 2, completed: 1, skipped: 1 }, 'COMPLETED'],
  [{ total: 2, skipped: 2 }, 'COMPLETED'],
  [{ total: 2, completed: 1, failed: 1 }, 'PARTIAL'],
  [{ total: 2, skipped: 1, cancelled: 1 }, 'PARTIAL'],
  [{ total: 2, failed: 2 }, 'FAILED'],
  [{ total: 2, cancelled: 2 }, 'FAILED'],
  [{ total: 0 }, 'FAILED'],
])('a job with the files %j ends %s', (files, status) => {
  expect(outcomeOf(counts(files))).toBe(status);
});

test('every state is active or terminal, and can be reached', () => {
  expect([...activeStatuses, ...terminalStatuses].sort()).toEqual([...jobStatuses].sort());
  const reached = new Set<string>(['CREATED', ...Object.values(transitions).flatMap(({ to }) => to)]);
  expect([...reached].sort()).toEqual([...jobStatuses].sort());
});
