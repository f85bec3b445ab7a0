import { createWriteStream } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { pipeline } from 'node:stream/promises';
import type { Db } from '../db/database.ts';
import { Problem } from '../lib/problem.ts';
import { ObjectError, type ObjectStore } from '../objects/store.ts';
import { UnreadableImage } from './format/byte-source.ts';
import { makeThumbnail } from './format/thumbnail.ts';
import { purgeObject, recordThumbnail, type SlideImage } from './image-queries.ts';

/** Of the longer edge. */
const EDGE_PIXELS = 512;
/** Previews in the making at once: each keeps a core busy and a copy of its image on the disk. */
const AT_ONCE = 2;
/** Callers that wait for one to be made; more are asked to come back. */
const MAX_WAITING = 100;

type Image = NonNullable<SlideImage['image']>;

/** Previews of images: made when they are first asked for, kept in the object store beside the image. */
export class Thumbnails {
  readonly #db: Db;
  readonly #store: ObjectStore;
  readonly #making = new Map<string, Promise<Buffer | null>>();
  readonly #waiting: (() => void)[] = [];
  #busy = 0;

  constructor(db: Db, store: ObjectStore) {
    this.#db = db;
    this.#store = store;
  }

  /** The preview as a JPEG; null where the image went meanwhile. Throws the 422 of an image that cannot be shown. */
  async get(studyId: string, image: Image): Promise<Buffer | null> {
    if (image.thumbnailError !== null) throw unshowable(image.thumbnailError);
    if (image.thumbnailKey !== null) {
      const kept = await this.#read(image.thumbnailKey);
      if (kept) return kept;
    }
    const { imageId } = image;
    const making = this.#making.get(imageId) ?? this.#make(studyId, image);
    this.#making.set(imageId, making);
    return making.finally(() => this.#making.delete(imageId));
  }

  /** What is kept; null where whoever announced it has not written it. */
  async #read(key: string): Promise<Buffer | null> {
    try {
      return await buffer(await this.#store.read(key));
    } catch (error) {
      if (error instanceof ObjectError && error.kind === 'not-found') return null;
      throw error;
    }
  }

  async #make(studyId: string, image: Image): Promise<Buffer | null> {
    await this.#turn();
    try {
      const jpeg = await this.#draw(image);
      const key = `images/${studyId}/${image.imageId}-thumbnail`;
      // Announced before it is written: whatever happens in between, it goes with its image.
      if (!(await recordThumbnail(this.#db, image.imageId, { key }))) return null;
      await this.#store.write(key, Readable.from([jpeg]), { sizeBytes: jpeg.length, contentType: 'image/jpeg' });
      if (!(await recordThumbnail(this.#db, image.imageId, { key }))) await purgeObject(this.#db, key);
      return jpeg;
    } catch (error) {
      if (!(error instanceof UnreadableImage)) throw error;
      await recordThumbnail(this.#db, image.imageId, { error: error.message });
      throw unshowable(error.message);
    } finally {
      this.#busy -= 1;
      this.#waiting.shift()?.();
    }
  }

  /** From a copy on the disk, as the decoders of images need one. */
  async #draw(image: Image): Promise<Buffer> {
    const dir = await mkdtemp(join(tmpdir(), 'sds-thumbnail-'));
    try {
      const path = join(dir, 'image');
      await pipeline(await this.#store.read(image.objectKey), createWriteStream(path, { mode: 0o600 }));
      return await makeThumbnail(path, { maxEdge: EDGE_PIXELS });
    } finally {
      await rm(dir, { recursive: true, force: true });
    }
  }

  async #turn(): Promise<void> {
    if (this.#waiting.length >= MAX_WAITING) {
      throw new Problem('unavailable', 'Too many previews are being made; try again.', {
        headers: { 'Retry-After': '5' },
      });
    }
    while (this.#busy >= AT_ONCE) await new Promise<void>((resolve) => this.#waiting.push(resolve));
    this.#busy += 1;
  }
}

function unshowable(reason: string): Problem {
  return new Problem('validation-failed', reason);
}
