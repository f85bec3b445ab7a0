import Fastify from 'fastify';
import pg from 'pg';

/**
 * The yardstick of the request figures: the least that a server on Fastify and pg can do. Named statements, a pool of
 * 10, one fixed token compared as a string, no validation, no audit of reads. It works on the service's own tables.
 */
const [url, token] = process.argv.slice(2);
const pool = new pg.Pool({ connectionString: url as string, max: 10 });
const app = Fastify();
app.addHook('onRequest', (request, reply, done) => {
  if (request.headers.authorization !== `Bearer ${token}`) void reply.code(401).send();
  else done();
});

interface Params {
  study: string;
  id: string;
}

app.get<{ Params: Params }>('/studies/:study/subjects/:id', async ({ params }) => {
  const { rows } = await pool.query({
    name: 'subject',
    text: `select subject_id as "subjectId", study_id as "studyId", name, attributes, created_date as "createdDate",
      updated_date as "updatedDate", version from subjects where study_id = $1 and subject_id = $2`,
    values: [params.study, params.id],
  });
  return rows[0];
});

let count = 0;
app.post<{ Params: Params; Body: Record<string, unknown> }>(
  '/studies/:study/findings',
  async ({ params, body }, reply) => {
    const id = `${Date.now().toString(36).padStart(12, '0')}${(count++).toString(36).padStart(12, '0')}`;
    const { rows } = await pool.query({
      name: 'finding',
      text: `with f as (insert into findings (study_id, finding_id, subject_id, organ_id, name, severity, attributes)
        values ($1, $2, $3, $4, $5, $6, $7) returning *),
      e as (insert into audit_events (event_id, event, client_id, operation, method, path, status, study_id, request_id,
          resource_type, resource_id)
        values ($2, 'STUDY_UPDATED', 'floor', 'POST', 'POST', '/findings', 201, $1, $2, 'finding', $2))
      select * from f`,
      values: [params.study, id, body.subjectId, body.organId, body.name, body.severity, body.attributes],
    });
    return reply.code(201).send(rows[0]);
  },
);

app.get<{ Params: Params }>('/studies/:study/findings', async ({ params }) => {
  const { rows } = await pool.query({
    name: 'findings',
    text: `select finding_id as "findingId", study_id as "studyId", subject_id as "subjectId", organ_id as "organId",
      slide_id as "slideId", name, severity, attributes, created_date as "createdDate", updated_date as "updatedDate",
      version from findings where study_id = $1 order by created_date, finding_id limit 25`,
    values: [params.study],
  });
  return { items: rows };
});

await app.listen({ port: 0, host: '127.0.0.1' });
const address = app.server.address();
process.stdout.write(`listening on http://127.0.0.1:${typeof address === 'object' && address ? address.port : ''}\n`);
process.on('SIGTERM', () => process.exit(0));
