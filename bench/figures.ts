/** One measured figure with its yardstick from the same run. */
export interface Figure {
  name: string;
  value: number;
  unit: string;
  yardstick?: { name: string; value: number };
  /** What is asked of the ratio value ÷ yardstick, or of the value itself where there is no yardstick. */
  target?: { atLeast?: number; atMost?: number };
}

export function median(values: number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = Math.floor(sorted.length / 2);
  return sorted.length % 2
    ? (sorted[middle] as number)
    : ((sorted[middle - 1] as number) + (sorted[middle] as number)) / 2;
}

/** Runs two measurements by turns, so that both meet the same weather, and answers their medians. */
export async function alternate(
  rounds: number,
  one: () => Promise<number>,
  other: () => Promise<number>,
): Promise<[number, number]> {
  const values: [number[], number[]] = [[], []];
  for (let round = 0; round < rounds; round++) {
    values[0].push(await one());
    values[1].push(await other());
  }
  return [median(values[0]), median(values[1])];
}

function shown(value: number): string {
  return value >= 100 ? Math.round(value).toLocaleString('en') : value.toFixed(2);
}

export function ratioOf({ value, yardstick }: Figure): number {
  return yardstick ? value / yardstick.value : value;
}

/** One line: figure, yardstick, ratio, and whether it is what was asked for. */
export function lineOf(figure: Figure): string {
  const { name, value, unit, yardstick, target } = figure;
  const ratio = ratioOf(figure);
  const asked =
    target === undefined
      ? ''
      : target.atLeast === undefined
        ? `  (asked: ≤ ${target.atMost})`
        : `  (asked: ≥ ${target.atLeast})`;
  const met = target === undefined || (ratio >= (target.atLeast ?? 0) && ratio <= (target.atMost ?? Infinity));
  const compared = yardstick ? `  ${yardstick.name}: ${shown(yardstick.value)} ${unit}  ratio ${ratio.toFixed(2)}` : '';
  return `${target === undefined ? ' ' : met ? '✓' : '✗'} ${name}: ${shown(value)} ${unit}${compared}${asked}`;
}
