import type { Db } from '../db/database.ts';
import { prepared } from '../db/statement.ts';
import { fileMembers, jobMembers, listed } from './job-queries.ts';
import { terminalStatuses } from './states.ts';

/** What a job's stream has to tell of one moment. */
export interface Moment {
  /** Number of the last event. */
  eventNo: number;
  ended: boolean;
  /** The job record as JSON text. */
  job: string;
  /** The same with `bytesPerSecond` and `etaSeconds`. */
  progress: string;
  /** Files whose status changed under a later number than was asked for, in order: records as JSON text. */
  files: { no: number; record: string }[];
}

/**
 * The job and up to `limit` files that changed after event `after` (null: none), of one moment; null where there is no
 * such job. A file that changed several times is told once, as it is.
 */
export async function readMoment(db: Db, jobId: string, after: number | null, limit: number): Promise<Moment | null> {
  const running = `r.status = 'RUNNING' and r.bytes_per_second is not null`;
  const text = `select r.event_no as "eventNo", r.status in (${listed(terminalStatuses)}) as ended,
      (select row_to_json(q)::text from (select ${jobMembers}) q) as job,
      (select row_to_json(q)::text from (select ${jobMembers},
        case when ${running} then r.bytes_per_second end as "bytesPerSecond",
        case when ${running} and r.bytes_per_second > 0
          then ceil(r.bytes_left::numeric / r.bytes_per_second)::bigint end as "etaSeconds") q) as progress,
      (select coalesce(json_agg(json_build_object('no', f.event_no, 'record', f.record) order by f.event_no), '[]')
        from (select r.event_no, (select row_to_json(q)::text from (select ${fileMembers}) q) as record
          from image_files r where r.job_id = $1 and r.event_no > $2 and r.event_no > 0
          order by r.event_no limit $3) f) as files
    from image_jobs r where r.job_id = $1`;
  const { rows } = await db.query<Moment>(prepared(text, [jobId, after, limit]));
  return rows[0] ?? null;
}
