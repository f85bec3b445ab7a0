import type { Cell, CellWriter } from './cells.ts';

/** Where a sheet's rows come from, one at a time, without a promise for each. */
export interface RowSource {
  /** Whether a row is in memory. */
  has(): boolean;
  /** Waits for more; false at the end. */
  fill(): Promise<boolean>;
  /** Renders the row that {@link has} told of, its cells in column order, and moves on. */
  render(cells: CellWriter): void;
  /** Lets go of what the rows are read from. */
  close(): Promise<void>;
}

/** Rows that are arrays of cells, batch by batch. */
export function arrayRows(batches: AsyncIterable<readonly (readonly Cell[])[]>): RowSource {
  const iterator = batches[Symbol.asyncIterator]();
  let batch: readonly (readonly Cell[])[] = [];
  let next = 0;
  return {
    has: () => next < batch.length,
    async fill() {
      const { done, value } = await iterator.next();
      if (done) return false;
      batch = value;
      next = 0;
      return true;
    },
    render(cells) {
      const row = batch[next++] as readonly Cell[];
      for (let i = 0; i < row.length; i++) cells.cell(i, row[i] as Cell);
    },
    async close() {
      await iterator.return?.();
    },
  };
}
