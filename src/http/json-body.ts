import type { FastifyInstance } from 'fastify';
import type { Fault } from '../lib/problem.ts';

const utf8 = new TextDecoder('utf-8', { fatal: true });

/**
 * Objects and arrays that a body may have whatever its size: a hundred times those of the largest bulk call with
 * attributes. Each takes up to 60 bytes of memory, for two or three of the body.
 */
const FREE_CONTAINERS = 100_000;
/** Beyond, one in 16 bytes: what real records have at most, so that the parsed body is a few times its size. */
const BYTES_PER_CONTAINER = 16;

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const OPEN_ARRAY = 0x5b;
const OPEN_OBJECT = 0x7b;

/** Whether a body has so many objects and arrays that parsing it would take a multiple of its memory (decisions §8). */
function bloats(body: Buffer): boolean {
  if (body.length <= FREE_CONTAINERS) return false;
  let left = Math.max(FREE_CONTAINERS, body.length / BYTES_PER_CONTAINER);
  let inString = false;
  for (let i = 0; i < body.length; i++) {
    const byte = body[i];
    if (byte === QUOTE) inString = !inString;
    else if (inString) {
      if (byte === BACKSLASH) i++;
    } else if ((byte === OPEN_ARRAY || byte === OPEN_OBJECT) && --left < 0) return true;
  }
  return false;
}

/**
 * Bodies are JSON in UTF-8 and nothing else; an empty one is none. Parsed here and not by Fastify, as `__proto__` is an
 * attribute key like any other (decisions §1).
 */
export function jsonBodies(app: FastifyInstance): void {
  app.removeAllContentTypeParsers();
  app.addContentTypeParser('application/json', { parseAs: 'buffer' }, (_request, body, done) => {
    if (body.length === 0) return done(null, undefined);
    try {
      if (bloats(body as Buffer)) return done(null, malformed('has too many objects and arrays for its size'));
      done(null, JSON.parse(utf8.decode(body as Buffer)));
    } catch (error) {
      // Only the place of the fault: the parser's own message quotes the body, which may hold a secret.
      const at = error instanceof SyntaxError ? /position \d+/.exec(error.message)?.[0] : undefined;
      done(null, malformed(error instanceof SyntaxError ? `is not valid JSON${at ? ` (${at})` : ''}` : 'is not UTF-8'));
    }
  });
}

/** In place of a body that cannot be read: one fault of the request, to be told with all others. */
export class MalformedBody {
  readonly fault: Fault;

  constructor(detail: string) {
    this.fault = { pointer: '', detail };
  }
}

const malformed = (detail: string) => new MalformedBody(detail);
