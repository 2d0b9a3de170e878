"""Inspect: an evaluation whose samples have a sandbox each. A solver without a model looks at it."""

import sys
import tempfile

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput
from inspect_ai.scorer import exact
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.util import SandboxEnvironmentSpec, sandbox

from sandboxctl.adapters.inspect_ai import SandboxctlConfig

image = sys.argv[1] if len(sys.argv) > 1 else "python:3.13-slim"


@solver
def adds() -> Solver:
    """Adds the rows of the sample's file."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        result = await sandbox().exec(["python3", "-c", "print(sum(map(int, open('rows.txt'))))"], timeout=30)
        state.output = ModelOutput.from_content("none", result.stdout.strip())
        return state

    return solve


task = Task(
    dataset=[Sample(input="What is the sum?", target="42", files={"rows.txt": "40\n2\n"})],
    solver=adds(),
    scorer=exact(),
    sandbox=SandboxEnvironmentSpec("sandboxctl", SandboxctlConfig(image=image)),
)
with tempfile.TemporaryDirectory() as logs:
    [log] = eval(task, model="mockllm/model", display="none", log_dir=logs)
assert log.results is not None, log.status
print(log.status, log.results.scores[0].metrics["mean"].value)
