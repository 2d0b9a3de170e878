// The kernel of JavaScript and TypeScript: cells come at one descriptor, each ended by a zero byte, and a line of JSON
// at another says what has become of each. Node's own REPL evaluates them, so that names are kept and `await` works.
"use strict";
const fs = require("fs");
const { Module } = require("module");
const { Socket } = require("net");
const { PassThrough } = require("stream");
const { inspect } = require("util");

// A REPL takes null that is thrown for no error. So it has a way to run cells that makes an error of it.
const { prototype } = require("vm").Script;
const { runInThisContext } = prototype;
const thrown = (value) => value ?? { message: String(value) };
prototype.runInThisContext = function (...options) {
  try {
    const value = Reflect.apply(runInThisContext, this, options);
    return value instanceof Promise ? value.catch((error) => Promise.reject(thrown(error))) : value;
  } catch (error) {
    throw thrown(error);
  }
};
const repl = require("repl");
prototype.runInThisContext = runInThisContext;

const [language, cells, replies] = process.argv.slice(2);
const shell = repl.start({
  input: new PassThrough(),
  output: new PassThrough(),
  terminal: false,
  useGlobal: true,
  prompt: "",
});
// In a domain of the REPL an error would end there, and neither the cell nor a callback would be told of it.
if (shell._domain) shell._domain.enter = shell._domain.exit = () => {};

// A REPL has no `import` statements: they become calls.
const IMPORT = /^([ \t]*)import\s+(?:([\w$]+)\s*,?\s*)?(?:\*\s*as\s+([\w$]+)|\{([^}]*)\})?\s*(?:from\s*)?(["'][^"']+["'])\s*;?/gm;
const imported = (_, indent, whole, space, names, from) => {
  const parts = names ? names.split(",").filter((name) => name.trim()) : [];
  const wanted = parts.map((name) => name.trim().replace(/\s+as\s+/, ": "));
  if (whole) wanted.unshift(`default: ${whole}`);
  const target = space ?? (wanted.length > 0 ? `{ ${wanted.join(", ")} }` : null);
  return `${indent}${target ? `const ${target} = ` : ""}await import(${from});`;
};

const javascript = (code) => {
  if (language !== "typescript") return code;
  if (Module.stripTypeScriptTypes) return Module.stripTypeScriptTypes(code);
  // An import may be for a later cell. TypeScript before 5.0 knows the one name of this, and later ones the other.
  const kept = { preserveValueImports: true, verbatimModuleSyntax: true };
  const options = { compilerOptions: { target: "es2022", module: "esnext", ...kept } };
  // That makes a module of what has had imports of types alone.
  return require("typescript").transpileModule(code, options).outputText.replace(/^export \{\};$/m, "");
};

const evaluated = (code) =>
  new Promise((resolve, reject) => {
    // Zero can be thrown, too.
    const ended = (error, value) => ((error ?? null) === null ? resolve(value) : reject(error));
    shell.eval(code, shell.context, "cell", ended);
  });

// Of a pipe that is full, Node keeps what is written, and writes it later.
const flushes = [process.stdout, process.stderr].map((stream) => {
  const write = stream.write.bind(stream);
  return () => new Promise((resolve) => write("", resolve));
});

// Anything can be thrown, also what is no text, nor becomes one.
const text = (thrown) => (typeof thrown === "string" ? thrown : inspect(thrown));

const failed = (error) => {
  try {
    const known = error?.err ?? error;
    const name = text(known?.name ?? "Error");
    return { name, value: text(known?.message ?? known), traceback: text(known?.stack ?? "") };
  } catch {
    // Nor can it be read. The cells after it wait for an answer.
    return { name: "Error", value: "", traceback: "" };
  }
};

const run = async ({ code, env }) => {
  const kept = Object.fromEntries(Object.keys(env).map((name) => [name, process.env[name]]));
  Object.assign(process.env, env);
  try {
    const value = await evaluated(javascript(code).replace(IMPORT, imported));
    return value === undefined ? {} : { result: inspect(value) };
  } catch (error) {
    return { error: failed(error) };
  } finally {
    for (const [name, value] of Object.entries(kept)) {
      if (value === undefined) delete process.env[name];
      else process.env[name] = value;
    }
  }
};

// What goes wrong in a callback is said, and ends nothing.
process.on("uncaughtException", (error) => console.error(error));
let pending = "";
let turn = Promise.resolve();
// A file would be read in a thread, for which the end of the process waits.
const input = new Socket({ fd: Number(cells), readable: true, writable: false }).setEncoding("utf8");
input.on("data", (data) => {
  const parts = (pending + data).split("\0");
  pending = parts.pop();
  for (const cell of parts) {
    turn = turn.then(async () => {
      const reply = await run(JSON.parse(cell));
      for (const flush of flushes) await flush();
      fs.writeSync(Number(replies), `${JSON.stringify(reply)}\n`);
    });
  }
});
input.on("end", () => process.exit());
