import apiReference from '@scalar/fastify-api-reference';
import type { FastifyInstance } from 'fastify';

/** The page may load and ask nothing but this service: what laboratories look up here is nobody else's business. */
const POLICY = [
  "default-src 'self'",
  "script-src 'self' 'unsafe-inline' 'unsafe-eval'",
  "style-src 'self' 'unsafe-inline'",
  "img-src 'self' data: blob:",
  "font-src 'self' data:",
  "worker-src 'self' blob:",
  "frame-ancestors 'none'",
].join('; ');

/** `/docs`: the API document for people, with all that it needs in this package (decisions §10). */
export function docsRoutes(app: FastifyInstance): void {
  void app.register(apiReference, {
    routePrefix: '/docs',
    logLevel: 'silent',
    hooks: {
      onRequest: (_request, reply, done) => {
        reply.header('Content-Security-Policy', POLICY);
        done();
      },
    },
    configuration: {
      url: '/api/v1/openapi.json',
      pageTitle: 'Study Data Service API',
      withDefaultFonts: false,
      telemetry: false,
      hideClientButton: true,
      // It offers to upload the document to its maker.
      showDeveloperTools: 'never',
    },
  });
}
