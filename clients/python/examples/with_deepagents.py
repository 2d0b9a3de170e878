"""deepagents: an AI agent's files and commands in a sandbox. The calls are made by hand, as its tools make them."""

import sys

from sandboxctl import Sandbox
from sandboxctl.adapters.deepagents import SandboxctlBackend

image = sys.argv[1] if len(sys.argv) > 1 else "python:3.13-slim"
with Sandbox.create(image=image) as sandbox:
    backend = SandboxctlBackend(sandbox, timeout=30)
    # With a model: agent = create_deep_agent(model=..., backend=backend)
    backend.write("/io/totals.py", "print(sum([1, 2, 3]))\n")
    backend.edit("/io/totals.py", "[1, 2, 3]", "[40, 2]")
    print(backend.execute("python3 totals.py").output, end="")
    print(backend.glob("*.py").matches)
    print(backend.grep("sum(").matches)
