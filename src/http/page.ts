import type { FastifyRequest } from 'fastify';
import { type TSchema, Type } from 'typebox';
import type { Page } from '../db/paging.ts';

const Link = Type.Union([Type.String({ format: 'uri' }), Type.Null()]);

/** The paging envelope of every list (interface.md §2). */
export function pageSchema<T extends TSchema>(item: T) {
  const { title } = item as { title?: unknown };
  return Type.Object(
    {
      paging: Type.Object({
        pageNumber: Type.Integer({ description: 'Current page, 1-based.' }),
        pageSize: Type.Integer({ description: 'Page size used.' }),
        totalItems: Type.Integer({ description: 'Matching items over all pages.' }),
        links: Type.Object({
          next: { ...Link, description: 'URL of the next page; null on the last.' },
          prev: { ...Link, description: 'URL of the previous page; null on the first.' },
        }),
      }),
      items: Type.Array(item),
    },
    typeof title === 'string' ? { title: `${title}Page` } : {},
  );
}

/** Where clients reach the service: as configured, else as this request came in. */
export function originOf(request: FastifyRequest, publicUrl: string | null): string {
  return publicUrl ?? `${request.protocol}://${request.host}`;
}

/** The envelope around a page: links carry the client's own parameters and the place to read on from. */
export function pageBody(page: Page, request: FastifyRequest, publicUrl: string | null): string {
  const { pageNumber, pageSize } = page.request;
  const [path, query = ''] = request.url.split('?', 2);
  const link = (number: number, cursor: string | null): string => {
    const parameters = new URLSearchParams(query);
    parameters.set('pageNumber', String(number));
    parameters.delete('cursor');
    if (cursor) parameters.set('cursor', cursor);
    return `${originOf(request, publicUrl)}${path}?${parameters}`;
  };
  const paging = {
    pageNumber,
    pageSize,
    totalItems: page.totalItems,
    links: {
      next: page.hasNext ? link(pageNumber + 1, page.next) : null,
      prev: pageNumber > 1 ? link(pageNumber - 1, page.prev) : null,
    },
  };
  return `{"paging":${JSON.stringify(paging)},"items":[${page.items}]}`;
}
