import type { TSchema } from 'typebox';
import { problemKinds } from '../lib/problem.ts';
import type { AnyOperation } from './operation.ts';

type Json = Record<string, unknown>;

/** Statuses that every authenticated operation can answer. */
const COMMON_PROBLEMS = [400, 401, 403, 429, 500, 503];
/** Those of operations with a body. */
const BODY_PROBLEMS = [413, 415];

const problemSchema = {
  type: 'object',
  description: 'RFC 9457 Problem Details.',
  required: ['type', 'title', 'status', 'detail', 'instance', 'requestId'],
  properties: {
    type: {
      type: 'string',
      format: 'uri-reference',
      description: 'Machine-readable kind.',
      examples: ['/errors/not-found'],
    },
    title: { type: 'string', description: 'Short summary of the type.' },
    status: { type: 'integer', description: 'HTTP status.' },
    detail: { type: 'string', description: 'Explanation for this occurrence.' },
    instance: { type: 'string', description: 'The request URI that caused the error.' },
    requestId: { type: 'string', description: 'Of the header X-Request-Id and of the log.' },
    errors: {
      type: 'array',
      description: 'All faults of the request.',
      items: {
        type: 'object',
        required: ['detail'],
        properties: {
          pointer: { type: 'string', description: 'RFC 6901 pointer to the member at fault.' },
          parameter: { type: 'string', description: 'The path or query parameter at fault.' },
          header: { type: 'string', description: 'The header at fault.' },
          detail: { type: 'string', description: 'What is wrong with it.' },
        },
      },
    },
  },
};

const headerDescriptions: Record<string, string> = {
  ETag: 'Version of the record; send it as If-Match.',
  Location: 'Where the new resource can be read.',
  'Retry-After': 'Seconds after which to ask again.',
  'Content-Disposition': 'A readable file name.',
  'Accept-Ranges': 'Byte ranges work.',
};

/** Makes components of schemas that have a title, and gives maps the form that client generators understand. */
function hoist(schema: unknown, components: Json, closed: boolean): unknown {
  if (Array.isArray(schema)) return schema.map((one) => hoist(one, components, closed));
  if (schema === null || typeof schema !== 'object') return schema;
  const { patternProperties, title, ...rest } = schema as Json;
  const result: Json = {};
  for (const [key, value] of Object.entries(rest)) {
    result[key] = key === 'examples' || key === 'default' ? value : hoist(value, components, closed);
  }
  if (patternProperties) {
    result.additionalProperties = hoist(Object.values(patternProperties)[0], components, closed);
  }
  if (closed && result.properties) result.additionalProperties = false;
  if (Array.isArray(result.enum)) result.type ??= 'string';
  if (typeof title !== 'string') return result;
  components[title] ??= result;
  return { $ref: `#/components/schemas/${title}` };
}

function parametersOf(op: AnyOperation, components: Json): Json[] {
  const inPath = [...op.path.matchAll(/\{(\w+)\}/g)].map(([, name]) => ({
    name,
    in: 'path',
    required: true,
    description: `Identifier of the ${(name as string).replace(/Id$/, '')}.`,
    schema: { type: 'string', pattern: '^[0-9A-Za-z]{24}$' },
  }));
  const { properties = {} } = (op.query ?? {}) as { properties?: Record<string, Json> };
  const inQuery = Object.entries(properties).map(([name, { description, ...schema }]) => ({
    name,
    in: 'query',
    required: false,
    description,
    schema: hoist(schema, components, false),
  }));
  const headers: Record<string, { description: string }> = { ...op.headers };
  if (op.ifMatch) headers['If-Match'] = { description: 'Only if the record still has this ETag; 412 otherwise.' };
  if (op.method !== 'GET')
    headers['X-Change-Reason'] = { description: 'Why, for the audit log; up to 1,000 characters.' };
  const inHeader = Object.entries(headers).map(([name, { description }]) => ({
    name,
    in: 'header',
    required: false,
    description,
    schema: { type: 'string' },
  }));
  return [...inPath, ...inQuery, ...inHeader];
}

/** An example put together from those of the members. */
function exampleOf(schema: unknown): unknown {
  const { examples, properties, required = [], type, items, anyOf } = schema as Json & { required?: string[] };
  if (Array.isArray(examples)) return examples[0];
  if (properties) {
    const members = Object.entries(properties as Record<string, Json>).filter(
      ([name, member]) => !member.readOnly && (required.includes(name) || member.examples),
    );
    return Object.fromEntries(members.map(([name, member]) => [name, exampleOf(member)]));
  }
  if (Array.isArray(anyOf)) return exampleOf(anyOf[0]);
  if (type === 'array') return [exampleOf(items)];
  return { string: 'text', integer: 1, number: 1, boolean: true }[type as string] ?? {};
}

function responsesOf(op: AnyOperation, components: Json): Json {
  const responses: Json = {};
  for (const [status, { description, schema, mediaType, headers = [] }] of Object.entries(op.responses)) {
    responses[status] = {
      description,
      headers: Object.fromEntries(
        headers.map((name) => [name, { description: headerDescriptions[name] ?? name, schema: { type: 'string' } }]),
      ),
      ...(schema
        ? { content: { [mediaType ?? 'application/json']: { schema: hoist(schema, components, false) } } }
        : {}),
    };
  }
  const problems = [...COMMON_PROBLEMS, ...(op.body ? BODY_PROBLEMS : []), ...(op.problems ?? [])];
  for (const status of [...new Set(problems)].sort()) responses[status] = { $ref: `#/components/responses/${status}` };
  return responses;
}

/** The OpenAPI 3.1 document, made of the same descriptions and schemas that check the requests (decisions §10). */
export function openapiDocument(
  operations: AnyOperation[],
  info: { version: string; scopes: Record<string, string> },
): Json {
  const schemas: Json = { Problem: problemSchema };
  const paths: Record<string, Json> = {};
  for (const op of operations) {
    paths[op.path] ??= {};
    (paths[op.path] as Json)[op.method.toLowerCase()] = {
      operationId: op.operationId,
      summary: op.summary,
      description: `Needs the scope \`${op.scope}\`; leaves the audit event \`${op.event}\`.`,
      tags: [op.tag],
      security: [{ oauth2: [op.scope] }],
      parameters: parametersOf(op, schemas),
      ...(op.body
        ? {
            requestBody: {
              required: !op.bodyOptional,
              content: {
                'application/json': { schema: hoist(op.body, schemas, true), example: exampleOf(op.body as TSchema) },
              },
            },
          }
        : {}),
      responses: responsesOf(op, schemas),
    };
  }
  const responses = Object.fromEntries(
    Object.entries(problemKinds).map(([kind, { status, title }]) => [
      status,
      {
        description: `${title} (\`/errors/${kind}\`).`,
        content: { 'application/problem+json': { schema: { $ref: '#/components/schemas/Problem' } } },
      },
    ]),
  );
  const tags = [...new Set(operations.map(({ tag }) => tag))].map((name) => ({
    name,
    description: `Operations on ${name}.`,
  }));
  return {
    openapi: '3.1.0',
    info: {
      title: 'Study Data Service',
      version: info.version,
      description: 'Preclinical pathology study data, exports, image jobs and audit events.',
      license: { name: 'Apache-2.0', identifier: 'Apache-2.0' },
    },
    servers: [{ url: '/api/v1', description: 'This service.' }],
    tags,
    security: [{ oauth2: [] }],
    paths,
    components: {
      schemas,
      responses,
      securitySchemes: {
        oauth2: {
          type: 'oauth2',
          description: 'OAuth 2.0 client credentials (RFC 6749 §4.4).',
          flows: { clientCredentials: { tokenUrl: '/api/v1/oauth/token', scopes: info.scopes } },
        },
      },
    },
  };
}
