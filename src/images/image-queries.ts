import type { Db, Tx } from '../db/database.ts';
import { prepared } from '../db/statement.ts';

/** The slide of a FILE NAME, and its image where it has one. */
export interface NamedSlide {
  slideId: string;
  subjectId: string | null;
  organId: string | null;
  image: { imageId: string; sizeBytes: number; sha256: string } | null;
}

const namedSlide = `select s.slide_id as "slideId", s.subject_id as "subjectId", s.organ_id as "organId", case when i.image_id is not null then
    json_build_object('imageId', i.image_id, 'sizeBytes', i.size_bytes, 'sha256', i.sha256) end as image
  from slides s left join images i on i.study_id = s.study_id and i.slide_id = s.slide_id
  where (s.study_id || s.file_name) = ($1::text || $2::text)`;

export async function findNamedSlide(db: Db, studyId: string, fileName: string): Promise<NamedSlide | null> {
  const { rows } = await db.query<NamedSlide>(prepared(namedSlide, [studyId, fileName]));
  return rows[0] ?? null;
}

/** Locks a slide, so that one image at a time is linked to it; whether it is there. */
export async function lockSlide(tx: Tx, studyId: string, slideId: string): Promise<boolean> {
  const text = 'select from slides where study_id = $1 and slide_id = $2 for update';
  return (await tx.query(prepared(text, [studyId, slideId]))).rowCount === 1;
}

export interface StoredImage {
  imageId: string;
  objectKey: string;
  sizeBytes: number;
  sha256: string;
  format: string;
  width: number | null;
  height: number | null;
}

/** Gives a slide that is locked its image; the one before goes, and its objects are purged (trigger of migration 0006). */
export async function linkImage(tx: Tx, studyId: string, slideId: string, image: StoredImage): Promise<void> {
  await tx.query(prepared('delete from images where study_id = $1 and slide_id = $2', [studyId, slideId]));
  const { imageId, objectKey, sizeBytes, sha256, format, width, height } = image;
  const text = `insert into images (study_id, slide_id, image_id, object_key, size_bytes, sha256, format, width, height)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9)`;
  const values = [studyId, slideId, imageId, objectKey, sizeBytes, sha256, format, width, height];
  await tx.query(prepared(text, values));
}

/** Subject and organ of a slide; null: as they are. */
export interface SlidePlace {
  subjectId: string | null;
  organId: string | null;
}

/** Counts a write of a slide that is locked, as what it shows has changed, and links it to its subject and organ. */
export async function touchSlide(tx: Tx, studyId: string, slideId: string, place: SlidePlace): Promise<void> {
  const text = `update slides set version = version + 1, updated_date = now(),
      subject_id = coalesce($3, subject_id), organ_id = coalesce($4, organ_id)
    where study_id = $1 and slide_id = $2`;
  await tx.query(prepared(text, [studyId, slideId, place.subjectId, place.organId]));
}

/** The stored image of a slide, as its reading needs it; null where the slide is not there. */
export interface SlideImage {
  fileName: string;
  image: {
    imageId: string;
    objectKey: string;
    sizeBytes: number;
    sha256: string;
    format: string;
    thumbnailKey: string | null;
    thumbnailError: string | null;
  } | null;
  ingestedDate: Date | null;
}

export async function findSlideImage(db: Db, studyId: string, slideId: string): Promise<SlideImage | null> {
  const text = `select s.file_name as "fileName", i.ingested_date as "ingestedDate", case when i.image_id is not null then
      json_build_object('imageId', i.image_id, 'objectKey', i.object_key, 'sizeBytes', i.size_bytes, 'sha256', i.sha256,
        'format', i.format, 'thumbnailKey', i.thumbnail_key, 'thumbnailError', i.thumbnail_error) end as image
    from slides s join studies t on t.study_id = s.study_id and t.deleted_date is null
    left join images i on i.study_id = s.study_id and i.slide_id = s.slide_id
    where s.study_id = $1 and s.slide_id = $2`;
  const { rows } = await db.query<SlideImage>(prepared(text, [studyId, slideId]));
  return rows[0] ?? null;
}

/** Keeps where the preview of an image is going to stand, or why there can be none; false where the image is gone. */
export async function recordThumbnail(
  db: Db,
  imageId: string,
  thumbnail: { key: string } | { error: string },
): Promise<boolean> {
  const [column, value] = 'key' in thumbnail ? ['thumbnail_key', thumbnail.key] : ['thumbnail_error', thumbnail.error];
  const text = `update images set ${column} = $2 where image_id = $1`;
  return (await db.query(prepared(text, [imageId, value]))).rowCount === 1;
}

/** Which of the FILE NAMEs slides of the study have already. */
export async function findTakenNames(tx: Tx, studyId: string, names: string[]): Promise<Set<string>> {
  const text = `select s.file_name as name from unnest($2::text[]) as n (name)
    join slides s on (s.study_id || s.file_name) = ($1::text || n.name)`;
  const { rows } = await tx.query<{ name: string }>(prepared(text, [studyId, names]));
  return new Set(rows.map(({ name }) => name));
}

/** Gives new slides their images. */
export async function insertImages(
  tx: Tx,
  studyId: string,
  images: (StoredImage & { slideId: string })[],
): Promise<void> {
  const text = `insert into images (study_id, slide_id, image_id, object_key, size_bytes, sha256, format, width, height)
    select $1, "slideId", "imageId", "objectKey", "sizeBytes", sha256, format, width, height
    from json_to_recordset($2::json) as i ("slideId" text, "imageId" text, "objectKey" text, "sizeBytes" bigint,
      sha256 text, format text, width integer, height integer)`;
  await tx.query(prepared(text, [studyId, JSON.stringify(images)]));
}

/** Asks for the removal of an object that nothing refers to. */
export async function purgeObject(db: Db, key: string): Promise<void> {
  await db.query(prepared('insert into object_purges (object_key) values ($1) on conflict do nothing', [key]));
}
