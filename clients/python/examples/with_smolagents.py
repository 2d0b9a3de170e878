"""smolagents: the Python of a `CodeAgent` in a sandbox. Here two steps are given by hand, as a model gives them."""

import sys

from sandboxctl.adapters.smolagents import SandboxctlExecutor

executor = SandboxctlExecutor(image=sys.argv[1] if len(sys.argv) > 1 else None, timeout=30)
# With a model: CodeAgent(tools=[], model=..., executor=executor)
try:
    executor("rows = [1, 2, 3]\nprint('counted', len(rows))")
    step = executor("print('the names are kept')\nsum(rows)")
    print(step.logs, end="")
    print(step.output)
finally:
    executor.cleanup()
