import { type Static, type TObject, Type } from 'typebox';
import { ID_PATTERN } from '../lib/id.ts';

export const providers = ['S3', 'AZURE_BLOB', 'GCS', 'FILE'] as const;
export type Provider = (typeof providers)[number];

/** Text of bounded length; lengths count Unicode code points (decisions §1). */
const text = (maxLength: number, description: string, example: string) =>
  Type.String({ minLength: 1, maxLength, description, examples: [example] });

/** Secrets have no examples: one that looks real would be used. */
const secretText = (maxLength: number, description: string) =>
  Type.String({ minLength: 1, maxLength, description, format: 'password', writeOnly: true });

const endpoint = Type.Optional(
  text(
    2_048,
    'URL of a service other than the provider’s public one; the administrator must have allowed its origin.',
    'https://minio.example.org:9000',
  ),
);

/** What a credential of each provider says of where and who (decisions §5). */
export const settingsOf = {
  S3: Type.Object(
    {
      region: text(64, 'Region of the bucket.', 'eu-central-1'),
      bucket: text(63, 'Name of the bucket.', 'scanner-output'),
      endpoint,
      forcePathStyle: Type.Optional(
        Type.Boolean({
          description: 'The bucket stands in the path instead of in the host name. Default false.',
          examples: [true],
        }),
      ),
      accessKeyId: text(128, 'Id of the access key.', 'AKIAIOSFODNN7EXAMPLE'),
    },
    { title: 'S3Settings' },
  ),
  AZURE_BLOB: Type.Object(
    {
      account: text(24, 'Name of the storage account.', 'labslides'),
      container: text(63, 'Name of the container.', 'scanner-output'),
      endpoint,
    },
    { title: 'AzureBlobSettings' },
  ),
  GCS: Type.Object(
    {
      bucket: text(222, 'Name of the bucket.', 'scanner-output'),
      endpoint,
      clientEmail: text(254, 'The service account.', 'slides@lab-project.iam.gserviceaccount.com'),
    },
    { title: 'GcsSettings' },
  ),
  FILE: Type.Object(
    { root: text(64, 'Name of a directory tree that the administrator opened.', 'scanner') },
    { title: 'FileSettings' },
  ),
};

/** What each provider is to be convinced by; write-only. */
export const secretOf = {
  S3: Type.Object(
    {
      secretAccessKey: secretText(1_024, 'The secret access key.'),
      sessionToken: Type.Optional(secretText(16_384, 'Session token of a temporary access key.')),
    },
    { title: 'S3Secret' },
  ),
  AZURE_BLOB: Type.Object(
    {
      accountKey: Type.Optional(secretText(512, 'Key of the account, base64. Either this or sasToken.')),
      sasToken: Type.Optional(secretText(4_096, 'Shared access signature: its query string.')),
    },
    { title: 'AzureBlobSecret' },
  ),
  GCS: Type.Object(
    { privateKey: secretText(16_384, 'RSA key of the service account, PEM, as in its JSON key.') },
    { title: 'GcsSecret' },
  ),
  FILE: null,
} satisfies Record<Provider, TObject | null>;

/** Where a credential of a provider that is reached over a network leads. */
export type CloudSettings =
  | { provider: 'S3'; settings: Static<typeof settingsOf.S3> }
  | { provider: 'AZURE_BLOB'; settings: Static<typeof settingsOf.AZURE_BLOB> }
  | { provider: 'GCS'; settings: Static<typeof settingsOf.GCS> };

/** A credential as it is opened: what is stored, with its secret decrypted. */
export type Connection =
  | (CloudSettings & { provider: 'S3'; secret: Static<typeof secretOf.S3> })
  | (CloudSettings & { provider: 'AZURE_BLOB'; secret: Static<typeof secretOf.AZURE_BLOB> })
  | (CloudSettings & { provider: 'GCS'; secret: Static<typeof secretOf.GCS> })
  | { provider: 'FILE'; settings: Static<typeof settingsOf.FILE>; secret: null };

const Timestamp = Type.String({
  format: 'date-time',
  description: 'ISO 8601, UTC, milliseconds, from the database’s clock.',
  examples: ['2026-03-02T08:15:30.123Z'],
});
const name = text(255, 'What people call it, 1 to 255 characters; need not be unique.', 'Scanner room');

const validation = {
  valid: Type.Boolean({ description: 'Whether every step went well.', examples: [true] }),
  checkedDate: Timestamp,
  detail: Type.String({ description: 'What was found, for a person.', examples: ['Everything that was tried works.'] }),
};

/** The credential record (decisions §5). */
export const Credential = Type.Object(
  {
    credentialId: Type.String({ pattern: ID_PATTERN, description: 'Identifier of the credential.' }),
    name,
    provider: Type.Enum([...providers], { description: 'Kind of store.', examples: ['S3'] }),
    settings: Type.Union(Object.values(settingsOf), { description: 'Where it leads and as whom, by provider.' }),
    lastValidation: Type.Union([Type.Object(validation), Type.Null()], {
      description: 'Outcome of the last :validate; null before it, and after a change of settings or secret.',
    }),
    createdDate: Timestamp,
    updatedDate: Timestamp,
    version: Type.Integer({ minimum: 1, description: 'Counts the writes of this record; its ETag.', examples: [1] }),
  },
  { title: 'Credential' },
);

export const stepNames = ['resolve', 'connect', 'authenticate', 'list', 'read', 'write', 'delete'] as const;
export type StepName = (typeof stepNames)[number];

/** The answer of :validate. */
export const Validation = Type.Object(
  {
    ...validation,
    checks: Type.Array(
      Type.Object({
        name: Type.Enum([...stepNames], { description: 'The step.', examples: ['list'] }),
        ok: Type.Boolean({ description: 'Whether it went well.', examples: [true] }),
        detail: Type.String({ description: 'What was found, for a person.', examples: ['There are objects.'] }),
      }),
      { description: 'The steps in their order, up to the one that failed.' },
    ),
  },
  { title: 'CredentialValidation' },
);

/** Body of :validate; every member may be left out. */
export const ValidationBody = Type.Object({
  prefix: Type.Optional(
    Type.String({
      maxLength: 1_024,
      description: 'Look only below this prefix of keys, as a job would. Default: everywhere.',
      examples: ['2026/'],
    }),
  ),
  write: Type.Optional(
    Type.Boolean({ description: 'Also write a small object below the prefix and delete it. Default false.' }),
  ),
});

/** Members of the record that a body may repeat and that are ignored whatever their value (decisions §1). */
const ignored = Object.fromEntries(
  ['credentialId', 'lastValidation', 'createdDate', 'updatedDate', 'version'].map((member) => [
    member,
    Type.Optional(Type.Unknown({ readOnly: true, description: 'Ignored: set by the service.' })),
  ]),
);

function bodyOf(provider: Provider, kind: 'create' | 'update'): TObject {
  const secret = secretOf[provider];
  const kept = kind === 'update';
  return Type.Object({
    name,
    provider: kept ? Type.Optional(Type.Literal(provider)) : Type.Literal(provider),
    settings: settingsOf[provider],
    ...(secret && { secret: kept ? Type.Optional(secret) : secret }),
    ...ignored,
  });
}

const bodiesOf = (kind: 'create' | 'update') =>
  Object.fromEntries(providers.map((provider) => [provider, bodyOf(provider, kind)])) as Record<Provider, TObject>;

/** Bodies of POST and PUT by provider; a PUT may leave out the provider, and the secret in order to keep it. */
export const bodies = { create: bodiesOf('create'), update: bodiesOf('update') };

/** A body whose provider is missing or unknown, as far as it can be judged. */
export const BodyOfUnknown = Type.Object({
  name,
  provider: Type.Enum([...providers]),
  settings: Type.Unsafe<object>({ type: 'object' }),
  secret: Type.Optional(Type.Unsafe<object>({ type: 'object' })),
  ...ignored,
});

const example = {
  name: 'Scanner room',
  provider: 'FILE',
  settings: { root: 'scanner' },
};

/**
 * Bodies as the API document shows them. Checked only for being objects: which of them is meant, and whether it is right,
 * is for the rules to tell, as a PUT without `provider` means that of the stored record.
 */
export const CreateBody = Type.Unsafe<object>({
  type: 'object',
  oneOf: Object.values(bodies.create),
  examples: [example],
});
export const UpdateBody = Type.Unsafe<object>({
  type: 'object',
  // Not oneOf: without a provider, a body may fit several. In allOf, as an anyOf would be checked before the rules do.
  allOf: [{ anyOf: Object.values(bodies.update) }],
  examples: [example],
});
