/**
 * `work` for many callers at once: who comes while it runs shares the next run, which begins after all of them came.
 * An error reaches those who share its run.
 */
export function inTurns(work: () => Promise<void>): () => Promise<void> {
  let running: Promise<void> | null = null;
  let waiting: Promise<void> | null = null;
  const turn = async () => {
    // Whatever became of the run before, its own callers are told. At least one step, so that others can join.
    await running?.catch(() => {});
    waiting = null;
    const mine = work();
    running = mine;
    try {
      await mine;
    } finally {
      if (running === mine) running = null;
    }
  };
  return () => {
    waiting ??= turn();
    return waiting;
  };
}
