import { type BoundedReader, type ByteSource, boundedReader, UnreadableImage } from './byte-source.ts';
import { isDicom, readDicomSize } from './dicom.ts';
import { isJpeg, readJpegSize } from './jpeg.ts';
import { isPng, readPngSize, requirePngEnd } from './png.ts';
import { readTiff, type TiffFormat } from './tiff.ts';
import { openTiff } from './tiff-directory.ts';

/** The formats that the service knows, in the words of a slide's `image.format`. */
export type ImageFormatName = TiffFormat | 'DICOM' | 'PNG' | 'JPEG';

/** What the bytes of an image tell about it. */
export interface ImageFormat {
  format: ImageFormatName;
  /** Width and height of the full-resolution image in pixels; null where the header does not tell it. */
  width: number | null;
  height: number | null;
}

/** 8 MiB: the tile tables of a slide of 200,000 by 200,000 pixels; whatever a header claims, no more is read. */
const budgetBytes = 8 * 1024 * 1024;

/** Files of formats that keep their pixels in other files: MIRAX, Hamamatsu VMS and VMU, Olympus VSI, OME's companion. */
const severalFilesByName = /\.(mrxs|vms|vmu|vsi|companion\.ome)$/i;
/** The headers of VMS and VMU, and of the index beside a MIRAX file. */
const severalFilesByText = /^\[(?:(?:Uncompressed )?Virtual Microscope Specimen\]|GENERAL\]\s+SLIDE_VERSION)/;

/**
 * Recognises an image by its bytes and reads its size from its header; reads a few windows of it, never the whole.
 * Rejects with {@link UnreadableImage}: an empty object, no known format, a format of several files, a damaged file, and
 * one that was provably cut short.
 */
export async function readImageFormat(source: ByteSource): Promise<ImageFormat> {
  if (source.sizeBytes === 0) throw new UnreadableImage('The object is empty.');
  const reader = boundedReader(source, budgetBytes);
  const head = await reader.bytes(0, Math.min(1024, source.sizeBytes));
  if (severalFilesByName.test(source.name ?? '') || severalFilesByText.test(head.toString('latin1'))) {
    throw new UnreadableImage(
      'The object is one part of a slide in a format of several files, which is not supported.',
    );
  }
  const tiff = await openTiff(reader);
  if (tiff) return readTiff(tiff);
  const format = await readOther(head, reader);
  if (format) return format;
  throw new UnreadableImage(
    'The bytes are of no known image format (SVS, NDPI, OME-TIFF, TIFF, DICOM, PNG and JPEG are known).',
  );
}

async function readOther(head: Buffer, reader: BoundedReader): Promise<ImageFormat | undefined> {
  if (isPng(head)) {
    const size = await readPngSize(reader);
    await requirePngEnd(reader);
    return { format: 'PNG', ...size };
  }
  if (isJpeg(head)) return { format: 'JPEG', ...(await readJpegSize(reader)) };
  if (isDicom(head)) return { format: 'DICOM', ...(await readDicomSize(reader)) };
  return undefined;
}
