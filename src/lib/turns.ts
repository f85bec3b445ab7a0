/**
 * `work` for many callers at once: who comes while it runs shares the next run, which begins after all of them came.
 * Those who share a run get its result, or its error.
 */
export function inTurns<T>(work: () => Promise<T>): () => Promise<T> {
  let running: Promise<T> | null = null;
  let waiting: Promise<T> | null = null;
  const turn = async () => {
    // Whatever became of the run before, its own callers are told. At least one step, so that others can join.
    await running?.catch(() => {});
    waiting = null;
    const mine = work();
    running = mine;
    try {
      return await mine;
    } finally {
      if (running === mine) running = null;
    }
  };
  return () => {
    waiting ??= turn();
    return waiting;
  };
}
