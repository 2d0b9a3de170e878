// A client of the TypeScript SDK, of either generation, against a service and `sandboxctl mcp`. The second
// generation speaks the stateless revision too, and reads and verifies skills.
//
// node mcp_client.mjs GENERATION URL TOKEN PROGRAM ARGUMENT...

import assert from "node:assert/strict";

const [generation, url, token, command, ...args] = process.argv.slice(2);
const isSecond = generation === "2";
const sdk = "@modelcontextprotocol/sdk/client";
const { Client } = await import(isSecond ? "@modelcontextprotocol/client" : `${sdk}/index.js`);
const { StreamableHTTPClientTransport } = await import(
  isSecond ? "@modelcontextprotocol/client" : `${sdk}/streamableHttp.js`
);
const { StdioClientTransport } = await import(
  isSecond ? "@modelcontextprotocol/client/stdio" : `${sdk}/stdio.js`
);

// As a host of skills does it: nothing is read that does not have the digest of the list.
async function useSkills(client) {
  const { SkillsClient } = await import("@modelcontextprotocol/client/ext/skills");
  const skills = new SkillsClient(client);
  assert(skills.supported && !skills.directoryRead);
  const { skills: listed } = await skills.list();
  assert.deepEqual(listed.map((skill) => skill.frontmatter.name), ["sandboxctl"]);
  const { skill } = await skills.get(listed[0].uri);
  assert.deepEqual(skill, listed[0]);
  const file = await skills.read(skill);
  assert(file.verified && file.mimeType === "text/markdown" && file.body.includes("execute_script"));
  assert.deepEqual(Object.keys(file.frontmatter).length, 6);
  await assert.rejects(skills.get("skill://other/SKILL.md"), { code: -32602 });
}

async function use(mode, transport) {
  const client = new Client({ name: "test", version: "1" }, { versionNegotiation: { mode } });
  await client.connect(transport);
  if (isSecond) {
    await useSkills(client);
  }
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

const headers = { authorization: `Bearer ${token}` };
for (const mode of isSecond ? ["auto", "legacy"] : ["legacy"]) {
  await use(mode, new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }));
  console.log(url, mode, "ok");
  await use(mode, new StdioClientTransport({ command, args }));
  console.log(command, mode, "ok");
}
