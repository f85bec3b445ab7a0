/**
 * Has `work` done for many at a time: whoever asks while one round is under way is in the next, of `most` at most. Each
 * gets the answer at its place; a round that rejects rejects for all that are in it.
 */
export function gather<T, R>(most: number, work: (items: T[]) => Promise<R[]>): (item: T) => Promise<R> {
  let waiting: { item: T; resolve: (result: R) => void; reject: (error: unknown) => void }[] = [];
  let busy = false;
  const rounds = async () => {
    busy = true;
    while (waiting.length > 0) {
      const round = waiting.slice(0, most);
      waiting = waiting.slice(most);
      try {
        const results = await work(round.map(({ item }) => item));
        for (const [at, { resolve }] of round.entries()) resolve(results[at] as R);
      } catch (error) {
        for (const { reject } of round) reject(error);
      }
    }
    busy = false;
  };
  return (item) =>
    new Promise((resolve, reject) => {
      waiting.push({ item, resolve, reject });
      if (!busy) void rounds();
    });
}
