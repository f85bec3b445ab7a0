import { createHash, type Hash } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import { crc32 } from 'node:zlib';
import { chunkSignature, equal, S3Error, type Signature, sha256 } from './s3-signature.ts';

/** Checksums that a request may announce in a header or a trailer, and how to compute them. */
const checksums: Record<string, () => { update(data: Uint8Array): void; digest(): string }> = {
  'x-amz-checksum-crc32': () => {
    let value = 0;
    return {
      update: (data) => {
        value = crc32(data, value);
      },
      digest: () => {
        const bytes = Buffer.alloc(4);
        bytes.writeUInt32BE(value);
        return bytes.toString('base64');
      },
    };
  },
  'x-amz-checksum-sha1': () => hashed('sha1'),
  'x-amz-checksum-sha256': () => hashed('sha256'),
};

function hashed(algorithm: string): { update(data: Uint8Array): void; digest(): string } {
  const hash = createHash(algorithm);
  return { update: (data) => void hash.update(data), digest: () => hash.digest('base64') };
}

/** What a body turned out to be, once it is read to its end. */
export interface BodyFacts {
  sizeBytes: number;
  md5: string;
  /** The checksums that the client announced and that held, by header name. */
  checksums: Record<string, string>;
}

/**
 * Reads a request's body: takes aws-chunked framing off, and verifies length, Content-MD5, payload hash, chunk
 * signatures and checksums. Throws at the end (the S3Error of S3) when one does not hold, before anything is stored.
 */
export async function* readBody(
  request: IncomingMessage,
  signature: Signature,
  arriving: AsyncIterable<Buffer>,
  facts: BodyFacts,
): AsyncGenerator<Buffer> {
  const header = (name: string) => [request.headers[name]].flat()[0];
  const { payloadHash } = signature;
  const md5 = createHash('md5');
  const sha: Hash | null = /^[0-9a-f]{64}$/.test(payloadHash) ? createHash('sha256') : null;
  const trailer = header('x-amz-trailer')?.toLowerCase();
  const announced = [...Object.keys(checksums).filter((name) => header(name)), ...(trailer ? [trailer] : [])];
  const running = announced.map((name) => {
    const start = checksums[name];
    if (!start) throw new S3Error(400, 'InvalidRequest', `unknown checksum ${name}`);
    return { name, checksum: start() };
  });
  const trailers: Record<string, string> = {};
  const source = payloadHash.startsWith('STREAMING-') ? dechunk(arriving, signature, trailers) : arriving;
  for await (const chunk of source) {
    facts.sizeBytes += chunk.length;
    md5.update(chunk);
    sha?.update(chunk);
    for (const { checksum } of running) checksum.update(chunk);
    yield chunk;
  }
  facts.md5 = md5.digest('hex');
  const length = header('x-amz-decoded-content-length') ?? header('content-length');
  if (length !== undefined && Number(length) !== facts.sizeBytes) throw new S3Error(400, 'IncompleteBody');
  const contentMd5 = header('content-md5');
  if (contentMd5 && Buffer.from(contentMd5, 'base64').toString('hex') !== facts.md5)
    throw new S3Error(400, 'BadDigest');
  if (sha && sha.digest('hex') !== payloadHash) throw new S3Error(400, 'XAmzContentSHA256Mismatch');
  for (const { name, checksum } of running) {
    const value = checksum.digest();
    if (value !== (trailers[name] ?? header(name))) throw new S3Error(400, 'BadDigest', `${name} does not match`);
    facts.checksums[name] = value;
  }
}

/** The payload of an aws-chunked body; puts its trailers into `trailers`. */
async function* dechunk(
  arriving: AsyncIterable<Buffer>,
  seed: Signature,
  trailers: Record<string, string>,
): AsyncGenerator<Buffer> {
  const signed = seed.payloadHash.startsWith('STREAMING-AWS4-HMAC-SHA256');
  const reader = createReader(arriving);
  let previous = seed.signature;
  const check = (kind: 'PAYLOAD' | 'TRAILER', hash: string, signature = '') => {
    const expected = chunkSignature(seed, previous, kind, hash);
    if (!equal(expected, signature)) throw new S3Error(403, 'SignatureDoesNotMatch', 'chunk signature');
    previous = expected;
  };
  for (;;) {
    const [, length = '', signature] =
      /^([0-9a-f]+)(?:;chunk-signature=([0-9a-f]{64}))?$/i.exec(await reader.line()) ?? [];
    if (length === '') throw new S3Error(400, 'IncompleteBody', 'malformed chunk');
    const data = await reader.bytes(Number.parseInt(length, 16));
    if (signed) check('PAYLOAD', sha256(data), signature);
    if (data.length === 0) break;
    yield data;
    if ((await reader.line()) !== '') throw new S3Error(400, 'IncompleteBody', 'malformed chunk');
  }
  let text = '';
  for (let line = await reader.line(); line !== ''; line = await reader.line()) {
    const [, name = '', value = ''] = /^([^:]+):(.*)$/.exec(line) ?? [];
    if (name.toLowerCase() === 'x-amz-trailer-signature') {
      check('TRAILER', sha256(text), value.trim());
      text = '';
    } else {
      trailers[name.toLowerCase()] = value.trim();
      text += `${name.toLowerCase()}:${value.trim()}\n`;
    }
  }
  if (signed && text !== '') throw new S3Error(403, 'SignatureDoesNotMatch', 'unsigned trailer');
}

function createReader(arriving: AsyncIterable<Buffer>) {
  const source = arriving[Symbol.asyncIterator]();
  let held: Buffer = Buffer.alloc(0);
  const more = async () => {
    const { done, value } = await source.next();
    if (done) throw new S3Error(400, 'IncompleteBody');
    held = Buffer.concat([held, value]);
  };
  return {
    async line(): Promise<string> {
      let end = held.indexOf('\r\n');
      for (; end < 0; end = held.indexOf('\r\n')) await more();
      const line = held.toString('latin1', 0, end);
      held = held.subarray(end + 2);
      return line;
    },
    async bytes(count: number): Promise<Buffer> {
      while (held.length < count) await more();
      const bytes = held.subarray(0, count);
      held = held.subarray(count);
      return bytes;
    },
  };
}
