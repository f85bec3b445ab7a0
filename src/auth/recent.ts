/**
 * A map that keeps at least the `keep` entries used last, and at most twice as many: a bound on memory whatever is
 * asked for. Two generations instead of a list in order of use, so that a hit costs one look-up and moves nothing.
 */
export class Recent<V> {
  readonly #keep: number;
  #young = new Map<string, V>();
  #old = new Map<string, V>();

  constructor(keep: number) {
    this.#keep = keep;
  }

  get(key: string): V | undefined {
    const value = this.#young.get(key);
    if (value !== undefined) return value;
    const older = this.#old.get(key);
    if (older !== undefined) this.set(key, older);
    return older;
  }

  set(key: string, value: V): void {
    this.#young.set(key, value);
    if (this.#young.size < this.#keep) return;
    this.#old = this.#young;
    this.#young = new Map();
  }

  delete(key: string): void {
    this.#young.delete(key);
    this.#old.delete(key);
  }
}
