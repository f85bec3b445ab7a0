import type { BoundedReader } from './byte-source.ts';

const signature = Buffer.from('\x89PNG\r\n\x1a\n', 'latin1');

/** Whether the first bytes are PNG's signature (PNG §5.2). */
export const isPng = (head: Buffer): boolean => head.subarray(0, 8).equals(signature);

/** Width and height from the IHDR chunk, which is always the first (PNG §11.2.1). */
export async function readPngSize(reader: BoundedReader): Promise<{ width: number; height: number }> {
  const header = await reader.bytes(16, 8);
  return { width: header.readUInt32BE(0), height: header.readUInt32BE(4) };
}
