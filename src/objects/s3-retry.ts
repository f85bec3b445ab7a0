import type { S3ClientConfig } from '@aws-sdk/client-s3';
import { codeOf, s3Error } from './s3-errors.ts';

type RetryStrategy = Extract<NonNullable<S3ClientConfig['retryStrategy']>, { acquireInitialRetryToken: unknown }>;
type RetryToken = Awaited<ReturnType<RetryStrategy['acquireInitialRetryToken']>>;

/** Repeats of one request. The delays before them are at most 0.1, 0.2 and 0.4 s, or five times that for a busy store. */
const mostRetries = 3;

/** 20 s: what a store may ask us to wait (Retry-After); more is for the job to decide. */
const longestDelayMs = 20_000;

/**
 * Repeats what is `transient`, with backoff and full jitter. The SDK's own strategy shares one budget among all requests
 * of a client: after 35 repeats it would give up at once, even on the request that removes the parts of a failed upload.
 */
export function createRetryStrategy(): RetryStrategy {
  return {
    acquireInitialRetryToken: async () => token(0, 0),
    async refreshRetryTokenForRetry(previous, { error, errorType, retryAfterHint }) {
      const retries = previous.getRetryCount();
      if (retries >= mostRetries || !isWorthRepeating(error)) throw new Error('not to be repeated');
      const mostMs = (errorType === 'THROTTLING' ? 500 : 100) * 2 ** retries;
      const askedMs = retryAfterHint ? retryAfterHint.getTime() - Date.now() : 0;
      return token(retries + 1, Math.min(longestDelayMs, Math.max(askedMs, Math.random() * mostMs)));
    },
    recordSuccess() {},
  };
}

function isWorthRepeating(error: unknown): boolean {
  const code = codeOf(error);
  // The SDK takes the difference of the clocks from the refusal. Who was silent has had his time. An upload stays gone.
  if (code === 'RequestTimeTooSkewed') return true;
  if (code === 'IdleTimeoutError' || code === 'NoSuchUpload') return false;
  return s3Error(error, '').kind === 'transient';
}

function token(retries: number, delayMs: number): RetryToken {
  return { getRetryCount: () => retries, getRetryDelay: () => delayMs };
}
