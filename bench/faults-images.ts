import { randomFillSync } from 'node:crypto';
import { PutObjectCommand, S3Client } from '@aws-sdk/client-s3';
import sharp from 'sharp';
import { type Ask, expectBody, type ImageJob } from './faults-client.ts';

/** Keys of the S3 servers of the bench. */
export const KEYS = { accessKeyId: 'test-key-id', secretAccessKey: 'test-secret-access-key' };

/** Images by key. */
export type Images = Map<string, Buffer>;

/** So many real TIFFs of one size, with bytes after the image that make every file another. */
export async function makeImages(prefix: string, count: number, bytes: number): Promise<Images> {
  const head = await sharp({ create: { width: 64, height: 64, channels: 3, background: '#a6c' } })
    .tiff()
    .toBuffer();
  const images: Images = new Map();
  for (let n = 0; n < count; n++) {
    const body = Buffer.allocUnsafe(bytes);
    randomFillSync(body);
    head.copy(body);
    images.set(`${prefix}${String(n).padStart(4, '0')}.tif`, body);
  }
  return images;
}

export function openClient(endpoint: string): S3Client {
  return new S3Client({ endpoint, region: 'us-east-1', forcePathStyle: true, credentials: KEYS });
}

/** Puts each image in one piece: its ETag is an MD5 then, by which the service can tell what was damaged. */
export async function putImages(endpoint: string, bucket: string, images: Images): Promise<void> {
  const client = openClient(endpoint);
  for (const [Key, Body] of images) await client.send(new PutObjectCommand({ Bucket: bucket, Key, Body }));
  client.destroy();
}

/** Makes a credential of the provider S3. */
export async function s3Credential(ask: Ask, endpoint: string, bucket: string): Promise<string> {
  const body = {
    name: bucket,
    provider: 'S3',
    settings: { region: 'us-east-1', bucket, endpoint, forcePathStyle: true, accessKeyId: KEYS.accessKeyId },
    secret: { secretAccessKey: KEYS.secretAccessKey },
  };
  return (await expectBody<{ credentialId: string }>(201, ask('POST', '/cloud/credentials', body))).credentialId;
}

export interface Slide {
  slideId: string;
  fileName: string;
  image: { sizeBytes: number } | null;
}

export async function slidesOf(ask: Ask, studyId: string): Promise<Slide[]> {
  const slides: Slide[] = [];
  for (let page = 1; ; page++) {
    const path = `/studies/${studyId}/slides?pageSize=100&pageNumber=${page}`;
    const { items } = await expectBody<{ items: Slide[] }>(200, ask('GET', path));
    slides.push(...items);
    if (items.length < 100) return slides;
  }
}

/** What became of image files that are not as they should be. */
export interface ImageFaults {
  lost: string[];
  doubled: string[];
  wrong: string[];
}

/** Compares what a study has after an ingest with what was to come into it, to the byte. */
export async function faultsOfIngest(ask: Ask, images: Images, studyId: string, job: ImageJob): Promise<ImageFaults> {
  const faults: ImageFaults = { lost: [], doubled: [], wrong: [] };
  const { status, files, bytes, errorMessage, jobId, attempt } = job;
  const all = [...images.values()].reduce((sum, { length }) => sum + length, 0);
  const told = [status, files.total, files.completed + files.skipped, bytes.total].join();
  if (told !== ['COMPLETED', images.size, images.size, all].join()) {
    faults.wrong.push(`job ${jobId}: ${told} ${errorMessage ?? ''}`);
  }
  const slides = new Map<string, Slide>();
  for (const slide of await slidesOf(ask, studyId)) {
    if (slides.has(slide.fileName)) faults.doubled.push(`slide ${slide.fileName} of job ${jobId}`);
    slides.set(slide.fileName, slide);
  }
  for (const [key, content] of images) {
    const name = key.slice(key.lastIndexOf('/') + 1);
    const slide = slides.get(name);
    if (!slide?.image) {
      faults.lost.push(`image ${name} of job ${jobId}`);
      continue;
    }
    const answer = await ask('GET', `/studies/${studyId}/slides/${slide.slideId}/image`);
    if (answer.status !== 200 || !answer.bytes.equals(content)) {
      faults.wrong.push(`image ${name} of job ${jobId}: ${answer.status}, ${answer.bytes.length} bytes`);
    }
  }
  if (slides.size > images.size) faults.doubled.push(`${slides.size} slides of job ${jobId}`);
  const events = `/audit/events?resourceId=${jobId}&event=IMAGE_JOB_COMPLETED`;
  const { paging } = await expectBody<{ paging: { totalItems: number } }>(200, ask('GET', events));
  // One for each end: a retry makes another.
  if (paging.totalItems < attempt) faults.lost.push(`IMAGE_JOB_COMPLETED of job ${jobId}`);
  if (paging.totalItems > attempt) faults.doubled.push(`IMAGE_JOB_COMPLETED of job ${jobId}`);
  return faults;
}
