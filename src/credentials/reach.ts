import { lookup } from 'node:dns/promises';
import { type ClientRequest, request as requestHttp } from 'node:http';
import { request as requestHttps } from 'node:https';
import { isIP } from 'node:net';
import { connectionFailure } from '../objects/cloud-request.ts';
import { type EgressRules, guardedAgents } from '../objects/egress.ts';
import { ObjectError } from '../objects/store.ts';
import type { CloudSettings } from './schemas.ts';

/** Where the requests of a credential go, as its provider's client addresses them. */
export function addressOf({ provider, settings }: CloudSettings): URL {
  switch (provider) {
    case 'S3':
      return s3Address(settings);
    case 'AZURE_BLOB':
      return new URL(settings.endpoint ?? `https://${settings.account}.blob.core.windows.net`);
    case 'GCS':
      return new URL(settings.endpoint ?? 'https://storage.googleapis.com');
  }
}

/** The bucket stands in the host name where one can hold it; a certificate for any subdomain holds no dots in it. */
function s3Address(settings: (CloudSettings & { provider: 'S3' })['settings']): URL {
  const { endpoint, region, bucket, forcePathStyle } = settings;
  const url = new URL(endpoint ?? `https://s3.${region}.amazonaws.com${region.startsWith('cn-') ? '.cn' : ''}`);
  const fits = url.protocol === 'https:' ? /^[0-9a-z-]+$/ : /^[0-9a-z.-]+$/;
  const isAddress = isIP(url.hostname.replace(/^\[|\]$/g, '')) !== 0;
  if (!forcePathStyle && !isAddress && fits.test(bucket)) url.hostname = `${bucket}.${url.hostname}`;
  return url;
}

/** Looks up the host of `url`; rejects where it has no address. */
export async function resolveHost({ hostname }: URL): Promise<string> {
  if (isIP(hostname.replace(/^\[|\]$/g, ''))) return `${hostname} is an address.`;
  try {
    await lookup(hostname);
    return `${hostname} has an address.`;
  } catch (error) {
    throw new ObjectError('failed', `The host name ${hostname} has no address${suffix(error)}.`);
  }
}

/** Makes a connection as the store would, TLS and all, and drops it without a request. */
export async function connectTo(url: URL, rules: EgressRules, signal: AbortSignal): Promise<string> {
  const agents = guardedAgents(rules);
  const secure = url.protocol === 'https:';
  let request: ClientRequest | undefined;
  try {
    await new Promise<void>((resolve, reject) => {
      // Never ended, so nothing of it is sent.
      request = secure
        ? requestHttps(url, { agent: agents.httpsAgent, signal })
        : requestHttp(url, { agent: agents.httpAgent, signal });
      request.on('error', reject);
      request.once('socket', (socket) => socket.once(secure ? 'secureConnect' : 'connect', () => resolve()));
    });
    return `${url.host} takes connections.`;
  } catch (error) {
    signal.throwIfAborted();
    const { detail } = connectionFailure(error);
    throw new ObjectError('failed', detail ?? `${url.host} cannot be connected to${suffix(error)}.`);
  } finally {
    request?.destroy();
    agents.close();
  }
}

/** The system's code for what went wrong, in parentheses. */
function suffix(error: unknown): string {
  const { code } = connectionFailure(error);
  return code === undefined ? '' : ` (${code})`;
}
