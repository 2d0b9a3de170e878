// Writes src/core/generated.ts, the types of the wire, from the OpenAPI document, or with --check compares it.
import { readFileSync, writeFileSync } from "node:fs";

const root = new URL("../", import.meta.url);
const target = new URL("src/core/generated.ts", root);
const document = JSON.parse(readFileSync(new URL("../../docs/src/reference/openapi.json", root), "utf8"));
const { schemas } = document.components;

/** What the package names; what these refer to comes with them. The last line is the console's. */
const ROOTS = [
  "Operation", "Envelope", "WriteData", "ExecutionRequest", "ResultExecution", "ExecExecution", "ExecutionEvent",
  "SandboxRequest", "SandboxView", "Problem", "ProcessRequest", "ProcessView", "SignalRequest",
  "ExecutionList", "FileList", "SandboxList", "ProcessList", "PortList", "Preview", "UsageTotals",
  "SessionView", "ScriptCheck", "ServiceStatus",
];

const nameOf = (reference) => reference.split("/").at(-1);
/** As a comment has it: what ends one, such as a part of a glob, does not. */
const firstParagraph = (schema) =>
  schema.description?.split("\n\n")[0].replaceAll("\n", " ").replaceAll("*/", "*\\/");
const union = (types) => [...new Set(types)].join(" | ");

/** A schema as a type. What only restricts which members may be there together is left to the server. */
function typeOf(schema, indent = "") {
  if (schema === true || schema === undefined) return "unknown";
  if (schema.$ref) return nameOf(schema.$ref);
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return union(schema.enum.map((value) => JSON.stringify(value)));
  if (schema.properties) return objectOf(schema, indent);
  const choices = schema.oneOf ?? schema.anyOf;
  if (choices) return union(choices.map((choice) => typeOf(choice, indent)));
  const types = [schema.type ?? []].flat().map((type) => {
    switch (type) {
      case "array": {
        const item = typeOf(schema.items, indent);
        return item.includes("|") ? `(${item})[]` : `${item}[]`;
      }
      case "integer":
      case "number":
        return "number";
      case "object":
        return `Record<string, ${typeOf(schema.additionalProperties, indent)}>`;
      default:
        return type;
    }
  });
  return types.length > 0 ? union(types) : "unknown";
}

function objectOf(schema, indent) {
  const required = new Set(schema.required ?? []);
  const inner = `${indent}  `;
  const members = Object.entries(schema.properties).map(([name, member]) => {
    const comment = member.description ? `${inner}/** ${firstParagraph(member)} */\n` : "";
    return `${comment}${inner}${name}${required.has(name) ? "" : "?"}: ${typeOf(member, inner)};\n`;
  });
  return `{\n${members.join("")}${indent}}`;
}

/** The schemas that these refer to, and themselves. */
function closure(names) {
  const found = new Set();
  const visit = (name) => {
    if (found.has(name)) return;
    found.add(name);
    for (const [, next] of JSON.stringify(schemas[name]).matchAll(/"\$ref":"#\/components\/schemas\/(\w+)"/g)) visit(next);
  };
  names.forEach(visit);
  return [...found].sort();
}

const operations = schemas.Operation.oneOf.map((variant) => variant.properties.operation.const);
let text =
  "/** The types of the wire. Written by `npm run wire` from docs/src/reference/openapi.json; do not edit. */\n\n" +
  `/** The operations on files. */\nexport const OPERATIONS = ${JSON.stringify(operations)} as const;\n`;
for (const name of closure(ROOTS)) {
  const description = firstParagraph(schemas[name]);
  text += `\n${description ? `/** ${description} */\n` : ""}export type ${name} = ${typeOf(schemas[name])};\n`;
}

if (process.argv.includes("--check")) {
  if (readFileSync(target, "utf8") !== text) {
    console.error("src/core/generated.ts is not what the OpenAPI document says: npm run wire");
    process.exit(1);
  }
} else {
  writeFileSync(target, text);
}
