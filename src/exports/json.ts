import type { Kind } from '../studies/kinds.ts';
import { kinds } from '../studies/kinds.ts';
import { type Counts, copyRecords, SCORES_MARK, type Snapshot } from './snapshot-queries.ts';

/** The arrays of the document, in the order of interface.md §2. Scores stand inside subjects and organs. */
const arrays: [member: string, what: Kind | 'codes'][] = [
  ['study', kinds.study],
  ['subjects', kinds.subject],
  ['organs', kinds.organ],
  ['slides', kinds.slide],
  ['findings', kinds.finding],
  ['codes', 'codes'],
];

/** 256 KiB: larger writes to the store are no faster. */
const BLOCK_BYTES = 256 * 1024;
const LINE_END = 0x0a;
const ZERO = 0x30;
const FIRST = Buffer.from('\n');
const NEXT = Buffer.from(',\n');

/**
 * The JSON document of a study (interface.md §2, decisions §4), one record a line, in constant memory. Counts in
 * `written` what it has rendered.
 */
export async function* jsonDocument(snapshot: Snapshot, studyId: string, written: Counts): AsyncGenerator<Buffer> {
  const blocks = new Blocks();
  for (const [i, [member, what]] of arrays.entries()) {
    blocks.put(Buffer.from(`${i === 0 ? '{' : ',\n'}"${member}":[`));
    const kind = what === 'codes' ? 'codes' : (what.name as keyof Counts);
    const lines = new Lines(blocks, kind === 'subject' || kind === 'organ');
    for await (const chunk of copyRecords(snapshot, what, studyId)) {
      lines.put(chunk as Buffer);
      written[kind] += lines.takeRecords();
      written.score += lines.takeScores();
      yield* blocks.takeFull();
    }
    blocks.put(Buffer.from(written[kind] === 0 ? ']' : '\n]'));
  }
  blocks.put(Buffer.from('}\n'));
  yield blocks.rest();
}

/** Turns lines of JSON text into the elements of an array; chunks end anywhere. */
class Lines {
  readonly #blocks: Blocks;
  readonly #end: number;
  #separator: Buffer | null = FIRST;
  /** Scores of the line, while their number is read; null before it begins. */
  #number: number | null = null;
  #records = 0;
  #scores = 0;

  constructor(blocks: Blocks, withScores: boolean) {
    this.#blocks = blocks;
    this.#end = withScores ? SCORES_MARK : LINE_END;
  }

  put(chunk: Buffer): void {
    let at = 0;
    while (at < chunk.length) {
      if (this.#number !== null) {
        const byte = chunk[at++] as number;
        if (byte === LINE_END) this.#endLine();
        else this.#number = this.#number * 10 + byte - ZERO;
        continue;
      }
      if (this.#separator) this.#blocks.put(this.#separator);
      this.#separator = null;
      const found = chunk.indexOf(this.#end, at);
      const end = found === -1 ? chunk.length : found;
      this.#blocks.put(chunk, at, end);
      at = end + 1;
      if (found === -1) return;
      if (this.#end === SCORES_MARK) this.#number = 0;
      else this.#endLine();
    }
  }

  /** Lines since the last call. */
  takeRecords(): number {
    const records = this.#records;
    this.#records = 0;
    return records;
  }

  takeScores(): number {
    const scores = this.#scores;
    this.#scores = 0;
    return scores;
  }

  #endLine(): void {
    this.#records += 1;
    this.#scores += this.#number ?? 0;
    this.#number = null;
    this.#separator = NEXT;
  }
}

/** Gathers bytes into blocks of one size. */
class Blocks {
  #full: Buffer[] = [];
  #block = Buffer.allocUnsafeSlow(BLOCK_BYTES);
  #used = 0;

  put(bytes: Buffer, start = 0, end = bytes.length): void {
    for (let at = start; at < end; ) {
      const copied = bytes.copy(this.#block, this.#used, at, end);
      at += copied;
      this.#used += copied;
      if (this.#used < BLOCK_BYTES) continue;
      this.#full.push(this.#block);
      this.#block = Buffer.allocUnsafeSlow(BLOCK_BYTES);
      this.#used = 0;
    }
  }

  takeFull(): Buffer[] {
    return this.#full.splice(0);
  }

  /** What does not fill a block; nothing can be put any more. */
  rest(): Buffer {
    return this.#block.subarray(0, this.#used);
  }
}
