/** A tool of the Vercel AI SDK that runs in a sandbox. The model is a stand-in: it asks for one command. */
import { generateText, jsonSchema, stepCountIs, tool } from "ai";
import { MockLanguageModelV4 } from "ai/test";
import { Sandbox } from "sandboxctl";
import { sandboxSession } from "sandboxctl/ai";

await using sandbox = await Sandbox.create({
  ...(process.env.IMAGE ? { image: process.env.IMAGE } : {}),
  ...(process.env.SERVER ? { server: process.env.SERVER } : {}),
});

const shell = tool({
  description: "Runs a line in a shell, in a sandbox.",
  inputSchema: jsonSchema<{ command: string }>({ type: "object", properties: { command: { type: "string" } } }),
  execute: async ({ command }, { experimental_sandbox }) => experimental_sandbox?.run({ command }),
});

const usage = {
  inputTokens: { total: 0, noCache: 0, cacheRead: 0, cacheWrite: 0 },
  outputTokens: { total: 0, text: 0, reasoning: 0 },
};
const call = { toolCallId: "1", toolName: "shell", input: JSON.stringify({ command: "echo $((6 * 7))" }) };
const model = new MockLanguageModelV4({
  doGenerate: async ({ prompt }) =>
    prompt.some((message) => message.role === "tool")
      ? {
          content: [{ type: "text", text: "It is 42." }],
          finishReason: { unified: "stop", raw: undefined },
          usage,
          warnings: [],
        }
      : {
          content: [{ type: "tool-call", ...call }],
          finishReason: { unified: "tool-calls", raw: undefined },
          usage,
          warnings: [],
        },
});

const { text, steps } = await generateText({
  model,
  tools: { shell },
  prompt: "What is six times seven?",
  stopWhen: stepCountIs(3),
  experimental_sandbox: sandboxSession(sandbox),
});
console.log(steps[0]?.toolResults[0]?.output);
console.log(text);
