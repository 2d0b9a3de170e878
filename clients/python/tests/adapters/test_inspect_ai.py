"""The Inspect environment against Inspect's own checks for sandboxes, and in an evaluation."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput
from inspect_ai.scorer import exact
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.util import SandboxEnvironment, SandboxEnvironmentSpec, SandboxUserUnsupportedError, sandbox
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from sandboxctl.adapters.inspect_ai import SandboxctlConfig, SandboxctlEnvironment

IMAGE = os.environ["CLIENTS_TEST_IMAGE"]
CONFIG = SandboxctlConfig(image=IMAGE, limits={"write_bytes": 1 << 30, "file_bytes": 64 << 20})

# What a sandbox refuses, and how.
REFUSED = {
    "test_exec_as_user": ("a sandbox has one user", SandboxUserUnsupportedError),
    "test_exec_large_command": ("a command has at most 512 KiB of words", ValueError),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def environments() -> AsyncIterator[dict[str, SandboxEnvironment]]:
    environments = await SandboxctlEnvironment.sample_init("checks", CONFIG, {})
    yield environments
    await SandboxctlEnvironment.sample_cleanup("checks", CONFIG, environments, False)


@pytest.fixture
def sandbox_env(request: pytest.FixtureRequest, environments: dict[str, SandboxEnvironment]) -> SandboxEnvironment:
    if request.node.originalname in REFUSED:
        reason, error = REFUSED[request.node.originalname]
        request.node.add_marker(pytest.mark.xfail(reason=reason, raises=error, strict=True))
    return environments["default"]


async def test_missing_program_is_a_result(sandbox_env: SandboxEnvironment) -> None:
    result = await sandbox_env.exec(["no-such-program"])
    assert (result.success, result.returncode) == (False, 127)
    assert "no-such-program" in result.stderr


async def test_missing_directory_is_a_result(sandbox_env: SandboxEnvironment) -> None:
    result = await sandbox_env.exec(["true"], cwd="no/such/directory")
    assert not result.success
    assert "no/such/directory" in result.stderr


async def test_link_out_of_the_io_dir_leads_to_the_image_alone(sandbox_env: SandboxEnvironment) -> None:
    await sandbox_env.exec(["ln", "-s", "/etc/passwd", "link"])
    assert "root:" in await sandbox_env.read_file("link")


@solver
def counts() -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        result = await sandbox().exec(["sh", "-c", "cat number; pwd"], timeout=10)
        state.output = ModelOutput.from_content("none", result.stdout)
        return state

    return solve


@pytest.mark.parametrize("as_file", [False, True])
def test_each_sample_of_an_evaluation_has_a_sandbox_of_its_own(tmp_path: Path, as_file: bool) -> None:
    file = tmp_path / "sandbox.json"
    file.write_text(CONFIG.model_dump_json())
    task = Task(
        dataset=[Sample(input="?", target=f"{number}\n/io\n", files={"number": f"{number}\n"}) for number in (1, 2)],
        solver=counts(),
        scorer=exact(),
        sandbox=("sandboxctl", str(file)) if as_file else SandboxEnvironmentSpec("sandboxctl", CONFIG),
    )
    [log] = eval(task, model="mockllm/model", display="none", log_dir=str(tmp_path))
    assert log.status == "success"
    assert log.results is not None
    assert log.results.scores[0].metrics["mean"].value == 1
