import type { TSchema } from 'typebox';

export type Json = Record<string, unknown>;

export function pascal(name: string): string {
  return name.charAt(0).toUpperCase() + name.slice(1);
}

/** The named schemas of the document, gathered from the schemas that validate. */
export class SchemaComponents {
  readonly schemas: Json = {};
  /** By the schema itself, so that a body used by two operations is one component. */
  readonly #names = new Map<unknown, string>();

  /** The schema in the form of OpenAPI 3.1; objects with a title become components. */
  of(schema: unknown, closed: boolean): unknown {
    if (Array.isArray(schema)) return schema.map((one) => this.of(one, closed));
    if (schema === null || typeof schema !== 'object') return schema;
    const { title } = schema as Json;
    return typeof title === 'string' ? this.named(schema as TSchema, title, closed) : this.#plain(schema, closed);
  }

  /** A reference to the component that the schema is: under its title, else under `name`. */
  named(schema: TSchema, name: string, closed: boolean): Json {
    const { title, ...rest } = schema as Json;
    let known = this.#names.get(schema);
    if (known === undefined) {
      known = typeof title === 'string' ? title : name;
      this.#names.set(schema, known);
      this.schemas[known] ??= this.#plain(rest, closed);
    }
    return { $ref: `#/components/schemas/${known}` };
  }

  #plain(schema: object, closed: boolean): Json {
    const { patternProperties, 'x-managed-keys': managed, ...rest } = schema as Json;
    const result: Json = {};
    for (const [key, value] of Object.entries(rest)) {
      if (key === 'examples' || key === 'default') result[key] = value;
      else if (key === 'properties') result[key] = this.#members(value as Json, closed);
      else result[key] = this.of(value, closed);
    }
    // Maps in the form that client generators understand.
    if (patternProperties) result.additionalProperties = this.of(Object.values(patternProperties)[0], closed);
    // The managed keys come on top of those that a client may send.
    if (Array.isArray(managed)) result.maxProperties = (result.maxProperties as number) + managed.length;
    if (closed && result.properties) result.additionalProperties = false;
    if (Array.isArray(result.enum)) result.type ??= 'string';
    return result;
  }

  /** Members by name: one that is called `title` is none. */
  #members(properties: Json, closed: boolean): Json {
    return Object.fromEntries(Object.entries(properties).map(([name, member]) => [name, this.of(member, closed)]));
  }
}

/** A value put together from the examples of the members; of a body without those that the service sets. */
export function exampleOf(schema: unknown, what: 'body' | 'answer'): unknown {
  const {
    examples,
    properties,
    type,
    items,
    anyOf,
    enum: values,
    required = [],
  } = schema as Json & {
    required?: string[];
  };
  const { format, pattern, minimum = 1, const: fixed } = schema as Json;
  if (Array.isArray(examples)) return examples[0];
  if (fixed !== undefined) return fixed;
  if (Array.isArray(values)) return values[0];
  if (properties) {
    const members = Object.entries(properties as Record<string, Json>).filter(
      ([name, member]) => what === 'answer' || (!member.readOnly && (required.includes(name) || member.examples)),
    );
    return Object.fromEntries(members.map(([name, member]) => [name, exampleOf(member, what)]));
  }
  if (Array.isArray(anyOf)) return exampleOf(anyOf[0], what);
  if (type === 'array') return [exampleOf(items, what)];
  if (format === 'uri') return 'https://sds.example.org/api/v1/studies?pageNumber=2';
  if (pattern) return '0MZ3fW9k000aB7dR2uQxKpLc';
  return { string: 'text', integer: minimum, number: minimum, boolean: true, null: null }[type as string] ?? {};
}
