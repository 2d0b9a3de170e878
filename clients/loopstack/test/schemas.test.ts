import "reflect-metadata";
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { test } from "node:test";
import { toolOptions } from "@loopstack/common";
import * as current from "sandboxctl-loopstack";
import * as block from "sandboxctl-loopstack/block";
import { z } from "zod";
import { BINARY } from "./place.js";

type Fields = Record<string, unknown>;

const classes: Fields = current;
const older: Fields = block;

/** The tools that Loopstack publishes: required arguments, and defaults; undefined without one. */
const PUBLISHED: [string, string, string[], Fields][] = [
  [
    "SandboxInit",
    "sandbox_init",
    ["containerId", "projectOutPath"],
    { imageName: undefined, containerName: undefined, rootPath: "workspace" },
  ],
  [
    "SandboxCommand",
    "sandbox_command",
    ["containerId", "executable"],
    { args: undefined, workingDirectory: "/", envVars: undefined, timeout: 30000 },
  ],
  ["SandboxDestroy", "sandbox_destroy", ["containerId"], { removeContainer: true }],
  ["SandboxReadFile", "sandbox_read_file", ["containerId", "path"], { encoding: "utf8" }],
  [
    "SandboxWriteFile",
    "sandbox_write_file",
    ["containerId", "path", "content"],
    { encoding: "utf8", createParentDirs: true },
  ],
  ["SandboxListDirectory", "sandbox_list_directory", ["containerId", "path"], { recursive: false }],
  ["SandboxCreateDirectory", "sandbox_create_directory", ["containerId", "path"], { recursive: true }],
  ["SandboxDelete", "sandbox_delete", ["containerId", "path"], { recursive: false, force: false }],
  ["SandboxExists", "sandbox_exists", ["containerId", "path"], {}],
  ["SandboxFileInfo", "sandbox_file_info", ["containerId", "path"], {}],
];

for (const [className, name, required, defaults] of PUBLISHED) {
  test(`${name} has the arguments and the defaults that Loopstack publishes`, () => {
    const { schema, ...options } = toolOptions(classes[className] as object);
    assert.equal(options.name, name);
    assert.ok(schema instanceof z.ZodObject);
    assert.deepEqual(Object.keys(schema.shape).sort(), [...required, ...Object.keys(defaults)].sort());
    const args = Object.fromEntries(required.map((key) => [key, "x"]));
    const given = Object.fromEntries(Object.entries(defaults).filter(([, value]) => value !== undefined));
    assert.deepEqual(schema.parse(args), { ...args, ...given });
    for (const missing of required) {
      const rest = Object.fromEntries(required.filter((key) => key !== missing).map((key) => [key, "x"]));
      assert.equal(schema.safeParse(rest).success, false, `without ${missing}`);
    }
    assert.equal(schema.safeParse({ ...args, other: 1 }).success, false, "an unknown argument");
    assert.equal(schema.safeParse({ ...args, containerId: 1 }).success, false, "a number for a text");

    const old = older[className] as unknown as { argsSchema: z.ZodType; blockConfig: { description: string } };
    assert.equal(old.argsSchema, schema, "the older platform's class has the same");
    assert.equal(old.blockConfig.description, options.description);
  });
}

test("every argument is one that the tool of the process has", () => {
  const listed = JSON.parse(execFileSync(BINARY, ["tools", "--list"], { encoding: "utf8" })) as {
    name: string;
    inputSchema: { properties: Fields };
  }[];
  for (const [className, value] of Object.entries(classes)) {
    if (!/^Sandbox(?!.*Module)/.test(className)) continue;
    const { name, schema } = toolOptions(value as object);
    const known = listed.find((tool) => tool.name === name);
    assert.ok(known, name);
    for (const key of Object.keys((schema as z.ZodObject).shape)) {
      assert.ok(name === "sandbox_filesystem" || key in known.inputSchema.properties, `${name}: ${key}`);
    }
  }
});
