import { Type } from 'typebox';
import type { Db } from '../db/database.ts';
import { download, hasVersion } from '../http/download.ts';
import { type Api, operation } from '../http/operation.ts';
import { notFound, Problem } from '../lib/problem.ts';
import type { ObjectStore } from '../objects/store.ts';
import { kinds } from '../studies/kinds.ts';
import { missing } from '../studies/rules.ts';
import { findSlideImage, type SlideImage } from './image-queries.ts';
import { Thumbnails } from './thumbnails.ts';

/** Media types of the formats (decisions §2: `format`). */
const mediaTypes: Record<string, string> = {
  SVS: 'image/tiff',
  NDPI: 'image/tiff',
  'OME-TIFF': 'image/tiff',
  TIFF: 'image/tiff',
  DICOM: 'application/dicom',
  PNG: 'image/png',
  JPEG: 'image/jpeg',
};

type Imaged = SlideImage & { image: NonNullable<SlideImage['image']>; ingestedDate: Date };

async function imageOf(db: Db, studyId: string, slideId: string): Promise<Imaged> {
  const slide = await findSlideImage(db, studyId, slideId);
  if (!slide) throw await missing(db, kinds.slide, studyId);
  if (!slide.image || !slide.ingestedDate) throw new Problem('not-found', 'The slide has no image.');
  return slide as Imaged;
}

/** The stored image of a slide, and a preview of it (decisions §3). */
export function slideImageRoutes(api: Api, deps: { store: ObjectStore; downloadRedirect: boolean }): void {
  const { store, downloadRedirect } = deps;
  const thumbnails = new Thumbnails(api.pool, store);
  const common = {
    tag: 'slides',
    resource: { type: 'slide', id: 'slideId' },
    method: 'GET',
    scope: 'Study:Read',
    event: 'CLIENT_ACCESSED_STUDY',
  } as const;

  operation(api, {
    ...common,
    path: '/studies/{studyId}/slides/{slideId}/image',
    operationId: 'getSlideImage',
    summary: 'Downloads the image of a slide',
    responses: {
      200: {
        description: 'The file.',
        schema: Type.String({ description: 'Bytes.' }),
        mediaType: 'application/octet-stream',
        headers: ['ETag', 'Content-Disposition', 'Accept-Ranges'],
      },
      206: {
        description: 'The range that was asked for.',
        schema: Type.String({ description: 'Bytes.' }),
        mediaType: 'application/octet-stream',
      },
    },
    problems: [404, 412, 416],
    disclose: async (db, { params, request }) => {
      const { fileName, image, ingestedDate } = await imageOf(db, params.studyId, params.slideId);
      const mediaType = mediaTypes[image.format] ?? 'application/octet-stream';
      const { objectKey: key, sizeBytes, sha256 } = image;
      const file = { key, sizeBytes, sha256, mediaType, fileName, lastModified: ingestedDate };
      return download(request, store, file, { redirect: downloadRedirect });
    },
  });

  operation(api, {
    ...common,
    path: '/studies/{studyId}/slides/{slideId}/thumbnail',
    operationId: 'getSlideThumbnail',
    summary: 'Reads a preview of the image of a slide, a JPEG of up to 512 pixels',
    headers: { 'If-None-Match': { description: 'The ETag that the client has; 304 where it still is the preview’s.' } },
    responses: {
      200: {
        description: 'The preview.',
        schema: Type.String({ description: 'Bytes.' }),
        mediaType: 'image/jpeg',
        headers: ['ETag'],
      },
      304: { description: 'The client has it already.', schema: null, headers: ['ETag'] },
    },
    problems: [404, 422],
    disclose: async (db, { params, request }) => {
      const { image } = await imageOf(db, params.studyId, params.slideId);
      const etag = `"${image.sha256}-thumbnail"`;
      const headers = { ETag: etag, 'Cache-Control': 'private, no-cache' };
      // `*` names any preview, but only where there is one.
      if (image.thumbnailKey !== null && hasVersion(request, etag)) return { status: 304, headers };
      const jpeg = await thumbnails.get(params.studyId, image);
      if (!jpeg) throw notFound('image');
      return {
        headers: { ...headers, 'Content-Type': 'image/jpeg', 'X-Content-Type-Options': 'nosniff' },
        send: (reply) => reply.send(jpeg),
      };
    },
  });
}
