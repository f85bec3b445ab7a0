import { promisify } from 'node:util';
import { constants, crc32, deflateRaw } from 'node:zlib';

const compress = promisify(deflateRaw);

/**
 * Level 1 takes a third of the time of level 6 for a file a sixth larger; memLevel 9 (a larger hash table) a quarter
 * less time again. A sync flush ends a block on a byte boundary without ending the stream, so that blocks which were
 * compressed apart can be put one after the other.
 */
const DEFLATE = { level: 1, memLevel: 9, chunkSize: 128 * 1024, finishFlush: constants.Z_SYNC_FLUSH };
/** An empty final block (RFC 1951 §3.2.3): ends the stream after blocks that did not. */
const STREAM_END = Buffer.of(3, 0);
/** Blocks compressed at once. libuv has 4 threads by default; one is left for files and name resolution. */
const PARALLEL = 3;

/** 2³² − 1: sizes and offsets from here on are told in zip64 form (APPNOTE 4.4.8, 4.4.9, 4.4.16). */
const ZIP64_LIMIT = 0xffff_ffff;
/** The entries' date: midnight, 1 January 1980, the first that zip can tell; a file's bytes depend on its rows alone. */
const DOS_DATE = 0x0021;
/** Bit 3: CRC and sizes follow the data. Bit 11: names are UTF-8. */
const STREAMED = 0x0808;
const PLAIN = 0x0800;
const DEFLATED = 8;

interface Entry {
  name: Buffer;
  flags: number;
  crc: number;
  size: number;
  compressedSize: number;
  offset: number;
}

export interface ZipOptions {
  /** Bytes that stand before the archive. Default 0. */
  offset?: number;
  /** Size or offset, in bytes, from which on zip64 is used. Default 2³² − 1; tests lower it. */
  zip64Limit?: number;
}

/**
 * Makes a zip archive (APPNOTE 6.3) of entries whose size nobody knows yet, in constant memory: each method returns
 * the archive's next bytes. Local headers carry no zip64 field, as Excel offers to repair archives in which all do;
 * what exceeds 4 GiB is told in the data descriptor and the central directory, where readers look.
 */
export class Zip {
  readonly #entries: Entry[] = [];
  readonly #limit: number;
  #offset: number;

  constructor({ offset = 0, zip64Limit = ZIP64_LIMIT }: ZipOptions = {}) {
    this.#offset = offset;
    this.#limit = zip64Limit;
  }

  /** An entry of known content. */
  async file(name: string, text: string): Promise<Buffer> {
    const content = Buffer.from(text);
    const data = Buffer.concat([await compress(content, DEFLATE), STREAM_END]);
    const entry = this.#add(name, PLAIN);
    entry.crc = crc32(content);
    entry.size = content.length;
    entry.compressedSize = data.length;
    return this.#count(Buffer.concat([localHeader(entry), data]));
  }

  /** An entry of streamed content; several chunks are compressed at once. `release` gets chunks that can be reused. */
  async *stream(
    name: string,
    chunks: AsyncIterable<Buffer>,
    release: (chunk: Buffer) => void = () => {},
  ): AsyncGenerator<Buffer> {
    const entry = this.#add(name, STREAMED);
    yield this.#count(localHeader(entry));
    const blocks: Promise<Buffer>[] = [];
    const done = (data: Buffer) => {
      entry.compressedSize += data.length;
      return this.#count(data);
    };
    try {
      for await (const chunk of chunks) {
        entry.crc = crc32(chunk, entry.crc);
        entry.size += chunk.length;
        const block = compress(chunk, DEFLATE).finally(() => release(chunk));
        block.catch(() => {}); // whoever awaits it below gets the error; until then it is not an unhandled one
        blocks.push(block);
        if (blocks.length === PARALLEL) yield done(await (blocks.shift() as Promise<Buffer>));
      }
      while (blocks.length > 0) yield done(await (blocks.shift() as Promise<Buffer>));
    } finally {
      await Promise.allSettled(blocks);
    }
    yield done(STREAM_END);
    yield this.#count(this.#descriptor(entry));
  }

  /** The central directory, which ends the archive. */
  end(): Buffer {
    const start = this.#offset;
    const directory = this.#count(Buffer.concat(this.#entries.map((entry) => this.#directoryEntry(entry))));
    const count = this.#entries.length;
    // Tells old readers "look into the zip64 record" (APPNOTE 4.4.1.4).
    const zip64 = count >= 0xffff || start >= this.#limit || directory.length >= this.#limit;
    const end = Buffer.alloc(22);
    end.writeUInt32LE(0x06054b50, 0);
    end.writeUInt16LE(zip64 ? 0xffff : count, 8);
    end.writeUInt16LE(zip64 ? 0xffff : count, 10);
    end.writeUInt32LE(zip64 ? ZIP64_LIMIT : directory.length, 12);
    end.writeUInt32LE(zip64 ? ZIP64_LIMIT : start, 16);
    return Buffer.concat([directory, zip64 ? zip64End(count, directory.length, start) : Buffer.alloc(0), end]);
  }

  #add(name: string, flags: number): Entry {
    const entry = { name: Buffer.from(name), flags, crc: 0, size: 0, compressedSize: 0, offset: this.#offset };
    this.#entries.push(entry);
    return entry;
  }

  #count(bytes: Buffer): Buffer {
    this.#offset += bytes.length;
    return bytes;
  }

  #descriptor({ crc, size, compressedSize }: Entry): Buffer {
    const wide = size >= this.#limit || compressedSize >= this.#limit;
    const bytes = Buffer.alloc(wide ? 24 : 16);
    bytes.writeUInt32LE(0x08074b50, 0);
    bytes.writeUInt32LE(crc, 4);
    if (wide) {
      bytes.writeBigUInt64LE(BigInt(compressedSize), 8);
      bytes.writeBigUInt64LE(BigInt(size), 16);
    } else {
      bytes.writeUInt32LE(compressedSize, 8);
      bytes.writeUInt32LE(size, 12);
    }
    return bytes;
  }

  #directoryEntry(entry: Entry): Buffer {
    // The zip64 field holds, in this order, only what does not fit into the fields proper (APPNOTE 4.5.3).
    const values = [entry.size, entry.compressedSize, entry.offset];
    const [size, compressedSize, offset] = values.map((value) => (value >= this.#limit ? ZIP64_LIMIT : value));
    const wide = values.filter((value) => value >= this.#limit);
    const bytes = Buffer.alloc(46);
    bytes.writeUInt32LE(0x02014b50, 0);
    bytes.writeUInt16LE(wide.length > 0 ? 45 : 20, 4);
    common(bytes.subarray(6), entry, wide.length > 0 ? 45 : 20, compressedSize as number, size as number);
    bytes.writeUInt16LE(wide.length > 0 ? 4 + 8 * wide.length : 0, 30);
    bytes.writeUInt32LE(offset as number, 42);
    if (wide.length === 0) return Buffer.concat([bytes, entry.name]);
    const extra = Buffer.alloc(4 + 8 * wide.length);
    extra.writeUInt16LE(1, 0);
    extra.writeUInt16LE(8 * wide.length, 2);
    for (const [i, value] of wide.entries()) extra.writeBigUInt64LE(BigInt(value), 4 + 8 * i);
    return Buffer.concat([bytes, entry.name, extra]);
  }
}

function localHeader(entry: Entry): Buffer {
  const bytes = Buffer.alloc(30);
  bytes.writeUInt32LE(0x04034b50, 0);
  common(bytes.subarray(4), entry, 20, entry.compressedSize, entry.size);
  return Buffer.concat([bytes, entry.name]);
}

/** The fields that local header and directory entry share, from "version needed" to the length of the name. */
function common(bytes: Buffer, entry: Entry, version: number, compressedSize: number, size: number): void {
  bytes.writeUInt16LE(version, 0);
  bytes.writeUInt16LE(entry.flags, 2);
  bytes.writeUInt16LE(DEFLATED, 4);
  bytes.writeUInt16LE(DOS_DATE, 8);
  bytes.writeUInt32LE(entry.crc, 10);
  bytes.writeUInt32LE(compressedSize, 14);
  bytes.writeUInt32LE(size, 18);
  bytes.writeUInt16LE(entry.name.length, 22);
}

/** Zip64 end of central directory record and its locator (APPNOTE 4.3.14, 4.3.15). */
function zip64End(count: number, length: number, start: number): Buffer {
  const bytes = Buffer.alloc(56 + 20);
  bytes.writeUInt32LE(0x06064b50, 0);
  bytes.writeBigUInt64LE(44n, 4);
  bytes.writeUInt16LE(45, 12);
  bytes.writeUInt16LE(45, 14);
  bytes.writeBigUInt64LE(BigInt(count), 24);
  bytes.writeBigUInt64LE(BigInt(count), 32);
  bytes.writeBigUInt64LE(BigInt(length), 40);
  bytes.writeBigUInt64LE(BigInt(start), 48);
  bytes.writeUInt32LE(0x07064b50, 56);
  bytes.writeBigUInt64LE(BigInt(start + length), 64);
  bytes.writeUInt32LE(1, 72);
  return bytes;
}
