import type { Entry } from './command.ts';

/** Every command of `sds`, in the order of the help. */
export const entries: Entry[] = [
  {
    name: 'serve',
    summary: 'Serve the interface until SIGTERM.',
    load: async () => (await import('./serve.ts')).serveCommand,
  },
  {
    name: 'clients create',
    summary: 'Register a client and show its secret.',
    load: async () => (await import('./clients.ts')).create,
  },
  {
    name: 'clients list',
    summary: 'List all clients.',
    load: async () => (await import('./clients.ts')).list,
  },
  {
    name: 'clients show',
    summary: 'Show one client.',
    load: async () => (await import('./clients.ts')).show,
  },
  {
    name: 'clients set-scopes',
    summary: 'Replace the scopes of a client.',
    load: async () => (await import('./clients.ts')).replaceScopes,
  },
  {
    name: 'clients rotate-secret',
    summary: 'Give a client another secret.',
    load: async () => (await import('./clients.ts')).rotate,
  },
  {
    name: 'clients disable',
    summary: 'Refuse a client and its tokens.',
    load: async () => (await import('./clients.ts')).disable,
  },
  {
    name: 'clients enable',
    summary: 'Admit a disabled client again.',
    load: async () => (await import('./clients.ts')).enable,
  },
  {
    name: 'keys rotate',
    summary: 'Replace the key that signs access tokens, or the master key.',
    load: async () => (await import('./keys.ts')).rotate,
  },
  {
    name: 'import send',
    summary: 'Import a SEND study from its SAS transport files.',
    load: async () => (await import('./import.ts')).importSend,
  },
  {
    name: 'studies purge',
    summary: 'Take away what deleted studies have left behind.',
    load: async () => (await import('./studies.ts')).purge,
  },
  {
    name: 'migrate',
    summary: 'Bring the database to the version of this release.',
    load: async () => (await import('./migrate.ts')).migrateCommand,
  },
  {
    name: 'demo',
    summary: 'Generate a study, load, export, download and check it.',
    load: async () => (await import('./demo.ts')).demo,
  },
];
