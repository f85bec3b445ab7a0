import { lookup as dnsLookup } from 'node:dns';
import { type ClientRequestArgs, Agent as HttpAgent } from 'node:http';
import { Agent as HttpsAgent } from 'node:https';
import { isIP, isIPv6, type LookupFunction } from 'node:net';
import type { Duplex } from 'node:stream';
import { reachOf } from './address.ts';

/** The providers that are reached over a network. */
export type CloudProvider = 'S3' | 'AZURE_BLOB' | 'GCS';

/** What one credential may connect to (decisions §5). */
export interface EgressRules {
  provider: CloudProvider;
  /** The credential's custom endpoint; absent: the provider's public ones. */
  endpoint?: string | undefined;
  /** Origins that the administrator opened (`SDS_CLOUD_ENDPOINTS`), loopback and private ones too. */
  allowedOrigins: readonly string[];
}

/** What every cloud store is opened with. */
export interface CloudAccess {
  /** Origins that the administrator opened (`SDS_CLOUD_ENDPOINTS`). */
  allowedOrigins: readonly string[];
  /** Milliseconds without progress after which a call fails as `transient`. Default 30,000. */
  idleTimeoutMs?: number;
  /** Name look-up, for tests. */
  lookup?: LookupFunction;
}

/** A connection that the rules forbid. The message is fit for a user. */
export class EgressRefused extends Error {
  readonly code = 'EGRESS_REFUSED';

  constructor(reason: string) {
    super(reason);
    this.name = 'EgressRefused';
  }
}

/**
 * Hosts of each provider, by HTTPS only. Narrower than the provider's domain, under which anybody may rent a name
 * (`….elb.amazonaws.com`, `….appspot.googleapis.com`): only object storage, and where Google gives out tokens.
 */
const publicHosts: Record<CloudProvider, RegExp> = {
  S3: /^(?:[a-z0-9][a-z0-9.-]*\.)?s3(?:-fips|-accelerate)?(?:\.dualstack)?(?:[.-][a-z]{2}(?:-[a-z]+)+-\d+)?\.amazonaws\.com(?:\.cn)?$/,
  AZURE_BLOB:
    /^[a-z0-9]{3,24}(?:-secondary)?(?:\.z\d+)?\.blob\.(?:core\.(?:windows\.net|usgovcloudapi\.net|chinacloudapi\.cn)|storage\.azure\.net)$/,
  GCS: /^(?:(?:storage|oauth2)\.googleapis\.com|storage\.[a-z0-9-]+\.rep\.googleapis\.com)$/,
};

/** Names that clouds give to their metadata services; their addresses are refused besides. */
const metadataHosts = /^(?:metadata|metadata\.google\.internal|metadata\.goog|instance-data(?:\.ec2\.internal)?)\.?$/;

/**
 * Whether a credential of `provider` may name `endpoint`. Pure, so that a request can be refused before anything is
 * connected to; what its name resolves to is checked by {@link guardedAgents}.
 */
export function checkEndpoint(
  provider: CloudProvider,
  endpoint: string,
  allowedOrigins: readonly string[],
): { ok: true } | { ok: false; detail: string } {
  const refused = (detail: string) => ({ ok: false, detail }) as const;
  const url = URL.canParse(endpoint) ? new URL(endpoint) : null;
  if (!url || !/^https?:$/.test(url.protocol) || url.username || url.password || url.search || url.hash) {
    return refused('The endpoint must be an http or https URL without credentials, query and fragment.');
  }
  if (metadataHosts.test(url.hostname) || literalReach(url.hostname) === 'forbidden') {
    return refused('The endpoint leads to a link-local or metadata address.');
  }
  if (isAllowed(url.origin, allowedOrigins) || isPublicHost(provider, url)) return { ok: true };
  return refused(`The endpoint ${url.origin} is not among those that the administrator allows.`);
}

/**
 * Agents that connect to nothing but what `rules` allow, and look at the address itself when they do: whatever a name
 * resolves to by then, wherever a redirect points. Private and loopback addresses only for an origin that the
 * administrator opened (so also a provider's own host that resolves to a private link); link-local and metadata
 * addresses never. A refused connection fails with {@link EgressRefused}.
 */
export function guardedAgents(
  rules: EgressRules,
  { lookup = dnsLookup as LookupFunction }: { lookup?: LookupFunction } = {},
): { httpAgent: HttpAgent; httpsAgent: HttpsAgent; close(): void } {
  /** Options with a lookup that checks, or why there is no connection. */
  const guard = (protocol: string, options: ClientRequestArgs): ClientRequestArgs & { lookup: LookupFunction } => {
    const host = options.host ?? 'localhost';
    const url = new URL(`${protocol}//${isIPv6(host) ? `[${host}]` : host}:${options.port ?? ''}`);
    const opened = isOpened(rules, url);
    if (!opened && !isPublicHost(rules.provider, url)) {
      throw new EgressRefused(`${url.origin} is not among the endpoints that may be connected to.`);
    }
    if (isIP(host)) requireReach(url.hostname, host, opened);
    return { ...options, lookup: checkedLookup(lookup, opened) };
  };

  class GuardedHttpAgent extends HttpAgent {
    override createConnection(options: ClientRequestArgs, callback?: Created) {
      return connectOrRefuse(() => super.createConnection(guard('http:', options), callback), callback);
    }
  }
  class GuardedHttpsAgent extends HttpsAgent {
    override createConnection(options: ClientRequestArgs, callback?: Created) {
      return connectOrRefuse(() => super.createConnection(guard('https:', options), callback), callback);
    }
  }
  const httpAgent = new GuardedHttpAgent({ keepAlive: true });
  const httpsAgent = new GuardedHttpsAgent({ keepAlive: true });
  return {
    httpAgent,
    httpsAgent,
    close() {
      httpAgent.destroy();
      httpsAgent.destroy();
    },
  };
}

/** The refusal behind `error`, which an SDK may have wrapped in errors of its own. */
export function egressRefusal(error: unknown): EgressRefused | undefined {
  for (let cause = error, depth = 0; cause instanceof Error && depth < 10; cause = cause.cause, depth++) {
    if (cause instanceof EgressRefused) return cause;
  }
  return undefined;
}

type Created = (error: Error | null, stream: Duplex) => void;

/** Hands a refusal to the request as its error: thrown, it would escape into whoever made the request. */
function connectOrRefuse(connect: () => Duplex | null | undefined, callback?: Created): Duplex | null | undefined {
  try {
    return connect();
  } catch (error) {
    if (!callback || !(error instanceof Error)) throw error;
    process.nextTick(callback, error);
    return undefined;
  }
}

/** Whether the administrator opened `url`'s origin: itself, or, for buckets that stand in the host name, its parent. */
function isOpened({ endpoint, allowedOrigins }: EgressRules, url: URL): boolean {
  if (isAllowed(url.origin, allowedOrigins)) return true;
  if (endpoint === undefined) return false;
  const parent = new URL(endpoint);
  return (
    isAllowed(parent.origin, allowedOrigins) &&
    url.protocol === parent.protocol &&
    url.port === parent.port &&
    url.hostname.endsWith(`.${parent.hostname}`) &&
    literalReach(parent.hostname) === undefined
  );
}

const isAllowed = (origin: string, allowedOrigins: readonly string[]): boolean =>
  allowedOrigins.some((allowed) => URL.canParse(allowed) && new URL(allowed).origin === origin);

const isPublicHost = (provider: CloudProvider, { protocol, port, hostname }: URL): boolean =>
  protocol === 'https:' && port === '' && publicHosts[provider].test(hostname);

/** The reach of a URL's host where it is an address; the URL standard has made octal and decimal forms plain. */
function literalReach(hostname: string) {
  const bare = hostname.replace(/^\[|\]$/g, '');
  return isIP(bare) ? reachOf(bare) : undefined;
}

function requireReach(name: string, address: string, opened: boolean): void {
  const reach = reachOf(address);
  if (reach === 'public' || (reach === 'private' && opened)) return;
  const what = reach === 'private' ? 'a private address' : 'a link-local or metadata address';
  throw new EgressRefused(`${name} leads to ${what}, which may not be connected to.`);
}

/** A lookup that fails where any of the addresses may not be connected to. */
function checkedLookup(lookup: LookupFunction, opened: boolean): LookupFunction {
  return (hostname, options, callback) => {
    lookup(hostname, { ...options, all: true }, (error, found) => {
      const addresses = typeof found === 'string' ? [] : found; // `all` makes it a list
      const [first] = addresses;
      if (error || !first) return callback(error ?? new Error(`${hostname} has no address.`), []);
      try {
        for (const { address } of addresses) requireReach(hostname, address, opened);
      } catch (refusal) {
        return callback(refusal as EgressRefused, []);
      }
      return options.all ? callback(null, addresses) : callback(null, first.address, first.family);
    });
  };
}
