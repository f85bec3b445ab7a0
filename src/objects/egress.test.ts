import { createServer, get as httpGet, type RequestOptions, type Server } from 'node:http';
import { get as httpsGet } from 'node:https';
import type { AddressInfo, LookupFunction } from 'node:net';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { checkEndpoint, type EgressRules, egressRefusal, guardedAgents } from './egress.ts';

let server: Server;
let port: number;
let requests = 0;

beforeAll(async () => {
  server = createServer((_, response) => {
    requests += 1;
    response.end('reached');
  });
  await new Promise<void>((listening) => server.listen(0, '127.0.0.1', listening));
  port = (server.address() as AddressInfo).port;
});

afterAll(() => new Promise((closed) => server.close(closed)));

/** Resolves every name to `addresses`. */
const resolvesTo =
  (...addresses: string[]): LookupFunction =>
  (_, options, callback) => {
    const found = addresses.map((address) => ({ address, family: address.includes(':') ? 6 : 4 }));
    const [first] = found;
    if (options.all) callback(null, found);
    else callback(null, first?.address ?? '', first?.family);
  };

/** What a request through the guard of `rules` comes to: the body, or the error. */
async function fetchThrough(rules: EgressRules, url: string, lookup?: LookupFunction, options: RequestOptions = {}) {
  const agents = guardedAgents(rules, lookup && { lookup });
  try {
    return await new Promise((settle) => {
      const secure = url.startsWith('https:');
      const agent = secure ? agents.httpsAgent : agents.httpAgent;
      const request = (secure ? httpsGet : httpGet)(url, { agent, ...options }, (response) => {
        response.setEncoding('utf8').on('data', settle);
      });
      request.on('error', settle);
    });
  } finally {
    agents.close();
  }
}

const opened = (...origins: string[]): EgressRules => ({
  provider: 'S3',
  endpoint: origins[0],
  allowedOrigins: origins,
});
const publicS3: EgressRules = { provider: 'S3', allowedOrigins: [] };

describe('the endpoint of a credential', () => {
  const origins = ['http://127.0.0.1:9000', 'https://minio.example:443/', 'http://169.254.169.254', 'not a URL'];

  test.each([
    ['S3', 'http://127.0.0.1:9000'],
    ['S3', 'http://127.0.0.1:9000/path'],
    ['S3', 'http://2130706433:9000'],
    ['AZURE_BLOB', 'https://MINIO.example'],
    ['S3', 'https://s3.eu-west-1.amazonaws.com'],
    ['S3', 'https://s3.amazonaws.com'],
    ['S3', 'https://bucket.s3.dualstack.us-gov-west-1.amazonaws.com'],
    ['S3', 'https://s3.cn-north-1.amazonaws.com.cn'],
    ['AZURE_BLOB', 'https://account.blob.core.windows.net'],
    ['GCS', 'https://storage.googleapis.com'],
    ['GCS', 'https://storage.europe-west3.rep.googleapis.com'],
  ] as const)('of %s may be %s', (provider, endpoint) => {
    expect(checkEndpoint(provider, endpoint, origins)).toEqual({ ok: true });
  });

  test.each([
    ['S3', 'http://127.0.0.1:9001'],
    ['S3', 'https://127.0.0.1:9000'],
    ['S3', 'https://x.minio.example'],
    ['S3', 'http://s3.amazonaws.com'],
    ['S3', 'https://s3.amazonaws.com:8443'],
    ['S3', 'https://s3.eu-west-1.amazonaws.com.evil.example'],
    ['S3', 'https://s3.evil.elb.amazonaws.com'],
    ['S3', 'https://ec2-1-2-3-4.compute.amazonaws.com'],
    ['S3', 'https://account.blob.core.windows.net'],
    ['AZURE_BLOB', 'https://s3.amazonaws.com'],
    ['AZURE_BLOB', 'https://a.b.blob.core.windows.net'],
    ['GCS', 'https://evil.appspot.googleapis.com'],
  ] as const)('of %s may not be %s, which nobody opened', (provider, endpoint) => {
    expect(checkEndpoint(provider, endpoint, origins)).toMatchObject({ detail: /not among those/ });
  });

  test.each([
    'http://169.254.169.254',
    'http://2852039166',
    'http://0251.0376.0251.0376/',
    'http://0xa9.254.43518/latest',
    'http://[::ffff:169.254.169.254]',
    'http://[fe80::1]:9000',
    'http://[fd00:ec2::254]',
    'http://0:9000',
    'http://100.100.100.200',
    'http://168.63.129.16',
    'http://metadata.google.internal',
    'http://METADATA.google.internal.',
  ])('may never be %s, opened or not', (endpoint) => {
    const origin = new URL(endpoint).origin;
    expect(checkEndpoint('S3', endpoint, [origin])).toMatchObject({ detail: /link-local or metadata/ });
  });

  test.each([
    '',
    'minio',
    'ftp://127.0.0.1:9000',
    'http://user:pass@127.0.0.1:9000',
    'http://127.0.0.1:9000?x',
    'http://127.0.0.1:9000/#x',
  ])('must be a plain URL, not %j', (endpoint) => {
    expect(checkEndpoint('S3', endpoint, origins)).toMatchObject({ detail: /must be an http or https URL/ });
  });
});

describe('a connection', () => {
  test('reaches an origin that the administrator opened, by address and by name', async () => {
    const origin = `http://127.0.0.1:${port}`;
    expect(await fetchThrough(opened(origin), origin)).toBe('reached');
    const named = `http://scanner.example:${port}`;
    expect(await fetchThrough(opened(named), named, resolvesTo('127.0.0.1'))).toBe('reached');
  });

  test('reaches the bucket that stands before the host of an opened endpoint', async () => {
    const rules = opened(`http://scanner.example:${port}`);
    expect(await fetchThrough(rules, `http://slides.scanner.example:${port}`, resolvesTo('127.0.0.1'))).toBe('reached');
  });

  test('does not reach the service itself or another origin because one was opened', async () => {
    const before = requests;
    for (const origin of [`http://localhost:${port}`, `http://127.0.0.1:${port}`, `http://[::1]:${port}`]) {
      const outcome = await fetchThrough(opened('http://127.0.0.1:9', 'http://0.0.0.1'), origin);
      expect(egressRefusal(outcome)?.message).toMatch(/not among the endpoints/);
    }
    expect(requests).toBe(before);
  });

  test.each(['169.254.169.254', '::ffff:169.254.169.254', 'fd00:ec2::254', 'fe80::1', '0.0.0.0', '64:ff9b::a9fe:a9fe'])(
    'to an opened name that resolves to %s is refused',
    async (address) => {
      const origin = `http://scanner.example:${port}`;
      const outcome = await fetchThrough(opened(origin), origin, resolvesTo(address));
      expect(egressRefusal(outcome)?.message).toMatch(/link-local or metadata address/);
    },
  );

  test('to an address literal that is link-local is refused though it was opened', async () => {
    const origin = 'http://169.254.169.254';
    expect(egressRefusal(await fetchThrough(opened(origin), origin))?.message).toMatch(/link-local/);
    const host = { host: '0xa9fea9fe', hostname: '0xa9fea9fe' };
    expect(egressRefusal(await fetchThrough(opened(origin), origin, undefined, host))).toBeDefined();
  });

  test('to a provider whose name resolves to a private address is refused, unless that origin was opened', async () => {
    const url = 'https://slides.s3.eu-west-1.amazonaws.com/';
    const outcome = await fetchThrough(publicS3, url, resolvesTo('127.0.0.1'));
    expect(egressRefusal(outcome)?.message).toMatch(/private address/);
    const link = { ...publicS3, allowedOrigins: ['https://slides.s3.eu-west-1.amazonaws.com'] };
    expect(await fetchThrough(link, url, resolvesTo('127.0.0.1'))).toMatchObject({ code: 'ECONNREFUSED' });
  });

  test('is refused where one of several addresses may not be reached', async () => {
    const url = 'https://slides.s3.eu-west-1.amazonaws.com/';
    expect(egressRefusal(await fetchThrough(publicS3, url, resolvesTo('52.218.0.1', '10.0.0.1')))).toBeDefined();
  });

  test('looks at the address of each connection: a name that moves between look-ups does not help', async () => {
    const origin = `http://scanner.example:${port}`;
    const addresses = ['127.0.0.1', '169.254.169.254'];
    const moving: LookupFunction = (host, options, callback) =>
      resolvesTo(addresses.shift() ?? '')(host, options, callback);
    const rules = opened(origin);
    expect(await fetchThrough(rules, origin, moving)).toBe('reached');
    expect(egressRefusal(await fetchThrough(rules, origin, moving))).toBeDefined();
  });

  test('without any opened origin reaches only the hosts of its own provider', async () => {
    for (const url of ['https://account.blob.core.windows.net/', 'http://s3.amazonaws.com/', 'https://evil.example/']) {
      const outcome = await fetchThrough(publicS3, url, resolvesTo('52.218.0.1'));
      expect(egressRefusal(outcome)?.message).toMatch(/not among the endpoints/);
    }
  });
});
