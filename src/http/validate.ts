import type { TSchema } from 'typebox';
import { pointerTo } from '../lib/pointer.ts';
import type { Fault } from '../lib/problem.ts';

/**
 * Faults of a value against its schema, sorted by what they lead to (decisions §8): `malformed` ones are a 400,
 * `broken` ones (a well-formed value that breaks a rule: a length, a number of keys) a 422.
 */
export interface Findings {
  malformed: Fault[];
  broken: Fault[];
}

/**
 * A request is described by at most this many faults: enough for one in every item of the largest bulk call, and a
 * bound on the memory that a hostile body can make the answer take.
 */
export const MAX_FAULTS = 1_000;

/** The part of JSON Schema 2020-12 that the service's schemas use. */
interface Schema {
  type?: 'object' | 'array' | 'string' | 'number' | 'integer' | 'boolean' | 'null';
  const?: unknown;
  enum?: unknown[];
  anyOf?: Schema[];
  properties?: Record<string, Schema>;
  required?: string[];
  patternProperties?: Record<string, Schema>;
  additionalProperties?: boolean | Schema;
  maxProperties?: number;
  propertyNames?: Schema;
  /** Keys that the service manages: dropped from what a client sends, so neither counted nor looked at. */
  'x-managed-keys'?: string[];
  items?: Schema;
  minItems?: number;
  maxItems?: number;
  minLength?: number;
  maxLength?: number;
  pattern?: string;
  minimum?: number;
  maximum?: number;
  readOnly?: boolean;
}

const patterns = new Map<string, RegExp>();

function matches(pattern: string, text: string): boolean {
  let compiled = patterns.get(pattern);
  if (!compiled) {
    compiled = new RegExp(pattern, 'u');
    patterns.set(pattern, compiled);
  }
  return compiled.test(text);
}

/** Length in Unicode code points (decisions §1), counted only as far as needed to tell whether it is above `limit`. */
function longerThan(text: string, limit: number): boolean {
  if (text.length <= limit) return false;
  if (text.length > 2 * limit) return true;
  let points = 0;
  for (const _ of text) if (++points > limit) return true;
  return false;
}

function shorterThan(text: string, limit: number): boolean {
  if (text.length >= 2 * limit) return false;
  let points = 0;
  for (const _ of text) points++;
  return points < limit;
}

/** What no store or export can hold (decisions §1), or null. */
function unstorable(text: string): string | null {
  if (text.includes('\u0000')) return 'holds the character U+0000, which cannot be stored';
  if (!text.isWellFormed()) return 'holds a lone surrogate, which is no character';
  return null;
}

function typeOf(value: unknown): string {
  if (value === null) return 'null';
  if (Array.isArray(value)) return 'array';
  return typeof value;
}

function typeFits(schema: Schema, value: unknown): boolean {
  if ('const' in schema) return schema.const === value;
  if (!schema.type) return true;
  const type = typeOf(value);
  return type === schema.type || (schema.type === 'integer' && type === 'number');
}

function typeName(schema: Schema): string {
  if ('const' in schema) return JSON.stringify(schema.const);
  const { type } = schema;
  if (!type || type === 'null') return 'null';
  return type === 'object' || type === 'array' || type === 'integer' ? `an ${type}` : `a ${type}`;
}

/** Collects the faults of one request over its body, parameters and headers. */
export class Inspection implements Findings {
  readonly malformed: Fault[] = [];
  readonly broken: Fault[] = [];

  get full(): boolean {
    return this.malformed.length + this.broken.length >= MAX_FAULTS;
  }

  /** Checks a JSON body; faults are told by RFC 6901 pointers. */
  body(schema: TSchema, value: unknown): void {
    this.#value(schema as Schema, value, '');
  }

  /** Checks path or query parameters, given as the strings of the URL; integers are converted in place. */
  parameters(schema: TSchema, values: Record<string, unknown>): void {
    const { properties = {}, required = [] } = schema as Schema;
    for (const name of required) {
      if (!Object.hasOwn(values, name)) this.malformed.push({ parameter: name, detail: 'is required' });
    }
    for (const [name, value] of Object.entries(values)) {
      const member = Object.hasOwn(properties, name) ? properties[name] : undefined;
      const fault = (detail: string) => this.malformed.push({ parameter: name, detail });
      if (!member) fault('is not a parameter of this operation');
      else if (typeof value !== 'string') fault('is given more than once');
      else if (member.type === 'integer' && !/^-?\d{1,15}$/.test(value)) fault('must be an integer');
      else {
        const inner = new Inspection();
        const converted = member.type === 'integer' ? Number(value) : value;
        inner.#value(member, converted, '');
        // A parameter that breaks a rule is malformed: decisions §8 knows no 422 for it.
        for (const { detail } of [...inner.malformed, ...inner.broken]) fault(detail);
        values[name] = converted;
      }
      if (this.full) return;
    }
  }

  #value(schema: Schema, value: unknown, pointer: string): void {
    if (this.full) return;
    const malformed = (detail: string) => this.malformed.push({ pointer, detail });
    const broken = (detail: string) => this.broken.push({ pointer, detail });
    if (schema.anyOf) {
      const branch = schema.anyOf.find((one) => typeFits(one, value));
      if (branch) this.#value(branch, value, pointer);
      else malformed(`must be ${schema.anyOf.map(typeName).join(' or ')}`);
      return;
    }
    if (schema.enum && !schema.enum.includes(value)) {
      malformed(`must be one of ${schema.enum.join(', ')}`);
      return;
    }
    if (!typeFits(schema, value)) {
      malformed(`must be ${typeName(schema)}`);
      return;
    }
    if (typeof value === 'string') this.#string(schema, value, malformed, broken);
    else if (typeof value === 'number') {
      if (!Number.isFinite(value)) malformed('is a number too large to be kept');
      else if (schema.type === 'integer' && !Number.isInteger(value)) malformed('must be an integer');
      else if (schema.minimum !== undefined && value < schema.minimum) malformed(`must be at least ${schema.minimum}`);
      else if (schema.maximum !== undefined && value > schema.maximum) malformed(`must be at most ${schema.maximum}`);
    } else if (Array.isArray(value)) this.#array(schema, value, pointer, malformed);
    else if (value !== null && typeof value === 'object') {
      if (schema.properties) this.#object(schema, value as Record<string, unknown>, pointer);
      else this.#map(schema, value as Record<string, unknown>, pointer, broken);
    }
  }

  #string(schema: Schema, value: string, malformed: (d: string) => void, broken: (d: string) => void): void {
    const bad = unstorable(value);
    const { minLength, maxLength } = schema;
    if (bad) malformed(bad);
    else if (schema.pattern && !matches(schema.pattern, value)) malformed('is not a well-formed identifier');
    else if (
      (maxLength !== undefined && longerThan(value, maxLength)) ||
      (minLength !== undefined && shorterThan(value, minLength))
    ) {
      if (maxLength === undefined) broken(`must have at least ${minLength} characters`);
      else if (minLength === undefined) broken(`must have at most ${maxLength} characters`);
      else broken(`must have ${minLength} to ${maxLength} characters`);
    }
  }

  #array(schema: Schema, value: unknown[], pointer: string, malformed: (d: string) => void): void {
    const { items, minItems, maxItems } = schema;
    if (minItems !== undefined && value.length < minItems) malformed(`must have at least ${minItems} items`);
    // What is too long is not looked into: that is where a hostile body would make work.
    else if (maxItems !== undefined && value.length > maxItems) malformed(`must have at most ${maxItems} items`);
    else if (items) {
      for (let i = 0; i < value.length && !this.full; i++) this.#value(items, value[i], pointerTo(pointer, i));
    }
  }

  #object(schema: Schema, value: Record<string, unknown>, pointer: string): void {
    const { properties = {}, required = [] } = schema;
    for (const name of required) {
      if (!Object.hasOwn(value, name)) {
        this.malformed.push({ pointer: pointerTo(pointer, name), detail: 'is required' });
      }
    }
    for (const name of Object.keys(value)) {
      if (this.full) return;
      const member = Object.hasOwn(properties, name) ? properties[name] : undefined;
      if (!member) this.malformed.push({ pointer: pointerTo(pointer, name), detail: 'is not a member of this record' });
      else if (!member.readOnly) this.#value(member, value[name], pointerTo(pointer, name));
    }
  }

  #map(schema: Schema, value: Record<string, unknown>, pointer: string, broken: (d: string) => void): void {
    const managed = schema['x-managed-keys'];
    const keys = managed ? Object.keys(value).filter((key) => !managed.includes(key)) : Object.keys(value);
    if (schema.maxProperties !== undefined && keys.length > schema.maxProperties) {
      broken(`must have at most ${schema.maxProperties} keys`);
      return;
    }
    const { propertyNames, additionalProperties, patternProperties } = schema;
    const member =
      typeof additionalProperties === 'object' ? additionalProperties : Object.values(patternProperties ?? {})[0];
    for (const key of keys) {
      if (this.full) return;
      const at = pointerTo(pointer, key);
      const before = this.malformed.length + this.broken.length;
      if (propertyNames) this.#key(propertyNames, key, at);
      // Below a key at fault nothing is looked for: a long one would be part of every pointer.
      const sound = before === this.malformed.length + this.broken.length;
      if (member && sound) this.#value(member, value[key], at);
    }
  }

  /** A key is judged as the string it is, but its faults are told as those of the key. */
  #key(schema: Schema, key: string, pointer: string): void {
    const malformed = (detail: string) => this.malformed.push({ pointer, detail: `the key ${detail}` });
    const broken = (detail: string) => this.broken.push({ pointer, detail: `the key ${detail}` });
    this.#string(schema, key, malformed, broken);
  }
}
