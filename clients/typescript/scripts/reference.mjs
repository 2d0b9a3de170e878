// Writes the page docs/src/reference/typescript.md from the declarations that `npm run build` makes, or with --check
// compares it. Each declaration that the package exports is shown as it is, below its own comment.
import { readFileSync, writeFileSync } from "node:fs";

const root = new URL("../", import.meta.url);
const page = new URL("../../docs/src/reference/typescript.md", root);
const read = (path) => readFileSync(new URL(path, root), "utf8");

/** The declarations of a file: name, comment, code. */
function declarations(path) {
  const found = new Map();
  const pattern = /(?:^\/\*\*((?:(?!\*\/)[\s\S])*)\*\/\n)?^export (?:declare )?(?:class|interface|type|function|const) (\w+)(?:[^\n]*[;}]$|[\s\S]*?^\}[^\n{]*;?$)/gm;
  for (const [whole, comment, name] of read(path).matchAll(pattern)) {
    const code = whole.slice(whole.indexOf("export ")).replace(/^export (declare )?/, "");
    const shown = code
      .split("\n")
      .filter((line) => !/^ {4}(#private;|private constructor)/.test(line))
      .map((line) => line.replace(/^( {4})+/, (indent) => " ".repeat(indent.length / 2)))
      .join("\n");
    const text = (comment ?? "").replace(/^\s*\* ?/gm, "").trim();
    found.set(name, { name, text, code: shown });
  }
  return found;
}

const all = new Map();
const FILES = ["core/bytes", "core/errors", "core/executions", "core/processes", "files", "interpreter", "ports", "process", "sandbox", "tools", "ai"];
for (const path of FILES) {
  for (const [name, declaration] of declarations(`dist/${path}.d.ts`)) all.set(name, declaration);
}

const index = read("dist/index.d.ts");
const exported = new Set([...index.matchAll(/\{([^}]*)\}/g)].flatMap(([, names]) => names.match(/\b(?!type\b)\w+/g)));
for (const name of declarations("dist/files.d.ts").keys()) exported.add(name);

const SECTIONS = [
  ["Sandboxes", ["Sandbox", "SandboxOptions", "ConnectOptions", "ListOptions", "SandboxInfo", "runScript", "exec"]],
  ["Files", [...declarations("dist/files.d.ts").keys(), "Path"]],
  ["Commands and scripts", [
    "Commands", "CommandHandle", "RunCommandOptions", "CommandOptions", "RunScriptOptions", "ScriptOptions",
    "RunControl", "SignalOption", "OutputEvent", "CommandResult", "ScriptResult", "Execution", "Status", "Limits",
  ]],
  ["Processes and terminals", [
    "Process", "BackgroundOptions", "ProcessOptions", "EventsOptions", "ProcessEvent", "ProcessInfo", "Pty", "Terminal",
    "TerminalOptions", "SignalName", "SignalTarget",
  ]],
  ["The code interpreter", ["Interpreter", "CodeOptions", "CodeRun", "CodeValue", "CodeContext"]],
  ["Ports", ["Ports", "ForwardOptions", "Forward", "PreviewOptions", "Preview", "ListeningPort"]],
  ["Errors", [
    "SandboxError", "Kind", "NotFound", "Timeout", "TimeoutOwner", "LimitExceeded", "PolicyDenied", "SandboxGone", "ServerBusy",
    "ErrorDetails",
  ]],
  ["`sandboxctl/tools`", ["Tools", "ToolsOptions", "ToolAnswer"]],
  ["`sandboxctl/ai`", ["sandboxSession"]],
];

const shown = new Set(SECTIONS.flatMap(([, names]) => names));
const missing = [...exported].filter((name) => !shown.has(name));
if (missing.length > 0) throw new Error(`exported, but in no section: ${missing}`);

let text =
  "# TypeScript API\n\n" +
  "What the package `sandboxctl` exports; [the guide](../guides/typescript.md) shows how it is used. This page is\n" +
  "written by `clients/typescript/scripts/reference.mjs` from the declarations of the package.\n";
for (const [title, names] of SECTIONS) {
  text += `\n## ${title}\n`;
  for (const name of names) {
    const declaration = all.get(name);
    if (!declaration) throw new Error(`${name} is not declared`);
    const prose = declaration.text ? `\n${declaration.text}\n` : "";
    text += `\n### ${name}\n${prose}\n\`\`\`ts\n${declaration.code}\n\`\`\`\n`;
  }
}

if (process.argv.includes("--check")) {
  if (readFileSync(page, "utf8") !== text) {
    console.error("docs/src/reference/typescript.md is not what the package declares: npm run reference");
    process.exit(1);
  }
} else {
  writeFileSync(page, text);
}
