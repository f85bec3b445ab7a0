-- Images of slides (decisions §2): one a slide, its bytes in the object store.

create table images (
  image_id text collate "C" primary key,
  study_id text collate "C" not null,
  slide_id text collate "C" not null,
  object_key text collate "C" not null,
  size_bytes bigint not null,
  sha256 text collate "C" not null,
  format text collate "C" not null,
  width integer,
  height integer,
  ingested_date timestamptz(3) not null default now(),
  constraint image_slide foreign key (study_id, slide_id) references slides,
  unique (study_id, slide_id)
);

grant select, insert, update, delete on images to sds_service;
