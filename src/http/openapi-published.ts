import { type ProblemKind, problemKinds } from '../lib/problem.ts';
import type { Json } from './openapi-schemas.ts';

const text = (description: string, more: Json = {}): Json => ({ type: 'string', description, ...more });
const object = (properties: Json, required = Object.keys(properties)): Json => ({
  type: 'object',
  required,
  properties,
});
const ref = (kind: string, name: string | number): Json => ({ $ref: `#/components/${kind}/${name}` });
const answer = (description: string, mediaType: string, schema: Json, more: Json = {}): Json => ({
  description,
  headers: { 'X-Request-Id': ref('headers', 'X-Request-Id') },
  content: { [mediaType]: { schema, ...more } },
});
const json = (description: string, schema: Json, example: unknown): Json =>
  answer(description, 'application/json', schema, { example });

/** RFC 9457 Problem Details, with the members of interface.md §7 and decisions §8. */
export const publishedSchemas: Json = {
  Problem: {
    description: 'RFC 9457 Problem Details.',
    ...object(
      {
        type: text('Machine-readable kind; the address of a page that explains it.', { format: 'uri-reference' }),
        title: text('Short summary of the type.'),
        status: { type: 'integer', description: 'HTTP status.' },
        detail: text('Explanation for this occurrence.'),
        instance: text('The request URI that caused the error.'),
        requestId: text('Of the header X-Request-Id and of the log.'),
        errors: { type: 'array', description: 'All faults of the request.', items: ref('schemas', 'Fault') },
      },
      ['type', 'title', 'status', 'detail', 'instance', 'requestId'],
    ),
  },
  Fault: {
    description: 'One fault of a request: where it is, by one of three, and what is wrong.',
    ...object(
      {
        pointer: text('RFC 6901 pointer to the member of the body.'),
        parameter: text('Name of the path or query parameter.'),
        header: text('Name of the header.'),
        detail: text('What is wrong with it.'),
      },
      ['detail'],
    ),
  },
  TokenRequest: {
    description: 'Client credentials grant (RFC 6749 §4.4).',
    ...object(
      {
        grant_type: text('The only one.', { enum: ['client_credentials'] }),
        client_id: text('The client, unless it is in the Authorization header.'),
        client_secret: text('Its secret, unless it is in the Authorization header.', { format: 'password' }),
        scope: text('Scopes separated by spaces, to have fewer than the client has.'),
      },
      ['grant_type'],
    ),
  },
  Token: {
    description: 'An access token (RFC 6749 §5.1).',
    ...object({
      access_token: text('Send it as Authorization: Bearer ACCESS_TOKEN.'),
      token_type: text('How to send it.', { enum: ['Bearer'] }),
      expires_in: { type: 'integer', description: 'Lifetime in seconds.' },
      scope: text('The scopes that it has, separated by spaces.'),
    }),
  },
  TokenError: {
    description: 'RFC 6749 §5.2; the one error that is no problem+json.',
    ...object({
      error: text('What kind of error.', {
        enum: [
          'invalid_request',
          'invalid_client',
          'unsupported_grant_type',
          'invalid_scope',
          'slow_down',
          'temporarily_unavailable',
          'server_error',
        ],
      }),
      error_description: text('For a person.'),
    }),
  },
};

export const publishedHeaders: Json = {
  'X-Request-Id': { description: 'Identifies the call in log and audit.', schema: { type: 'string' } },
  ETag: { description: 'Version of what is answered; send it as If-Match.', schema: { type: 'string' } },
  Location: { description: 'Where the resource can be read.', schema: { type: 'string', format: 'uri-reference' } },
  'Retry-After': { description: 'Seconds after which to ask again.', schema: { type: 'integer', minimum: 0 } },
  'Content-Disposition': { description: 'A readable file name (RFC 6266).', schema: { type: 'string' } },
  'Content-Length': { description: 'Bytes of the answer.', schema: { type: 'integer', minimum: 0 } },
  'Content-Range': { description: 'Which part this is, or the size of the file.', schema: { type: 'string' } },
  'Accept-Ranges': { description: 'Parts can be asked for by Range.', schema: { type: 'string', enum: ['bytes'] } },
  'Idempotency-Replayed': {
    description: '`true` where the key had been used and the job is the one that it started.',
    schema: { type: 'string', enum: ['true'] },
  },
  'WWW-Authenticate': { description: 'How to authenticate (RFC 6750 §3).', schema: { type: 'string' } },
};

/** Headers that a problem comes with, besides its X-Request-Id. */
const PROBLEM_HEADERS: Partial<Record<ProblemKind, string>> = {
  unauthorized: 'WWW-Authenticate',
  forbidden: 'WWW-Authenticate',
  'range-not-satisfiable': 'Content-Range',
  'too-many-requests': 'Retry-After',
  unavailable: 'Retry-After',
};

/** Every problem as an answer, by its status. */
export const problemResponses: Json = Object.fromEntries(
  Object.entries(problemKinds).map(([kind, { status, title }]) => {
    const header = PROBLEM_HEADERS[kind as ProblemKind];
    const example = {
      type: `/errors/${kind}`,
      title,
      status,
      detail: 'What happened here.',
      instance: '/api/v1/studies',
      requestId: '0MZ3fW9k000aB7dR2uQxKpLc',
    };
    const response = answer(`${title} (\`/errors/${kind}\`).`, 'application/problem+json', ref('schemas', 'Problem'), {
      example,
    });
    if (header) (response.headers as Json)[header] = ref('headers', header);
    return [status, response];
  }),
);

const TOKEN_ERRORS: Record<number, [description: string, error: string]> = {
  400: ['The request is malformed, or asks for what is not to be had.', 'invalid_scope'],
  401: ['The client or its secret is wrong, or the client is disabled.', 'invalid_client'],
  429: ['Too many wrong secrets.', 'slow_down'],
  500: ['The token could not be issued.', 'server_error'],
  503: ['Tokens cannot be issued at the moment.', 'temporarily_unavailable'],
};

function tokenError([status, [description, error]]: [string, [string, string]]): [string, Json] {
  const response = json(description, ref('schemas', 'TokenError'), { error, error_description: description });
  const header = { 401: 'WWW-Authenticate', 429: 'Retry-After', 503: 'Retry-After' }[status];
  if (header) (response.headers as Json)[header] = ref('headers', header);
  return [status, response];
}

const tokenForm = {
  schema: ref('schemas', 'TokenRequest'),
  example: { grant_type: 'client_credentials', client_id: 'laboratory', client_secret: 'SECRET', scope: 'Study:Read' },
};

function get(operationId: string, summary: string, responses: Json, more: Json = {}): Json {
  return { get: { operationId, summary, tags: ['service'], security: [], responses, ...more } };
}

const state = object({ status: text('The state.', { enum: ['ready', 'not ready'] }), checks: { type: 'object' } });
const anything = { type: 'object', additionalProperties: true };
const failed = { 500: ref('responses', 500) };
const closedMetrics = { 401: ref('responses', 401) };

/** What needs no token below `/api/v1`. */
export const publishedPaths: Json = {
  '/oauth/token': {
    post: {
      operationId: 'issueToken',
      summary: 'Issues an access token',
      description: 'Also served at `/oauth/token`. Not audited.',
      tags: ['authentication'],
      security: [{ clientSecret: [] }, {}],
      requestBody: {
        required: true,
        content: { 'application/x-www-form-urlencoded': tokenForm, 'application/json': tokenForm },
      },
      responses: {
        200: json('The token.', ref('schemas', 'Token'), {
          access_token: 'eyJhbGciOiJFUzI1NiJ9.e30.c2ln',
          token_type: 'Bearer',
          expires_in: 3600,
          scope: 'Study:Read',
        }),
        ...Object.fromEntries(Object.entries(TOKEN_ERRORS).map(tokenError)),
      },
    },
  },
  '/openapi.json': get('getOpenapi', 'Reads this document', {
    200: json('The document.', anything, { openapi: '3.1.0' }),
    ...failed,
  }),
};

/** What lies beside `/api/v1`. */
export const outerPaths: Json = {
  '/healthz': get('getHealth', 'Tells that the process is alive', {
    200: json('Alive.', object({ status: text('The state.', { enum: ['alive'] }) }), { status: 'alive' }),
    ...failed,
  }),
  '/readyz': get('getReadiness', 'Tells whether database and object store answer', {
    200: json('Ready.', state, { status: 'ready', checks: { database: 'ok', objectStore: 'ok' } }),
    503: json('Not ready.', state, { status: 'not ready', checks: { database: 'does not answer', objectStore: 'ok' } }),
  }),
  '/metrics': get(
    'getMetrics',
    'Reads the metrics, for Prometheus',
    { 200: answer('The metrics.', 'text/plain', { type: 'string' }), ...closedMetrics },
    { description: 'Needs a token where SDS_METRICS_TOKEN is set.', security: [{}, { metricsToken: [] }] },
  ),
  '/.well-known/jwks.json': get('getKeys', 'Reads the public keys of access tokens (RFC 7517)', {
    200: json('The keys.', anything, { keys: [] }),
    ...failed,
  }),
  '/.well-known/oauth-authorization-server': get('getAuthorizationServer', 'Reads the server metadata (RFC 8414)', {
    200: json('The metadata.', anything, { issuer: 'https://sds.example.org' }),
    ...failed,
  }),
  '/errors/{kind}': {
    parameters: [
      {
        name: 'kind',
        in: 'path',
        required: true,
        description: 'The last part of the type of a problem.',
        schema: { type: 'string', enum: Object.keys(problemKinds) },
      },
    ],
    ...get('getProblemPage', 'Explains a type of problem', {
      200: answer('A page.', 'text/html', { type: 'string' }),
      404: ref('responses', 404),
    }),
  },
};
