import { expect, test } from 'vitest';
import { eventually, type Json, useService } from './service.ts';

const service = useService({ SDS_REQUIRE_CHANGE_REASON: 'true' });
const headers = { 'x-change-reason': 'as the protocol was amended' };

test('PUT and DELETE of study data need a reason where the administrator asks for it', async () => {
  const { body: study } = await service.call('POST', '/studies', { name: 'A study with reasons' });
  const path = `/studies/${study.studyId}`;
  const missing = await service.call('PUT', path, study);
  expect(missing.body).toMatchObject({ status: 422, errors: [{ header: 'X-Change-Reason' }] });
  expect((await service.call('PUT', path, study, { headers: { 'x-change-reason': ' ' } })).status).toBe(422);
  expect((await service.call('PUT', path, study, { headers })).status).toBe(200);
  const { body: subject } = await service.call('POST', `${path}/subjects`, { name: '1001' });
  expect((await service.call('DELETE', `${path}/subjects/${subject.subjectId}`)).status).toBe(422);
  expect((await service.call('GET', `${path}/subjects/${subject.subjectId}`)).status).toBe(200);
  await service.call('POST', `${path}/codes`, { codeLists: {} });
  expect((await service.call('PUT', `${path}/codes`, { codeLists: {} })).status).toBe(422);
  expect((await service.call('PUT', `${path}/codes`, { codeLists: {} }, { headers })).status).toBe(200);
  expect((await service.call('DELETE', path)).status).toBe(422);
  expect((await service.call('DELETE', path, undefined, { headers })).status).toBe(204);
});

test('an export is no study data: it is deleted without a reason', async () => {
  const { body: study } = await service.call('POST', '/studies', { name: 'A study with reasons' });
  const path = `/studies/${study.studyId}`;
  await service.call('POST', `${path}/subjects`, { name: '1001' });
  const { body: job } = await service.call('POST', `${path}/exports`, { format: 'JSON' });
  await eventually(async () => {
    const { body } = await service.call('GET', `${path}/exports/${job.exportId}`);
    return body.exportStatus.status === 'COMPLETED';
  });
  expect((await service.call('DELETE', `${path}/exports/${job.exportId}`)).status).toBe(204);
});

test('the API document says where a reason is required', async () => {
  const { paths }: Json = await (await fetch(`${service.url}/api/v1/openapi.json`)).json();
  const required = (path: string, method: string) =>
    paths[path][method].parameters.find(({ name }: { name: string }) => name === 'X-Change-Reason').required;
  expect(required('/studies/{studyId}', 'put')).toBe(true);
  expect(required('/studies/{studyId}/subjects/{subjectId}', 'delete')).toBe(true);
  expect(required('/studies', 'post')).toBe(false);
  expect(required('/studies/{studyId}/exports/{exportId}', 'delete')).toBe(false);
});
