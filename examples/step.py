"""A workflow step: starts `sandboxctl tools --stdio` once, and makes one call after another."""

import json
import subprocess

tools = subprocess.Popen(
    ["sandboxctl", "tools", "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
)
calls = 0


def call(tool, **args):
    """Calls a tool on the sandbox `step`, and returns its data."""
    global calls
    calls += 1
    line = {"id": calls, "tool": tool, "args": {"containerId": "step", **args}}
    tools.stdin.write(json.dumps(line).encode() + b"\n")
    tools.stdin.flush()
    # With one call in progress the next line is its response; with several, match them by `id`.
    answer = json.loads(tools.stdout.readline())
    if "error" in answer:
        raise RuntimeError(f"{tool}: {answer['metadata']['kind']}: {answer['error']}")
    return answer["data"]


try:
    call("sandbox_init", projectOutPath="out")
    call("sandbox_write_file", path="prices.csv", content="apple,2\npear,3\n")
    script = """
        local total = 0
        for line in io.lines("prices.csv") do total += tonumber(line:match(",(%d+)")) end
        return total
    """
    print("total:", call("sandbox_execute_script", script=script)["result"])
finally:
    # EOF on its stdin removes every sandbox. The files stay in `out`.
    tools.stdin.close()
    tools.wait()
