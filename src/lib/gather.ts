/** When rounds begin and end. */
export interface Rounds {
  /** Rounds under way at the same time. Default 1. */
  atOnce?: number;
  /** Called when no round is under way and nobody waits. */
  onIdle?: () => void;
}

/**
 * Has `work` done for many at a time: whoever asks while rounds are under way is in the next, of `most` at most. Each
 * gets the answer at its place; a round that rejects rejects for all that are in it.
 */
export function gather<T, R>(
  most: number,
  work: (items: T[]) => Promise<R[]>,
  { atOnce = 1, onIdle }: Rounds = {},
): (item: T) => Promise<R> {
  const waiting: { item: T; resolve: (result: R) => void; reject: (error: unknown) => void }[] = [];
  let underWay = 0;
  const rounds = async () => {
    underWay++;
    while (waiting.length > 0) {
      const round = waiting.splice(0, most);
      try {
        const results = await work(round.map(({ item }) => item));
        for (const [at, { resolve }] of round.entries()) resolve(results[at] as R);
      } catch (error) {
        for (const { reject } of round) reject(error);
      }
    }
    underWay--;
    if (underWay === 0) onIdle?.();
  };
  return (item) =>
    new Promise((resolve, reject) => {
      waiting.push({ item, resolve, reject });
      if (underWay < atOnce) void rounds();
    });
}
