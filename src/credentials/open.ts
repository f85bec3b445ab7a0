import type { Db } from '../db/database.ts';
import { UnsealError } from '../lib/crypto.ts';
import type { MasterKeys } from '../lib/master-keys.ts';
import type { FileRoot } from '../lib/settings.ts';
import { checkEndpoint, guardedAgents } from '../objects/egress.ts';
import { ObjectError, type ObjectStore } from '../objects/store.ts';
import { findSealed, type SealedCredential, secretContext } from './queries.ts';
import type { Connection } from './schemas.ts';

/** What credentials are opened with. */
export interface CredentialDeps {
  /** Decrypts secrets. */
  masterKey: MasterKeys;
  /** SDS_FILE_ROOTS. */
  fileRoots: readonly FileRoot[];
  /** SDS_CLOUD_ENDPOINTS: origins. */
  cloudEndpoints: readonly string[];
  /** SDS_CLOUD_IDLE_TIMEOUT_S, in milliseconds. */
  idleTimeoutMs: number;
}

/**
 * Opens the store that a credential leads to, as it is stored now; whoever opens it closes it. Connects to nothing yet,
 * a FILE root apart. Rejects with an ObjectError whose message is fit for a user.
 */
export async function openCredential(db: Db, credentialId: string, deps: CredentialDeps): Promise<ObjectStore> {
  const sealed = await findSealed(db, credentialId);
  if (!sealed) throw new ObjectError('failed', 'The credential has been deleted.');
  return openStoreOf(await connectionOf(credentialId, sealed, deps.masterKey), deps);
}

/** The credential with its secret decrypted. */
export async function connectionOf(
  credentialId: string,
  { provider, settings, secret }: SealedCredential,
  masterKey: MasterKeys,
): Promise<Connection> {
  if (!secret) return { provider, settings, secret: null } as unknown as Connection;
  try {
    const opened: unknown = JSON.parse((await masterKey.unseal(secret, secretContext(credentialId))).toString());
    return { provider, settings, secret: opened } as unknown as Connection;
  } catch (error) {
    if (!(error instanceof UnsealError)) throw error;
    throw new ObjectError('failed', `The secret of the credential cannot be decrypted. ${error.message}`, {
      cause: error,
    });
  }
}

/** Opens the store of a connection; SDKs are loaded only where they are used. */
export async function openStoreOf(connection: Connection, deps: CredentialDeps): Promise<ObjectStore> {
  const { idleTimeoutMs, cloudEndpoints: allowedOrigins } = deps;
  if (connection.provider === 'FILE') {
    const { root } = connection.settings;
    const opened = deps.fileRoots.find(({ name }) => name === root);
    if (!opened) throw new ObjectError('denied', `The file root ${root} is not opened by the administrator.`);
    const { openFileRoot } = await import('../objects/file-root.ts');
    return openFileRoot(opened, { idleTimeoutMs });
  }
  const { endpoint } = connection.settings;
  // Allowed when it was stored, but the administrator may have changed his mind.
  const allowed =
    endpoint === undefined ? { ok: true as const } : checkEndpoint(connection.provider, endpoint, allowedOrigins);
  if (!allowed.ok) throw new ObjectError('denied', allowed.detail);
  switch (connection.provider) {
    case 'S3': {
      const { openS3Store } = await import('../objects/s3.ts');
      const { settings, secret } = connection;
      return openS3Store({
        bucket: settings.bucket,
        region: settings.region,
        ...(endpoint === undefined ? {} : { endpoint }),
        forcePathStyle: settings.forcePathStyle ?? false,
        credentials: { accessKeyId: settings.accessKeyId, ...secret },
        agents: guardedAgents({ provider: 'S3', endpoint, allowedOrigins }),
        idleTimeoutMs,
      });
    }
    case 'AZURE_BLOB': {
      const { openAzureStore } = await import('../objects/azure.ts');
      return openAzureStore({ ...connection.settings, ...connection.secret }, { allowedOrigins, idleTimeoutMs });
    }
    case 'GCS': {
      const { openGcsStore } = await import('../objects/gcs.ts');
      return openGcsStore({ ...connection.settings, ...connection.secret }, { allowedOrigins, idleTimeoutMs });
    }
  }
}
