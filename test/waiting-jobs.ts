import { afterAll, beforeAll } from 'vitest';
import { createCredential, createStudy, makeRoot } from './image-jobs.ts';
import { type Answer, type Json, type TestService, useService } from './service.ts';

/** Path that ingests are started at. */
export const ingest = '/image/jobs:ingest';

interface WaitingJobs {
  service: TestService;
  /** What jobs are started with: a study, and a credential of a directory tree. */
  given: { studyId: string; credentialId: string };
  /** A client of its own, so that no other test counts against its limit of 5 jobs. */
  asClient(): Promise<{
    clientId: string;
    post(path: string, body?: Json, headers?: Record<string, string>): Promise<Answer<Json>>;
  }>;
  /** Body of an ingest. */
  body(members?: Json): Json;
  /** Events of a job, oldest first. */
  eventsOf(jobId: string): Promise<Json[]>;
}

/** A service on which nobody works on jobs: they stay as they are created. */
export async function useWaitingJobs(): Promise<WaitingJobs> {
  const root = await makeRoot();
  afterAll(() => root.remove());
  const roots = `scanner=${root.dir}`;
  const service = useService({ SDS_FILE_ROOTS: roots, SDS_WORKERS: '0', SDS_IMAGE_JOBS_PER_CLIENT: '5' });
  const given = { studyId: '', credentialId: '' };
  beforeAll(async () => {
    given.credentialId = await createCredential(service, 'scanner');
    given.studyId = await createStudy(service);
  });
  return {
    service,
    given,
    async asClient() {
      const { token, clientId } = await service.client();
      return { clientId, post: (path, body, headers = {}) => service.call('POST', path, body, { token, headers }) };
    },
    body: (members = { prefix: 'a/' }) => ({ ...given, ...members }),
    eventsOf: async (jobId) => (await service.call('GET', `/audit/events?resourceId=${jobId}`)).body.items,
  };
}
