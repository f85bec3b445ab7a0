import { type Attributes, checkName, newAttributes } from './attributes.ts';
import type { Row } from './xport.ts';

export interface SendOrgan {
  /** Index of the subject. */
  subject: number;
  name: string;
  attributes: Attributes;
}

/** The organs of the study, each once per subject, in the order in which rows name them. */
export interface Organs {
  list: SendOrgan[];
  byName: Map<string, number>;
}

export function noOrgans(): Organs {
  return { list: [], byName: new Map() };
}

/** Index of the subject's organ of that name, which is made where the study does not have it yet. */
export function organOf(organs: Organs, row: Row, subject: number, variable: string, name: string): number {
  const key = `${subject} ${name}`;
  const known = organs.byName.get(key);
  if (known !== undefined) return known;
  const organ =
    organs.list.push({ subject, name: checkName(row, variable, name, 255), attributes: newAttributes() }) - 1;
  organs.byName.set(key, organ);
  return organ;
}
