/** The description that the service gives of itself: what of OpenAPI 3.1 it uses. */
import { get } from "../lib/api";
import { s } from "../strings";

const t = s.reference.types;

export type Schema = {
  $ref?: string;
  type?: string | string[];
  description?: string;
  properties?: Record<string, Schema>;
  required?: string[];
  items?: Schema;
  additionalProperties?: boolean | Schema;
  oneOf?: Schema[];
  anyOf?: Schema[];
  enum?: unknown[];
  const?: unknown;
  default?: unknown;
  minimum?: number;
};

type Place = "path" | "query" | "header";
type Parameter = { name: string; in: Place; required?: boolean; description?: string; schema: Schema };
type Content = Record<string, { schema?: Schema; example?: unknown }>;
type Answer = { $ref?: string; description?: string; content?: Content };

export type Operation = {
  operationId: string;
  tags: string[];
  summary?: string;
  description?: string;
  parameters?: Parameter[];
  requestBody?: { content: Content };
  responses: Record<string, Answer>;
  security?: Record<string, string[]>[];
};

export type ApiDocument = {
  info: { description?: string };
  tags: { name: string; description?: string }[];
  paths: Record<string, Record<string, Operation>>;
  components: { schemas: Record<string, Schema>; responses: Record<string, Answer> };
};

let loading: Promise<ApiDocument> | undefined;
let components: ApiDocument["components"] = { schemas: {}, responses: {} };

/** It is the same as long as the page is: asked for once. */
export function loadDocument(): Promise<ApiDocument> {
  loading ??= get<ApiDocument>("/openapi.json").then(
    (document) => {
      components = document.components;
      return document;
    },
    (error) => {
      loading = undefined;
      throw error;
    },
  );
  return loading;
}

/** The last part of a reference, which is the name of a schema or an answer. */
export function nameOf(reference: string): string {
  return reference.slice(reference.lastIndexOf("/") + 1);
}

/** What a reference leads to, in the document that was loaded, and anything else as it is. */
export function resolved<T extends { $ref?: string }>(value: T, among: keyof typeof components): T {
  return ((value.$ref && components[among][nameOf(value.$ref)]) || value) as T;
}

/** A schema in a few words: `string | null`, `integer, at least 1`, `list of ListeningPort`. */
export function typeOf(schema: Schema): string {
  if (schema.$ref) return nameOf(schema.$ref);
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  const choices = schema.oneOf ?? schema.anyOf;
  if (choices) return [...new Set(choices.map(typeOf))].join(" | ");
  const members = schema.additionalProperties;
  const types = [schema.type ?? t.anything].flat().map((type) => {
    if (type === "array") return t.list(typeOf(schema.items ?? {}));
    return type === "object" && typeof members === "object" ? t.object(typeOf(members)) : type;
  });
  return `${types.join(" | ")}${schema.minimum ? `, ${t.atLeast(schema.minimum)}` : ""}`;
}

/** What a schema consists of and is worth a look of its own. */
export function parts(schema: Schema): Schema[] {
  const all = [schema, schema.items, schema.additionalProperties, ...(schema.oneOf ?? []), ...(schema.anyOf ?? [])];
  return all.filter((it): it is Schema => typeof it === "object" && (it.$ref ?? it.properties) !== undefined);
}
