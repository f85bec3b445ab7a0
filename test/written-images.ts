/** Images written by hand for the tests of the readers: what no library here can write. */

interface WrittenDirectory {
  width: number;
  height: number;
  /** Adds Hamamatsu's tag. */
  ndpi?: boolean;
  /** Tag of how its pixels are compressed; none: they are not. */
  compression?: number;
  /** One strip, wherever it may point. */
  strip?: { offset: number; byteCount: number };
  /** Offset of a directory beside the chain. */
  subDirectory?: number;
  /** Tile tables of `count` offsets and `count` sizes, both at `offset`. */
  tiles?: { count: number; offset: number };
}

/** A TIFF of nothing but directories: header in the first 16 bytes, the directories after it (or, as NDPI, at `at`). */
export function tiff({
  littleEndian = true,
  big = false,
  directories,
  at = 16,
  loop = false,
}: {
  littleEndian?: boolean;
  big?: boolean;
  directories: WrittenDirectory[];
  /** Offset in the file of what follows the 16 bytes of the header; other than 16: pointers of 64 bits, as in NDPI. */
  at?: number;
  /** Lets the last directory point back to the first. */
  loop?: boolean;
}): Buffer {
  const number = (value: number, width: number): Buffer => {
    const bytes = Buffer.alloc(width);
    if (width === 8) bytes.writeBigUInt64LE(BigInt(value));
    else bytes.writeUIntLE(value, 0, width);
    return littleEndian ? bytes : bytes.reverse();
  };
  const word = big ? 8 : 4;
  const pointer = big || at !== 16 ? 8 : 4;
  const entry = (tag: number, value: number, count = 1) =>
    Buffer.concat([number(tag, 2), number(big ? 16 : 4, 2), number(count, word), number(value, word)]);

  const chunks: Buffer[] = [];
  let offset = at;
  directories.forEach((directory, index) => {
    const entries = [entry(256, directory.width), entry(257, directory.height)];
    if (directory.compression) entries.push(entry(259, directory.compression));
    if (directory.strip) entries.push(entry(273, directory.strip.offset), entry(279, directory.strip.byteCount));
    if (directory.tiles) {
      const { count, offset: tables } = directory.tiles;
      entries.push(entry(324, tables, count), entry(325, tables, count));
    }
    if (directory.subDirectory) entries.push(entry(330, directory.subDirectory));
    if (directory.ndpi) entries.push(entry(65420, 1));
    const count = number(entries.length, big ? 8 : 2);
    const length = count.length + entries.length * (4 + 2 * word) + pointer;
    const last = index === directories.length - 1;
    chunks.push(count, ...entries, number(last ? (loop ? at : 0) : offset + length, pointer));
    offset += length;
  });
  const order = Buffer.from(littleEndian ? 'II' : 'MM');
  const first = directories.length === 0 ? 0 : at;
  const header = big
    ? [order, number(43, 2), number(8, 2), number(0, 2), number(first, 8)]
    : [order, number(42, 2), number(first, pointer), Buffer.alloc(12 - pointer)];
  return Buffer.concat([...header, ...chunks]);
}

type Element = [tag: number, vr: 'US' | 'UL', value: number] | [tag: number, vr: 'SQ', item: Element[]];

const transferSyntaxes = {
  implicit: '1.2.840.10008.1.2',
  explicit: '1.2.840.10008.1.2.1',
  deflated: '1.2.840.10008.1.2.1.99',
  bigEndian: '1.2.840.10008.1.2.2',
};

/** A DICOM file of these elements; sequences and their one item are of undefined length. */
export function dicom(syntax: keyof typeof transferSyntaxes, elements: Element[]): Buffer {
  const big = syntax === 'bigEndian';
  const number = (value: number, width: number): Buffer => {
    const bytes = Buffer.alloc(width);
    bytes.writeUIntLE(value, 0, width);
    return big ? bytes.reverse() : bytes;
  };
  const tagOf = (tag: number) => Buffer.concat([number(tag >>> 16, 2), number(tag & 0xffff, 2)]);
  const write = (element: Element): Buffer => {
    const [tag, vr, value] = element;
    const implicit = syntax === 'implicit';
    if (vr === 'SQ') {
      return Buffer.concat([
        tagOf(tag),
        implicit ? number(0xffff_ffff, 4) : Buffer.concat([Buffer.from('SQ\0\0'), number(0xffff_ffff, 4)]),
        ...[tagOf(0xfffe_e000), number(0xffff_ffff, 4), ...value.map(write), tagOf(0xfffe_e00d), number(0, 4)],
        ...[tagOf(0xfffe_e0dd), number(0, 4)],
      ]);
    }
    const width = vr === 'US' ? 2 : 4;
    const length = implicit ? number(width, 4) : Buffer.concat([Buffer.from(vr), number(width, 2)]);
    return Buffer.concat([tagOf(tag), length, number(value, width)]);
  };
  const uid = transferSyntaxes[syntax].padEnd(Math.ceil(transferSyntaxes[syntax].length / 2) * 2, '\0');
  const meta = Buffer.concat([Buffer.from([2, 0, 0x10, 0]), Buffer.from('UI'), Buffer.from([uid.length, 0])]);
  return Buffer.concat([Buffer.alloc(128), Buffer.from('DICM'), meta, Buffer.from(uid), ...elements.map(write)]);
}
