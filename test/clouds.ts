import { generateKeyPairSync } from 'node:crypto';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer as createHttpServer } from 'node:http';
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { startAzurite } from './peers/azurite.ts';
import { startGcsServer } from './peers/gcs-server.ts';
import { startS3Server } from './peers/s3-server.ts';
import type { Json } from './service.ts';

const pemOf = ({ privateKey }: ReturnType<typeof newKeys>) =>
  privateKey.export({ type: 'pkcs8', format: 'pem' }).toString();
const newKeys = () => generateKeyPairSync('rsa', { modulusLength: 2048 });
const googleKeys = newKeys();
const pem = pemOf(googleKeys);
/** A private key that Google does not know. */
export const strangerPem = pemOf(newKeys());
const clientEmail = 'slides@lab.iam.gserviceaccount.com';
export const s3Keys = { accessKeyId: 'test-key-id', secretAccessKey: 'test-secret-access-key' };

export const urlOf = (server: Server) => `http://127.0.0.1:${(server.address() as AddressInfo).port}`;

export async function listening<S extends Server>(server: S): Promise<S> {
  server.listen(0, '127.0.0.1');
  await new Promise((resolve) => server.once('listening', resolve));
  return server;
}

const closed = (server: Server) => new Promise((resolve) => server.close(resolve));

/** A cloud of every provider, endpoints that do no good, and what a credential of each is created with. */
export async function startClouds() {
  const dir = await mkdtemp(join(tmpdir(), 'sds-clouds-'));
  for (const name of ['share', 'fixed', 'empty', 'gone']) await mkdir(join(dir, name, '2026'), { recursive: true });
  await writeFile(join(dir, 'share', '2026', 'a.svs'), 'bytes');
  await writeFile(join(dir, 'fixed', 'a.svs'), 'bytes');
  const s3 = await startS3Server({ ...s3Keys, buckets: ['slides', 'empty'] });
  const azurite = await startAzurite();
  await azurite.makeContainer('slides');
  const gcs = await startGcsServer({ clientEmail, publicKey: googleKeys.publicKey }, ['slides']);
  const sockets = new Set<Socket>();
  const mute = await listening(createServer((socket) => void sockets.add(socket.on('error', () => {}))));
  const redirector = await listening(
    createHttpServer((request, response) => {
      response.writeHead(request.method === 'POST' ? 308 : 307, { location: redirecting.to + request.url }).end();
    }),
  );
  /** Takes connections and never says a word. */
  const silent = { url: urlOf(mute), sockets };
  /** Answers every request with a redirect. */
  const redirecting = { url: urlOf(redirector), to: '' };
  const gone = await listening(createServer());
  /** Nobody listens there. */
  const closedUrl = urlOf(gone);
  await closed(gone);
  const root = (name: string) => `${name}=${join(dir, name)}`;
  const s3Body = (settings: Json = {}, secret: Json = {}) => ({
    name: 's3',
    provider: 'S3',
    settings: {
      region: 'us-east-1',
      bucket: 'slides',
      endpoint: s3.url,
      forcePathStyle: true,
      accessKeyId: s3Keys.accessKeyId,
      ...settings,
    },
    secret: { secretAccessKey: s3Keys.secretAccessKey, ...secret },
  });
  const azureBody = (settings: Json = {}, secret: Json = { accountKey: azurite.accountKey }) => ({
    name: 'azure',
    provider: 'AZURE_BLOB',
    settings: { account: azurite.account, container: 'slides', endpoint: azurite.endpoint, ...settings },
    secret,
  });
  const gcsBody = (settings: Json = {}, secret: Json = { privateKey: pem }) => ({
    name: 'gcs',
    provider: 'GCS',
    settings: { bucket: 'slides', endpoint: gcs.endpoint, clientEmail, ...settings },
    secret,
  });
  const fileBody = (root: string) => ({ name: 'file', provider: 'FILE', settings: { root } });
  return {
    dir,
    s3,
    azurite,
    gcs,
    silent,
    redirecting,
    closedUrl,
    s3Body,
    azureBody,
    gcsBody,
    fileBody,
    /** Settings of a service that may reach them all. */
    env: {
      SDS_FILE_ROOTS: [root('share'), `${root('fixed')}:ro`, root('empty'), root('gone')].join(','),
      SDS_CLOUD_ENDPOINTS: [
        s3.url,
        new URL(azurite.endpoint).origin,
        new URL(gcs.endpoint).origin,
        silent.url,
        redirecting.url,
        closedUrl,
        'http://no-such-host.invalid',
      ].join(','),
    },
    async close() {
      for (const socket of sockets) socket.destroy();
      redirector.closeAllConnections();
      await Promise.all([closed(mute), closed(redirector), s3.close(), azurite.stop(), gcs.stop()]);
      await rm(dir, { recursive: true, force: true });
    },
  };
}
