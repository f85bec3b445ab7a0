import { type BoundedReader, UnreadableImage } from './byte-source.ts';

/** Whether the bytes are of a DICOM file: `DICM` after a preamble of 128 bytes (DICOM PS3.10 §7.1). */
export const isDicom = (head: Buffer): boolean => head.toString('latin1', 128, 132) === 'DICM';

/** Size in pixels; null where the header does not tell it cheaply. */
export interface DicomSize {
  width: number | null;
  height: number | null;
}

const tag = {
  transferSyntax: 0x0002_0010,
  rows: 0x0028_0010,
  columns: 0x0028_0011,
  totalColumns: 0x0048_0006,
  totalRows: 0x0048_0007,
  item: 0xfffe_e000,
  itemEnd: 0xfffe_e00d,
  sequenceEnd: 0xfffe_e0dd,
} as const;

const syntax = { implicit: '1.2.840.10008.1.2', bigEndian: '1.2.840.10008.1.2.2', deflated: '1.2.840.10008.1.2.1.99' };

/** Value representations with two reserved bytes and a length of 32 bits (PS3.5 §7.1.2). */
const longForms = new Set(['OB', 'OD', 'OF', 'OL', 'OV', 'OW', 'SQ', 'SV', 'UC', 'UN', 'UR', 'UT', 'UV']);

const undefinedLength = 0xffff_ffff;

/** 20,000 elements: everything before the pixel matrix in a slide of many optical paths is a few hundred. */
const maxElements = 20_000;

/**
 * The size of a DICOM image: of a whole slide its total pixel matrix (PS3.3 §C.8.12.4), else Rows and Columns
 * (§C.7.6.3). A damaged or unusual data set gives nulls: the file is DICOM all the same.
 */
export async function readDicomSize(reader: BoundedReader): Promise<DicomSize> {
  const found = new Map<number, number>();
  try {
    await readElements(reader, found);
  } catch (error) {
    if (!(error instanceof UnreadableImage)) throw error;
  }
  return {
    width: found.get(tag.totalColumns) || found.get(tag.columns) || null,
    height: found.get(tag.totalRows) || found.get(tag.rows) || null,
  };
}

async function readElements(reader: BoundedReader, found: Map<number, number>): Promise<void> {
  let depth = 0;
  let transferSyntax = '';
  for (let at = 132, elements = 0; at < reader.sizeBytes && elements < maxElements; elements++) {
    // The file meta information, group 0002, is explicit little-endian whatever follows it (PS3.10 §7.1).
    const meta = (await reader.bytes(at, 2)).readUInt16LE(0) === 0x0002;
    if (!meta && transferSyntax === syntax.deflated) return;
    const bigEndian = !meta && transferSyntax === syntax.bigEndian;
    const implicit = !meta && transferSyntax === syntax.implicit;
    const element = await readElement(reader, at, bigEndian, implicit);
    if (depth === 0 && element.tag > tag.totalRows) return;
    at = element.valueAt;
    if (element.tag === tag.sequenceEnd) {
      depth -= 1;
    } else if (element.length === undefinedLength) {
      if (element.tag !== tag.item) depth += 1; // an item's own end is skipped as an element without a value
    } else {
      if (depth === 0 && element.tag === tag.transferSyntax) {
        const value = await reader.bytes(at, Math.min(element.length, 64));
        transferSyntax = value.toString('latin1').replace(/[\0 ]+$/, '');
      } else if (depth === 0 && isSize(element.tag)) {
        const value = await reader.bytes(at, element.length === 4 ? 4 : 2);
        found.set(element.tag, bigEndian ? value.readUIntBE(0, value.length) : value.readUIntLE(0, value.length));
      }
      at += element.length;
    }
  }
}

const isSize = (elementTag: number): boolean =>
  elementTag === tag.rows ||
  elementTag === tag.columns ||
  elementTag === tag.totalRows ||
  elementTag === tag.totalColumns;

async function readElement(
  reader: BoundedReader,
  at: number,
  bigEndian: boolean,
  implicit: boolean,
): Promise<{ tag: number; length: number; valueAt: number }> {
  const head = await reader.bytes(at, 8);
  const u16 = (offset: number) => (bigEndian ? head.readUInt16BE(offset) : head.readUInt16LE(offset));
  const u32 = (bytes: Buffer, offset: number) => (bigEndian ? bytes.readUInt32BE(offset) : bytes.readUInt32LE(offset));
  const elementTag = u16(0) * 0x1_0000 + u16(2);
  // Items and their ends have no value representation in any transfer syntax (PS3.5 §7.5).
  if (implicit || u16(0) === 0xfffe) return { tag: elementTag, length: u32(head, 4), valueAt: at + 8 };
  if (!longForms.has(head.toString('latin1', 4, 6))) return { tag: elementTag, length: u16(6), valueAt: at + 8 };
  return { tag: elementTag, length: u32(await reader.bytes(at + 8, 4), 0), valueAt: at + 12 };
}
