import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { ContainerClient, StorageSharedKeyCredential } from '@azure/storage-blob';

/** A running Azurite: Microsoft's own emulator, which verifies signatures and keeps everything in memory. */
export interface Azurite {
  /** URL of its blob service, without the account. */
  endpoint: string;
  account: string;
  accountKey: string;
  /** Makes a container and gives a client that is not the one under test. */
  makeContainer(name: string): Promise<ContainerClient>;
  stop(): Promise<void>;
}

const entry = 'azurite/dist/src/blob/main.js';

/** Starts Azurite on a free port with an account of its own. */
export async function startAzurite(): Promise<Azurite> {
  const account = 'slides';
  const accountKey = randomBytes(64).toString('base64');
  const flags = ['--inMemoryPersistence', '--skipApiVersionCheck', '--disableTelemetry', '--silent'];
  const child = spawn(
    process.execPath,
    [createRequire(import.meta.url).resolve(entry), '--blobHost', '127.0.0.1', '--blobPort', '0', ...flags],
    { env: { ...process.env, AZURITE_ACCOUNTS: `${account}:${accountKey}` }, stdio: ['ignore', 'pipe', 'inherit'] },
  );
  const exited = new Promise<void>((resolve) => child.once('exit', () => resolve()));
  const endpoint = await new Promise<string>((resolve, reject) => {
    void exited.then(() => reject(new Error('Azurite ended before it listened.')));
    createInterface(child.stdout).on('line', (line) => {
      const [url] = /http:\/\/\S+:\d+$/.exec(line) ?? [];
      if (url && line.includes('successfully listens')) resolve(url);
    });
  });
  return {
    endpoint,
    account,
    accountKey,
    async makeContainer(name) {
      const credential = new StorageSharedKeyCredential(account, accountKey);
      const container = new ContainerClient(`${endpoint}/${account}/${name}`, credential);
      await container.create();
      return container;
    },
    async stop() {
      child.kill();
      await exited;
    },
  };
}
