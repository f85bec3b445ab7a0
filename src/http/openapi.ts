import { ID_PATTERN } from '../lib/id.ts';
import {
  outerPaths,
  problemResponses,
  publishedHeaders,
  publishedPaths,
  publishedSchemas,
} from './openapi-published.ts';
import { exampleOf, type Json, pascal, SchemaComponents } from './openapi-schemas.ts';
import { type AnyOperation, changesStudyData } from './operation.ts';

/** Statuses that every authenticated operation can answer: a parameter that it does not know is a 400 for all. */
const COMMON_PROBLEMS = [400, 401, 403, 500, 503];
/** Those of operations with a body. */
const BODY_PROBLEMS = [413, 415];
/** Events of what counts against the limit of image jobs. */
const LIMITED = new Set(['IMAGE_JOB_CREATED', 'IMAGE_JOB_RETRIED']);

const TAGS: Record<string, string> = {
  studies: 'Studies, the roots of everything else.',
  subjects: 'Subjects (animals) of a study.',
  organs: 'Organs of a subject.',
  slides: 'Slides of a study, with their images.',
  findings: 'Microscopic findings in an organ.',
  scores: 'Measurements of a subject or organ.',
  codes: 'The codes object of a study: its code lists.',
  exports: 'Point-in-time exports of a study: started, polled, downloaded, deleted.',
  'image jobs': 'Copying of whole-slide images from and to clouds.',
  credentials: 'Credentials for clouds and directory trees.',
  audit: 'The audit log.',
  authentication: 'Access tokens (OAuth 2.0 client credentials).',
  service: 'The service itself.',
};

export interface ApiInfo {
  version: string;
  /** Scope → what it allows. */
  scopes: Record<string, string>;
  requireChangeReason: boolean;
}

function parametersOf(op: AnyOperation, components: SchemaComponents, info: ApiInfo): Json[] {
  const inPath = [...op.path.matchAll(/\{(\w+)\}/g)].map(([, name]) => ({
    name,
    in: 'path',
    required: true,
    description: `Identifier of the ${(name as string).replace(/Id$/, '')}.`,
    schema: { type: 'string', pattern: ID_PATTERN },
  }));
  const { properties = {} } = (op.query ?? {}) as { properties?: Record<string, Json> };
  const inQuery = Object.entries(properties).map(([name, { description, ...schema }]) => ({
    name,
    in: 'query',
    required: false,
    description,
    schema: components.of(schema, false),
  }));
  const headers: Record<string, { description: string }> = { ...op.headers };
  if (isDownload(op)) {
    headers.Range ??= { description: 'One range of bytes; the answer is then 206 (RFC 9110 §14).' };
    headers['If-Range'] ??= { description: 'The ETag of the part that the client has; another file is sent whole.' };
    headers['If-None-Match'] ??= { description: 'The ETag that the client has; 304 where it still is the file’s.' };
  }
  if (op.ifMatch) headers['If-Match'] = { description: 'Only if the record still has this ETag; 412 otherwise.' };
  if (op.method !== 'GET')
    headers['X-Change-Reason'] = { description: 'Why, for the audit log; up to 1,000 characters.' };
  const inHeader = Object.entries(headers).map(([name, { description }]) => ({
    name,
    in: 'header',
    required: name === 'X-Change-Reason' && info.requireChangeReason && changesStudyData(op),
    description,
    schema: { type: 'string' },
  }));
  return [...inPath, ...inQuery, ...inHeader];
}

/** Whether it hands out a stored file, of which ranges can be asked for. */
function isDownload({ responses }: AnyOperation): boolean {
  return Object.values(responses).some(({ headers = [] }) => headers.includes('Accept-Ranges'));
}

function headersOf(names: readonly string[]): Json {
  return Object.fromEntries(['X-Request-Id', ...names].map((name) => [name, { $ref: `#/components/headers/${name}` }]));
}

function contentOf(op: AnyOperation, status: string, components: SchemaComponents): Json | undefined {
  const { schema, mediaType } = op.responses[Number(status)] as AnyOperation['responses'][number];
  // A file of any kind has no schema; a stream of text has one.
  if (mediaType !== undefined) {
    const types = typeof mediaType === 'string' ? [mediaType] : mediaType;
    const binary = { type: 'string', format: 'binary', description: 'Bytes.' };
    const form = types[0] === 'text/event-stream' && schema ? components.of(schema, false) : binary;
    return Object.fromEntries(types.map((type) => [type, { schema: form }]));
  }
  if (!schema) return undefined;
  const name = `${pascal(op.operationId)}Result`;
  return {
    'application/json': { schema: components.named(schema, name, false), example: exampleOf(schema, 'answer') },
  };
}

function responsesOf(op: AnyOperation, components: SchemaComponents): Json {
  const responses: Json = {};
  for (const [status, { description, headers = [] }] of Object.entries(op.responses)) {
    const content = contentOf(op, status, components);
    responses[status] = { description, headers: headersOf(headers), ...(content ? { content } : {}) };
  }
  if (isDownload(op)) {
    const content = contentOf(op, '200', components);
    const { headers = [] } = op.responses[200] ?? {};
    const partial = headersOf([...headers, 'Content-Range']);
    responses[206] = { description: 'The range that was asked for.', headers: partial, content };
    responses[304] = { description: 'The client has it already.', headers: headersOf(['ETag']) };
    responses[307] = { description: 'The file is at Location, for a few minutes.', headers: headersOf(['Location']) };
  }
  const limited = LIMITED.has(op.event) ? [429] : [];
  const problems = [...COMMON_PROBLEMS, ...(op.body ? BODY_PROBLEMS : []), ...limited, ...(op.problems ?? [])];
  for (const status of [...new Set(problems)].sort()) responses[status] = { $ref: `#/components/responses/${status}` };
  return responses;
}

function operationOf(op: AnyOperation, components: SchemaComponents, info: ApiInfo): Json {
  const bodyName = `${pascal(op.operationId)}Body`;
  return {
    operationId: op.operationId,
    summary: op.summary,
    description: `Needs the scope \`${op.scope}\`; leaves the audit event \`${op.event}\`.`,
    tags: [op.tag],
    security: [{ oauth2: [op.scope] }],
    parameters: parametersOf(op, components, info),
    ...(op.body
      ? {
          requestBody: {
            required: !op.bodyOptional,
            content: {
              'application/json': {
                schema: components.named(op.body, bodyName, true),
                example: exampleOf(op.body, 'body'),
              },
            },
          },
        }
      : {}),
    responses: responsesOf(op, components),
  };
}

/** The OpenAPI 3.1 document, made of the same descriptions and schemas that check the requests (decisions §10). */
export function openapiDocument(operations: AnyOperation[], info: ApiInfo): Json {
  const components = new SchemaComponents();
  Object.assign(components.schemas, publishedSchemas);
  const paths: Record<string, Json> = {};
  for (const op of operations) {
    paths[op.path] ??= {};
    (paths[op.path] as Json)[op.method.toLowerCase()] = operationOf(op, components, info);
  }
  Object.assign(paths, publishedPaths);
  const servers = [{ url: '/', description: 'This service, outside of its API.' }];
  for (const [path, item] of Object.entries(outerPaths)) paths[path] = { servers, ...(item as Json) };
  const tags = new Set([...operations.map(({ tag }) => tag), 'authentication', 'service']);
  const used = new Set(JSON.stringify(paths).match(/#\/components\/responses\/\d+/g));
  return {
    openapi: '3.1.0',
    info: {
      title: 'Study Data Service',
      version: info.version,
      description: 'Preclinical pathology study data, exports, image jobs and audit events.',
      license: { name: 'Apache-2.0', identifier: 'Apache-2.0' },
    },
    servers: [{ url: '/api/v1', description: 'This service.' }],
    tags: [...tags].map((name) => ({ name, description: TAGS[name] ?? `Operations on ${name}.` })),
    security: [{ oauth2: [] }],
    paths,
    components: {
      schemas: components.schemas,
      headers: publishedHeaders,
      responses: Object.fromEntries(
        Object.entries(problemResponses).filter(([status]) => used.has(`#/components/responses/${status}`)),
      ),
      securitySchemes: {
        oauth2: {
          type: 'oauth2',
          description: 'OAuth 2.0 client credentials (RFC 6749 §4.4).',
          flows: { clientCredentials: { tokenUrl: '/api/v1/oauth/token', scopes: info.scopes } },
        },
        clientSecret: { type: 'http', scheme: 'basic', description: 'Client id and secret (RFC 6749 §2.3.1).' },
        metricsToken: { type: 'http', scheme: 'bearer', description: 'SDS_METRICS_TOKEN.' },
      },
    },
  };
}
