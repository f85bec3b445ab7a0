import { type DestinationStream, type Logger, pino } from 'pino';
import pretty from 'pino-pretty';
import type { LogLevel } from '../config.ts';

/**
 * The service's log: JSON lines on standard error, readable ones where that is a terminal. Standard output is left to the
 * one line that says that the service is ready (decisions §10).
 */
export function openLog(level: LogLevel): Logger {
  // Written at once: a line that waits in a buffer is lost by the crash that it would explain.
  const destination: DestinationStream = process.stderr.isTTY
    ? pretty({ destination: process.stderr.fd, sync: true, colorize: true, ignore: 'pid,hostname' })
    : pino.destination({ dest: process.stderr.fd, sync: true });
  return pino({ level, timestamp: pino.stdTimeFunctions.isoTime }, destination);
}
