import { startS3Server } from '../../test/peers/s3-server.ts';
import { describeStoreContract } from './contract.ts';
import { openS3Store } from './s3.ts';

const credentials = { accessKeyId: 'key-id', secretAccessKey: 'secret-access-key' };
let leftovers = () => 0;

describeStoreContract(
  's3',
  async () => {
    const server = await startS3Server({ ...credentials, buckets: ['bucket'] });
    leftovers = () => server.stats.openUploads;
    const store = openS3Store({
      credentials,
      bucket: 'bucket',
      prefix: 'a prefix/of+ours',
      endpoint: server.url,
      forcePathStyle: true,
    });
    return { store, close: () => server.close() };
  },
  { leftovers: () => leftovers() },
);
