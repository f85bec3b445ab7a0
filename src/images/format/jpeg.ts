import { type BoundedReader, UnreadableImage } from './byte-source.ts';

/** Whether the first bytes are a start of image and another marker (ITU-T T.81 §B.1.1.3). */
export const isJpeg = (head: Buffer): boolean => head[0] === 0xff && head[1] === 0xd8 && head[2] === 0xff;

/** 1,000 segments before the frame header: metadata of real files splits into a few dozen. */
const maxSegments = 1000;

/** SOF0-SOF15 without DHT, JPG and DAC, which lie among them (ITU-T T.81 table B.1). */
const isFrameHeader = (marker: number): boolean =>
  marker >= 0xc0 && marker <= 0xcf && marker !== 0xc4 && marker !== 0xc8 && marker !== 0xcc;

/** Width and height from the frame header; height is null where the file leaves it to a later DNL segment. */
export async function readJpegSize(reader: BoundedReader): Promise<{ width: number; height: number | null }> {
  let at = 2;
  for (let segments = 0; segments < maxSegments; segments++) {
    const [prefix, marker] = await reader.bytes(at, 2);
    if (prefix !== 0xff || marker === undefined) break;
    if (marker === 0xff) {
      at += 1; // fill byte (§B.1.1.2)
    } else if (isFrameHeader(marker)) {
      const header = await reader.bytes(at + 5, 4);
      return { width: header.readUInt16BE(2), height: header.readUInt16BE(0) || null };
    } else {
      at += 2 + (await reader.bytes(at + 2, 2)).readUInt16BE(0);
    }
  }
  throw new UnreadableImage('The image is damaged: the JPEG file has no frame header.');
}
