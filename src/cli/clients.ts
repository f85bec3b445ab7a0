import {
  type Client,
  createClient,
  disableClient,
  enableClient,
  listClients,
  type NewSecret,
  rotateSecret,
  setScopes,
  showClient,
} from '../auth/clients.ts';
import { formatScopes, parseScopes, type Scope, scopes, UnknownScope } from '../auth/scopes.ts';
import type { Db } from '../db/database.ts';
import { type Command, command, type Outcome, UsageError } from './command.ts';
import { table } from './help.ts';
import { withDatabase } from './open.ts';

const scopesHelp = [
  'Scopes:',
  ...Object.entries(scopes).map(([name, meaning]) => `  ${name.padEnd(17)}  ${meaning}`),
].join('\n');

export const create = command({
  details: `The secret is shown this once; only its hash is kept.\n\n${scopesHelp}`,
  options: {
    name: { type: 'string', value: 'NAME', required: true, help: 'What people call the client.' },
    scopes: { type: 'string', value: 'SCOPES', required: true, help: 'What it may do, separated by spaces.' },
  },
  async run(call) {
    const { name, scopes } = call.options;
    const wanted = scopesOf(scopes);
    if (wanted.length === 0) throw new UsageError('A new client needs at least one scope.');
    return withDatabase(call, async ({ pool }) => secretOutcome(await createClient(pool, { name, scopes: wanted })));
  },
});

export const list = command({
  run: (call) =>
    withDatabase(call, async ({ pool }) => {
      const clients = await listClients(pool);
      const rows = clients.map(({ clientId, name, disabled, scopes }) => [
        clientId,
        disabled ? 'disabled' : 'enabled',
        name,
        formatScopes(scopes),
      ]);
      return { value: clients, text: table(['CLIENT ID', 'STATE', 'NAME', 'SCOPES'], rows) };
    }),
});

export const show = change((db, id) => showClient(db, id));
export const disable = change(disableClient, 'Its live tokens are refused within 5 s.');
export const enable = change(enableClient);

export const replaceScopes = command({
  details: `Takes effect on live tokens within 5 s. "" takes all scopes away.\n\n${scopesHelp}`,
  arguments: ['ID'],
  options: { scopes: { type: 'string', value: 'SCOPES', required: true, help: 'All it may do from now on.' } },
  async run(call) {
    const [id] = call.arguments;
    const wanted = scopesOf(call.options.scopes);
    return withDatabase(call, async ({ pool }) => clientOutcome(found(await setScopes(pool, id, wanted), id)));
  },
});

export const rotate = command({
  details: 'The old secret is refused at once. The new one is shown this once.',
  arguments: ['ID'],
  run: (call) =>
    withDatabase(call, async ({ pool }) => {
      const [id] = call.arguments;
      return secretOutcome(found(await rotateSecret(pool, id), id));
    }),
});

/** A command that takes a client's id and tells what the client is afterwards. */
function change(work: (db: Db, clientId: string) => Promise<Client | null>, details = ''): Command {
  return command({
    details,
    arguments: ['ID'],
    run: (call) =>
      withDatabase(call, async ({ pool }) => {
        const [id] = call.arguments;
        return clientOutcome(found(await work(pool, id), id));
      }),
  });
}

function scopesOf(text: string): Scope[] {
  try {
    return parseScopes(text);
  } catch (error) {
    throw error instanceof UnknownScope ? new UsageError(error.message) : error;
  }
}

function found<T>(client: T | null, clientId: string): T {
  if (client === null) throw new Error(`There is no client ${clientId}.`);
  return client;
}

function secretOutcome({ clientId, clientSecret, scopes }: NewSecret): Outcome {
  return {
    value: { clientId, clientSecret, scopes },
    text: facts({
      'Client ID': clientId,
      'Client secret': `${clientSecret}  (shown this once)`,
      Scopes: formatScopes(scopes),
    }),
  };
}

function clientOutcome(client: Client): Outcome {
  return {
    value: client,
    text: facts({
      'Client ID': client.clientId,
      Name: client.name,
      State: client.disabled ? 'disabled' : 'enabled',
      Scopes: formatScopes(client.scopes) || 'none',
      Created: client.createdDate.toISOString(),
      Updated: client.updatedDate.toISOString(),
    }),
  };
}

function facts(rows: Record<string, string>): string {
  return Object.entries(rows)
    .map(([name, value]) => `${`${name}:`.padEnd(15)}${value}`)
    .join('\n');
}
