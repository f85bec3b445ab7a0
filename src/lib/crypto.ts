import { createCipheriv, createDecipheriv, createHash, randomBytes, timingSafeEqual } from 'node:crypto';

/** A text or key encrypted at rest (AES-256-GCM, decisions §5). */
export interface Sealed {
  /** Which master key it is encrypted by, see {@link masterKeyId}. */
  keyId: string;
  /** Version (1 byte), nonce (12), tag (16), ciphertext. */
  bytes: Buffer;
}

/** The stored bytes cannot be decrypted: by another master key, or changed since. Its message holds no secret. */
export class UnsealError extends Error {
  override name = 'UnsealError';
}

const version = 1;
/** 96 bits, the nonce GCM is made for: random ones may serve 2^32 times under one key (NIST SP 800-38D §8.3). */
const nonceBytes = 12;
const tagBytes = 16;
const headerBytes = 1 + nonceBytes + tagBytes;

/** Names a master key without telling anything of it: the first 64 bits of a hash, hexadecimal. */
export function masterKeyId(masterKey: Buffer): string {
  return createHash('sha256').update('study-data-service master key\0').update(masterKey).digest('hex').slice(0, 16);
}

/**
 * Encrypts under the master key (32 bytes). `context` says what this is and whose (`credential:ID`); it is not secret
 * and not stored, but {@link unseal} needs the same one, so that what is stored for one record serves no other.
 */
export function seal(masterKey: Buffer, plaintext: string | Buffer, context: string): Sealed {
  const nonce = randomBytes(nonceBytes);
  const cipher = createCipheriv('aes-256-gcm', masterKey, nonce).setAAD(Buffer.from(context));
  const text = Buffer.concat([cipher.update(Buffer.from(plaintext)), cipher.final()]);
  const bytes = Buffer.concat([Buffer.of(version), nonce, cipher.getAuthTag(), text]);
  return { keyId: masterKeyId(masterKey), bytes };
}

/** Decrypts what {@link seal} made; throws {@link UnsealError}. */
export function unseal(masterKey: Buffer, sealed: Sealed, context: string): Buffer {
  const keyId = masterKeyId(masterKey);
  if (sealed.keyId !== keyId) {
    throw new UnsealError(`It is encrypted by the master key ${sealed.keyId}, and this process has ${keyId}.`);
  }
  const { bytes } = sealed;
  if (bytes.length < headerBytes || bytes[0] !== version)
    throw new UnsealError('It is not in the form of a sealed text.');
  const nonce = bytes.subarray(1, 1 + nonceBytes);
  const decipher = createDecipheriv('aes-256-gcm', masterKey, nonce, { authTagLength: tagBytes })
    .setAAD(Buffer.from(context))
    .setAuthTag(bytes.subarray(1 + nonceBytes, headerBytes));
  try {
    return Buffer.concat([decipher.update(bytes.subarray(headerBytes)), decipher.final()]);
  } catch (cause) {
    throw new UnsealError('It was changed since it was encrypted, or belongs to another record.', { cause });
  }
}

/** Whether two texts are equal, in a time that tells nothing of where they differ. */
export function sameText(a: string, b: string): boolean {
  const digest = (text: string) => createHash('sha256').update(text).digest();
  return timingSafeEqual(digest(a), digest(b));
}
