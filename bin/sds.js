#!/usr/bin/env node
import { existsSync } from 'node:fs';

try {
  // An installed package has no sources; a checkout is built first where that is needed.
  if (existsSync(new URL('../src/main.ts', import.meta.url))) {
    const { buildWhereNeeded } = await import('./build.js');
    buildWhereNeeded();
  }
  await import('../dist/main.js');
} catch (error) {
  console.error(error instanceof Error ? error.message : error);
  process.exitCode = 1;
}
