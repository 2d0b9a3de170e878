"""OpenAI Agents: an agent with a sandbox. A script stands in for the model: one command, then an answer."""

import asyncio
import sys

from agents import RunConfig, Runner
from agents.run_config import SandboxRunConfig
from agents.sandbox import SandboxAgent
from agents.sandbox.capabilities import Shell
from agents.sandbox.entries import File
from agents.sandbox.manifest import Manifest
from agents.testing import ScriptedModel, assistant_message, function_call

from sandboxctl.adapters.openai_agents import SandboxctlClient, SandboxctlClientOptions

image = sys.argv[1] if len(sys.argv) > 1 else "python:3.13-slim"
model = ScriptedModel(
    [
        [function_call("exec_command", {"cmd": "python3 -c 'print(sum(map(int, open(0))))' < rows.txt"}, call_id="1")],
        [assistant_message("The sum is 42.")],
    ]
)
agent = SandboxAgent(name="Adder", instructions="Add the rows.", model=model, capabilities=[Shell()])


async def main() -> None:
    """Runs the agent, in a sandbox that begins with one file."""
    sandbox = SandboxRunConfig(
        client=SandboxctlClient(),
        options=SandboxctlClientOptions(image=image),
        manifest=Manifest(entries={"rows.txt": File(content=b"40\n2\n")}),
    )
    config = RunConfig(sandbox=sandbox, tracing_disabled=True)
    result = await Runner.run(agent, "What is the sum?", run_config=config)
    output = next(str(item.output) for item in result.new_items if item.type == "tool_call_output_item")
    print(output.partition("Output:")[2].strip())
    print(result.final_output)


asyncio.run(main())
