import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import { openEmbedded } from '../src/db/embedded.ts';
import { type Peer, startPeer } from './peers.ts';

const CLIENT = { id: 'bench', secret: 'a-secret-of-the-bench-alone-0123' };

/** The service in a process of its own on a fresh data directory, and what a client and psql need. */
export interface Subject {
  peer: Peer;
  url: string;
  token: string;
  dir: string;
  /** As the owner; for yardsticks and for making data. */
  databaseUrl: string;
  db: pg.Client;
  call<T = Record<string, string>>(method: string, path: string, body?: unknown): Promise<T>;
  stop(): Promise<void>;
}

/** The built service on a data directory, as a user's `sds serve` would start it, with the client of the benches. */
export function serve(dir: string, env: Record<string, string>): Promise<Peer> {
  const client = `${CLIENT.id}:${CLIENT.secret}`;
  return startPeer(['dist/main.js', 'serve'], { SDS_DATA_DIR: dir, SDS_BOOTSTRAP_CLIENT: client, ...env });
}

/** A token of that client. */
export async function tokenOf(url: string): Promise<string> {
  const response = await fetch(`${url}/oauth/token`, {
    method: 'POST',
    body: new URLSearchParams({ grant_type: 'client_credentials', client_id: CLIENT.id, client_secret: CLIENT.secret }),
  });
  return ((await response.json()) as { access_token: string }).access_token;
}

/** Starts the service on a fresh data directory. */
export async function startSubject(env: Record<string, string> = {}): Promise<Subject> {
  const dir = await mkdtemp(join(tmpdir(), 'sds-bench-'));
  const peer = await serve(dir, { SDS_PORT: '0', SDS_LOG_LEVEL: 'warn', ...env });
  const { url } = peer;
  const token = await tokenOf(url);
  const embedded = await openEmbedded({ dir, purpose: 'tool' });
  const db = new pg.Client({ connectionString: embedded.url });
  await db.connect();
  return {
    peer,
    url: `${url}/api/v1`,
    token,
    dir,
    databaseUrl: embedded.url,
    db,
    async call<T>(method: string, path: string, body?: unknown) {
      const answer = await fetch(`${url}/api/v1${path}`, {
        method,
        headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      });
      if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${await answer.text()}`);
      return (await answer.json()) as T;
    },
    async stop() {
      await db.end();
      await peer.stop();
      await embedded.close();
      await rm(dir, { recursive: true, force: true });
    },
  };
}

/** A study with one subject and organ, and so many findings made inside the database. */
export async function makeStudy(
  subject: Subject,
  findings: number,
): Promise<Record<'study' | 'subject' | 'organ', string>> {
  const { studyId: study = '' } = await subject.call('POST', '/studies', { name: `Bench of ${findings} findings` });
  const { subjectId = '' } = await subject.call('POST', `/studies/${study}/subjects`, {
    name: '1001',
    attributes: { SEX: 'M', SETCD: 'H', ARMCD: '4', SPECIES: 'RAT' },
  });
  const { organId = '' } = await subject.call('POST', `/studies/${study}/organs`, { subjectId, name: 'LIVER' });
  if (findings > 0) {
    await subject.db.query(
      `insert into findings (study_id, finding_id, subject_id, organ_id, name, severity, attributes, created_date, updated_date)
        select $1, '0B' || lpad(n::text, 22, '0'), $2, $3, 'Finding ' || n % 50, case when n % 5 = 0 then 'MILD' end,
          (select row_to_json(a) from (select n as "MISEQ", 'Vacuolation, hepatocellular' as "MIORRES",
            'NON-NEOPLASTIC' as "MIRESCAT", 29 as "MIDY", null as "MISTAT") a), now() + n * interval '1 millisecond', now()
        from generate_series(1, $4::int) n`,
      [study, subjectId, organId, findings],
    );
    await subject.db.query(`insert into record_counts (study_id, kind, n) values ($1, 'finding', $2)`, [
      study,
      findings,
    ]);
    await subject.db.query('vacuum analyze findings');
  }
  return { study, subject: subjectId, organ: organId };
}
