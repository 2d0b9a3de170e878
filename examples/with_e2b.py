"""A program for E2B's SDK: `pip install e2b`."""

from e2b import Sandbox

with Sandbox.create(timeout=60) as sandbox:
    sandbox.files.write("totals.py", "print(sum([1, 2, 3]))")
    print(sandbox.commands.run("python3 totals.py").stdout, end="")
