import { describe, expect, test } from 'vitest';
import {
  bootstrapClient,
  countClients,
  createClient,
  disableClient,
  enableClient,
  listClients,
  readLogin,
  rotateSecret,
  setScopes,
  showClient,
} from '../src/auth/clients.ts';
import { scopeNames } from '../src/auth/scopes.ts';
import { SecretChecker } from '../src/auth/secrets.ts';
import { isId } from '../src/lib/id.ts';
import { useDatabase } from './auth-fixture.ts';

const database = useDatabase();
const secrets = new SecretChecker();

async function secretIsRight(clientId: string, secret: string): Promise<boolean> {
  const login = await readLogin(database.pool, clientId);
  return secrets.matches(secret, login?.secretHash ?? null);
}

// These come before all tests that make clients.
describe('the first client', () => {
  test('is made once, whichever node comes first, with all scopes', async () => {
    const attempts = Array.from({ length: 5 }, (_, i) =>
      bootstrapClient(database.pool, { clientId: `first${i}`, clientSecret: 'from the environment' }),
    );
    expect((await Promise.all(attempts)).filter((made) => made)).toHaveLength(1);
    const [only, ...others] = await listClients(database.pool);
    expect(others).toEqual([]);
    expect(only?.scopes).toEqual(scopeNames);
    expect(await secretIsRight(only?.clientId ?? '', 'from the environment')).toBe(true);
  });

  test('is not made, nor its secret changed, when there is one already', async () => {
    const [only] = await listClients(database.pool);
    const clientId = only?.clientId ?? '';
    expect(await bootstrapClient(database.pool, { clientId, clientSecret: 'another' })).toBe(false);
    expect(await secretIsRight(clientId, 'another')).toBe(false);
  });
});

describe('a client', () => {
  test('is created with an id and a secret, which is shown once and stored hashed', async () => {
    const made = await createClient(database.pool, { name: 'Lab robot', scopes: ['Study:Write', 'Study:Read'] });
    expect(made).toEqual({
      clientId: expect.any(String),
      clientSecret: expect.any(String),
      scopes: ['Study:Read', 'Study:Write'],
    });
    expect(isId(made.clientId)).toBe(true);
    const shown = await showClient(database.pool, made.clientId);
    expect(shown).toEqual({
      clientId: made.clientId,
      name: 'Lab robot',
      scopes: ['Study:Read', 'Study:Write'],
      disabled: false,
      createdDate: expect.any(Date),
      updatedDate: expect.any(Date),
    });
    const { rows } = await database.pool.query('select * from clients where client_id = $1', [made.clientId]);
    expect(JSON.stringify(rows)).not.toContain(made.clientSecret);
    expect(await secretIsRight(made.clientId, made.clientSecret)).toBe(true);
  });

  test.each(['', '  ', 'x'.repeat(256)])('needs a name of 1 to 255 characters, not %j', async (name) => {
    await expect(createClient(database.pool, { name, scopes: [] })).rejects.toThrow('1 to 255 characters');
  });

  test('is listed with all others, oldest first', async () => {
    const a = await createClient(database.pool, { name: 'a', scopes: [] });
    const b = await createClient(database.pool, { name: 'b', scopes: [] });
    const ids = (await listClients(database.pool)).map((client) => client.clientId);
    expect(ids.slice(-2)).toEqual([a.clientId, b.clientId]);
    expect(await countClients(database.pool)).toBe(ids.length);
  });

  test('gets other scopes, is disabled and enabled, and gets another secret', async () => {
    const { clientId, clientSecret } = await createClient(database.pool, { name: 'c', scopes: ['Study:Read'] });
    expect((await setScopes(database.pool, clientId, ['Audit:Read', 'Image:Read']))?.scopes).toEqual([
      'Image:Read',
      'Audit:Read',
    ]);
    expect((await disableClient(database.pool, clientId))?.disabled).toBe(true);
    expect((await enableClient(database.pool, clientId))?.disabled).toBe(false);
    const fresh = await rotateSecret(database.pool, clientId);
    expect(fresh).toEqual({ clientId, clientSecret: expect.any(String), scopes: ['Image:Read', 'Audit:Read'] });
    expect(await secretIsRight(clientId, clientSecret)).toBe(false);
    expect(await secretIsRight(clientId, fresh?.clientSecret ?? '')).toBe(true);
  });

  test.each(['nobody', '', '\0', 'é', 'x'.repeat(256)])('that does not exist (%j) is null', async (clientId) => {
    expect(await showClient(database.pool, clientId)).toBeNull();
    expect(await setScopes(database.pool, clientId, [])).toBeNull();
    expect(await disableClient(database.pool, clientId)).toBeNull();
    expect(await enableClient(database.pool, clientId)).toBeNull();
    expect(await rotateSecret(database.pool, clientId)).toBeNull();
    expect(await readLogin(database.pool, clientId)).toBeNull();
  });
});
