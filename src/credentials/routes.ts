import { Type } from 'typebox';
import { pageParameters, pageRequest } from '../db/paging.ts';
import { etagOf } from '../http/headers.ts';
import { type Api, operation, type Result } from '../http/operation.ts';
import { pageBody, pageSchema } from '../http/page.ts';
import { notFound, rejected } from '../lib/problem.ts';
import { prefixFaults } from './object-keys.ts';
import type { CredentialDeps } from './open.ts';
import { findCredential, findSealed, keepValidation, listCredentials, type StoredCredential } from './queries.ts';
import { createCredential, removeCredential, replaceCredential } from './rules.ts';
import { CreateBody, Credential, providers, UpdateBody, Validation, ValidationBody } from './schemas.ts';
import { validateCredential } from './validate.ts';

function recordResult({ record, version }: StoredCredential): Result {
  return { body: record, headers: { ETag: etagOf(version) } };
}

/** Cloud credentials (decisions §5): seen by every client with the scope, their secrets by none. */
export function credentialRoutes(api: Api, deps: CredentialDeps): void {
  const collection = { path: '/cloud/credentials', tag: 'credentials', resource: { type: 'credential' } } as const;
  const one = {
    path: '/cloud/credentials/{credentialId}',
    tag: 'credentials',
    resource: { type: 'credential', id: 'credentialId' },
  } as const;
  const recordResponse = { description: 'The credential, without its secret.', schema: Credential, headers: ['ETag'] };

  operation(api, {
    ...collection,
    method: 'GET',
    operationId: 'listCredentials',
    summary: 'Lists cloud credentials',
    scope: 'Credential:Read',
    event: 'CLIENT_ACCESSED_STUDY',
    query: Type.Object({
      provider: Type.Optional(Type.Enum([...providers], { description: 'Only those of this provider.' })),
      ...pageParameters(['createdDate', 'name']),
    }),
    responses: { 200: { description: 'A page of credentials.', schema: pageSchema(Credential) } },
    read: async (db, { query, request }) => {
      const { provider } = query as { provider?: string };
      const page = await listCredentials(db, provider, pageRequest(query, 'createdDate'));
      return { body: pageBody(page, request, api.publicUrl) };
    },
  });

  operation(api, {
    ...collection,
    method: 'POST',
    operationId: 'createCredential',
    summary: 'Stores a cloud credential; its secret is encrypted and never shown again',
    scope: 'Credential:Write',
    event: 'CLOUD_CREDENTIAL_CREATED',
    body: CreateBody,
    responses: { 201: { ...recordResponse, headers: ['ETag', 'Location'] } },
    problems: [422],
    write: async (tx, { body, faults }) => {
      const { credentialId, ...stored } = await createCredential(tx, deps, body, { faults });
      const { headers, ...result } = recordResult(stored);
      return {
        ...result,
        status: 201,
        headers: { ...headers, Location: `/api/v1/cloud/credentials/${credentialId}` },
        event: { resourceId: credentialId },
      };
    },
  });

  operation(api, {
    ...one,
    method: 'GET',
    operationId: 'getCredential',
    summary: 'Reads a cloud credential',
    scope: 'Credential:Read',
    event: 'CLIENT_ACCESSED_STUDY',
    responses: { 200: recordResponse },
    problems: [404],
    read: async (db, { params }) => {
      const found = await findCredential(db, params.credentialId);
      if (!found) throw notFound('credential');
      return recordResult(found);
    },
  });

  operation(api, {
    ...one,
    method: 'PUT',
    operationId: 'updateCredential',
    summary: 'Updates a cloud credential in full; without secret the stored one stays',
    scope: 'Credential:Write',
    event: 'CLOUD_CREDENTIAL_UPDATED',
    body: UpdateBody,
    ifMatch: true,
    responses: { 200: recordResponse },
    problems: [404, 409, 412, 422],
    write: async (tx, { params, body, ...asked }) => {
      const { changes, ...stored } = await replaceCredential(tx, deps, params.credentialId, body, asked);
      return { ...recordResult(stored), event: { changes } };
    },
  });

  operation(api, {
    ...one,
    method: 'POST',
    path: '/cloud/credentials/{credentialId}:validate',
    operationId: 'validateCredential',
    summary: 'Tries a cloud credential with real calls; a wrong one is an answer, not an error',
    scope: 'Credential:Write',
    event: 'CLOUD_CREDENTIAL_VALIDATED',
    body: ValidationBody,
    bodyOptional: true,
    responses: { 200: { description: 'What was tried and what came of it.', schema: Validation } },
    problems: [404, 422],
    // No transaction is open while the cloud is asked: that may take seconds.
    create: async (db, { params: { credentialId }, body, faults }, event) => {
      const sealed = await findSealed(db, credentialId);
      if (!sealed) throw notFound('credential');
      // The same as a job answers: to try what none may do would prove nothing.
      if (body?.prefix !== undefined)
        faults.push(...prefixFaults(sealed.provider, body.prefix, body.write ? 'write' : 'list'));
      if (faults.length > 0) throw rejected('validation-failed', faults);
      const { checks, ...found } = await validateCredential(credentialId, sealed, body ?? {}, deps);
      const { version } = sealed;
      const checkedDate = await keepValidation(db, credentialId, { version, ...found }, event);
      if (checkedDate === null) throw notFound('credential');
      const { valid, detail } = found;
      return { body: JSON.stringify({ valid, checkedDate, detail, checks }) };
    },
  });

  operation(api, {
    ...one,
    method: 'DELETE',
    operationId: 'deleteCredential',
    summary: 'Deletes a cloud credential',
    scope: 'Credential:Delete',
    event: 'CLOUD_CREDENTIAL_DELETED',
    ifMatch: true,
    responses: { 204: { description: 'Deleted.', schema: null } },
    problems: [404, 409, 412],
    write: async (tx, { params, ...asked }) => ({
      status: 204,
      event: await removeCredential(tx, params.credentialId, asked),
    }),
  });
}
