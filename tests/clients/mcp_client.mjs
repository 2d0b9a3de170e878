// A client of the TypeScript SDK against a service and `sandboxctl mcp`.
//
// node mcp_client.mjs URL TOKEN PROGRAM ARGUMENT...

import assert from "node:assert/strict";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

async function use(transport) {
  const client = new Client({ name: "test", version: "1" });
  await client.connect(transport);
  const { tools } = await client.listTools();
  assert.deepEqual(tools.slice(0, 2).map((tool) => tool.name), ["execute_script", "read_file"]);

  // The SDK validates every structured result by the tool's output schema.
  const call = async (name, args) => {
    const result = await client.callTool({ name, arguments: args });
    assert(!result.isError, JSON.stringify(result));
    return result;
  };
  const script = "fs.write('data.csv', 'n,sq\\n1,1\\n2,4\\n') return { rows = 2 }";
  const ran = await call("execute_script", { script });
  assert.deepEqual(ran.structuredContent.result, { rows: 2 });
  const { contents } = await client.readResource({ uri: ran.content[1].uri });
  assert.equal(contents[0].text, "n,sq\n1,1\n2,4\n");
  const view = await call("read_file", { path: "data.csv", lines: { limit: 1 } });
  assert.match(view.content[0].text, /Use lines=\{"offset":2\} to continue/);
  await call("read_file", { path: "data.csv", encoding: "base64" });
  await call("edit_file", { path: "data.csv", old: "2,4", new: "2,four" });
  const found = await call("grep", { pattern: "four" });
  assert.equal(found.structuredContent.lines[0].line, 3);
  await call("stat", { path: "data.csv" });
  await call("list_directory", {});
  await call("glob", { pattern: "*.csv" });
  await call("copy", { from: "data.csv", to: "d/e.csv" });
  await call("move", { from: "d/e.csv", to: "f.csv" });
  await call("remove", { path: "d" });
  await call("remove", { path: "f.csv" });
  await call("remove", { path: "data.csv" });
  const much = await call("execute_script", {
    script: "fs.write('large', ('x'):rep(3 * 2^19)) return ('x'):rep(530000)",
  });
  assert(much.structuredContent.truncated && much.structuredContent.result === null);
  for (const [uri, size] of [[much.content[1].uri, 530002], ["sandbox:///io/large", 3 << 19]]) {
    const large = await client.readResource({ uri });
    assert.equal(large.contents[0].text.length, size);
  }
  await call("remove", { path: "large" });
  const failed = await client.callTool({
    name: "execute_script",
    arguments: { script: "error('boom')" },
  });
  assert(failed.isError && failed.structuredContent.error.kind === "runtime");
  await client.close();
}

const [url, token, command, ...args] = process.argv.slice(2);
const headers = { authorization: `Bearer ${token}` };
await use(new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }));
console.log(url, "ok");
await use(new StdioClientTransport({ command, args }));
console.log(command, "ok");
