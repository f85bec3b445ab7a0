import { METHODS } from 'node:http';
import type { FastifyInstance, FastifyRequest } from 'fastify';
import { Problem } from '../lib/problem.ts';

/** Every method that Node.js can read but CONNECT, which never comes to a path. */
const methods = METHODS.filter((method) => method !== 'CONNECT');

/** Lets the server route every method, so that a path answers 405 to those it does not have, and not 404. */
export function routeEveryMethod(app: FastifyInstance): void {
  for (const method of methods) if (!app.supportedMethods.includes(method)) app.addHttpMethod(method);
}

/**
 * 405 with Allow for all methods of a path but the allowed ones, before anything of the request is looked at
 * (decisions §3); `first` is what comes before it, such as the 401 (decisions §8).
 */
export function refuseOtherMethods(
  app: FastifyInstance,
  url: string,
  allowed: readonly string[],
  first?: (request: FastifyRequest) => Promise<void>,
): void {
  const Allow = allowed.join(', ');
  app.route({
    method: methods.filter((method) => !allowed.includes(method)),
    url,
    exposeHeadRoute: false,
    onRequest: async (request) => {
      await first?.(request);
      throw new Problem('method-not-allowed', `This path has the methods ${Allow}.`, { headers: { Allow } });
    },
    handler: () => {},
  });
}
