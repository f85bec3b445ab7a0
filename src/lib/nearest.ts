/** The candidate that a misspelt name most likely meant, or null where none is near. */
export function nearest(name: string, candidates: Iterable<string>): string | null {
  let best: string | null = null;
  // A third of the letters may be wrong: more of them is another word.
  let bound = Math.floor(name.length / 3) + 1;
  for (const candidate of candidates) {
    const edits = distance(name.toLowerCase(), candidate.toLowerCase());
    if (edits < bound) {
      best = candidate;
      bound = edits;
    }
  }
  return best;
}

/** Levenshtein distance: letters to insert, remove or replace. */
function distance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) {
      const replaced = (row[j - 1] as number) + Number(a[i - 1] !== b[j - 1]);
      next.push(Math.min((row[j] as number) + 1, (next[j - 1] as number) + 1, replaced));
    }
    row = next;
  }
  return row[b.length] as number;
}
