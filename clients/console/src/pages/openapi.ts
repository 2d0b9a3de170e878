/** The description that the service gives of itself: what of OpenAPI 3.1 it uses. */
import { get } from "../lib/api";

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
  format?: string;
  minimum?: number;
  exclusiveMinimum?: number;
  maximum?: number;
};

export type Parameter = {
  name: string;
  in: "path" | "query" | "header";
  required?: boolean;
  description?: string;
  schema: Schema;
};

export type Media = { schema?: Schema; example?: unknown };

export type Answer = { $ref?: string; description?: string; content?: Record<string, Media> };

export type Operation = {
  operationId: string;
  tags: string[];
  summary?: string;
  description?: string;
  parameters?: Parameter[];
  requestBody?: { required?: boolean; content: Record<string, Media> };
  responses: Record<string, Answer>;
  security?: Record<string, string[]>[];
};

export type ApiDocument = {
  info: { title: string; summary?: string; description?: string };
  tags: { name: string; description?: string }[];
  paths: Record<string, Record<string, Operation>>;
  components: { schemas: Record<string, Schema>; responses: Record<string, Answer> };
};

let loading: Promise<ApiDocument> | undefined;

/** It is the same as long as the page is: asked for once. */
export function loadDocument(): Promise<ApiDocument> {
  loading ??= get<ApiDocument>("/openapi.json").catch((error) => {
    loading = undefined;
    throw error;
  });
  return loading;
}

/** The last part of a reference, which is the name of a schema or an answer. */
export function nameOf(reference: string): string {
  return reference.slice(reference.lastIndexOf("/") + 1);
}

/** A schema in a few words: `text`, `integer, at least 1`, `list of KeptSpec`. */
export function typeOf(schema: Schema): string {
  if (schema.$ref) return nameOf(schema.$ref);
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  const choices = schema.oneOf ?? schema.anyOf;
  if (choices) return [...new Set(choices.map(typeOf))].join(" | ");
  const types = [schema.type ?? []].flat().map((type) => {
    if (type === "array") return `list of ${schema.items ? typeOf(schema.items) : "anything"}`;
    if (type === "object" && typeof schema.additionalProperties === "object") {
      return `object of ${typeOf(schema.additionalProperties)}`;
    }
    return type;
  });
  const least = schema.minimum ? `, at least ${schema.minimum}` : "";
  const most = schema.maximum !== undefined && schema.maximum <= 2 ** 32 ? `, at most ${schema.maximum}` : "";
  const text = types.length > 0 ? types.join(" | ") : "anything";
  return schema.format === "date-time" ? `${text} (time)` : `${text}${least}${most}`;
}

/** The schema that a reference leads to. */
export function resolved(schema: Schema, document: ApiDocument): Schema {
  return (schema.$ref && document.components.schemas[nameOf(schema.$ref)]) || schema;
}

/** What a schema consists of and is worth a look of its own. */
export function parts(schema: Schema): Schema[] {
  const all = [schema, schema.items, schema.additionalProperties, ...(schema.oneOf ?? []), ...(schema.anyOf ?? [])];
  return all.filter(
    (it): it is Schema => typeof it === "object" && (it.$ref !== undefined || it.properties !== undefined),
  );
}
