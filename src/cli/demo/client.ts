/** JSON of an answer, whose shape its reader knows from the interface. */
// biome-ignore lint/suspicious/noExplicitAny: the demo is a client like any other, without generated types.
type Json = any;

/** A client of the running service, as a user's script would be: token, JSON, problems. */
export class DemoClient {
  readonly url: string;
  readonly clientId: string;
  readonly #secret: string;
  #token = '';

  constructor(url: string, client: { clientId: string; clientSecret: string }) {
    this.url = url;
    this.clientId = client.clientId;
    this.#secret = client.clientSecret;
  }

  /** Gets an access token by the client credentials grant (RFC 6749 §4.4). */
  async login(): Promise<void> {
    const response = await fetch(`${this.url}/oauth/token`, {
      method: 'POST',
      headers: { authorization: `Basic ${Buffer.from(`${this.clientId}:${this.#secret}`).toString('base64')}` },
      body: new URLSearchParams({ grant_type: 'client_credentials' }),
    });
    if (!response.ok) throw new Error(`No token: ${await response.text()}`);
    this.#token = ((await response.json()) as { access_token: string }).access_token;
  }

  /** The answer to a request below /api/v1, whatever its body; a problem is thrown with its detail. */
  async fetch(method: string, path: string, body?: unknown, headers: Record<string, string> = {}): Promise<Response> {
    const response = await fetch(`${this.url}/api/v1${path}`, {
      method,
      headers: {
        authorization: `Bearer ${this.#token}`,
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
        ...headers,
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${await response.text()}`);
    return response;
  }

  /** The JSON that a request answers. */
  async call(method: string, path: string, body?: unknown): Promise<Json> {
    return (await this.fetch(method, path, body)).json();
  }

  /** Creates records by :bulkCreate, 1,000 a call, and answers them in order. */
  async createAll(path: string, items: object[], onProgress: (done: number, total: number) => void): Promise<Json[]> {
    const created: Json[] = [];
    while (created.length < items.length) {
      const batch = items.slice(created.length, created.length + 1_000);
      created.push(...(await this.call('POST', `${path}:bulkCreate`, { items: batch })).items);
      onProgress(created.length, items.length);
    }
    return created;
  }
}
