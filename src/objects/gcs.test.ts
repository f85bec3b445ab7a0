import { generateKeyPairSync } from 'node:crypto';
import { afterAll, beforeAll } from 'vitest';
import { type GcsServer, startGcsServer } from '../../test/peers/gcs-server.ts';
import { describeStoreContract } from './contract.ts';
import { openGcsStore } from './gcs.ts';

const clientEmail = 'importer@slides.iam.gserviceaccount.com';
const { publicKey, privateKey: key } = generateKeyPairSync('rsa', { modulusLength: 2048 });
const privateKey = key.export({ type: 'pkcs8', format: 'pem' }).toString();
let gcs: GcsServer;
beforeAll(async () => {
  gcs = await startGcsServer({ clientEmail, publicKey }, ['contract', 'slides']);
});
afterAll(() => gcs.stop());

const open = (bucket: string, settings = {}, access = {}) =>
  openGcsStore(
    { bucket, clientEmail, privateKey, endpoint: gcs.endpoint, ...settings },
    { allowedOrigins: [gcs.endpoint], ...access },
  );

describeStoreContract(
  'gcs',
  async () => {
    const store = open('contract');
    return { store, close: () => store.close() };
  },
  { refusedKeys: ['.', '..', 'a\nb'], leftovers: () => gcs.openUploads },
);
