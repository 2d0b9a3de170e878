"""The smolagents executor, with a real `CodeAgent` and a model with scripted replies."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from smolagents import CodeAgent, Model, Tool
from smolagents.models import ChatMessage, MessageRole
from smolagents.utils import AgentError

from sandboxctl import Sandbox
from sandboxctl.adapters.smolagents import SandboxctlExecutor

IMAGE = os.environ["CLIENTS_TEST_INTERPRETER"]


class Scripted(Model):
    """A model that gives these answers."""

    def __init__(self, *answers: str) -> None:
        super().__init__(model_id="scripted")
        self.answers = list(answers)

    def generate(self, messages, **kwargs) -> ChatMessage:
        return ChatMessage(role=MessageRole.ASSISTANT, content=self.answers.pop(0))


class Shout(Tool):
    """A tool whose source is sent to the sandbox."""

    name = "shout"
    description = "Says it louder."
    inputs = {"text": {"type": "string", "description": "What to say."}}
    output_type = "string"

    def forward(self, text: str) -> str:
        return text.upper()


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox.create(image=IMAGE, ports=[49999], processes="kept") as sandbox:
        yield sandbox


@pytest.fixture
def executor(sandbox: Sandbox) -> Iterator[SandboxctlExecutor]:
    executor = SandboxctlExecutor(sandbox=sandbox, timeout=10)
    yield executor
    executor.cleanup()


def code(text: str) -> str:
    return f"Thought: so be it.\n<code>\n{text}\n</code>"


def test_agent_keeps_names_between_steps_and_answers() -> None:
    model = Scripted(
        code("import os\nrows = [1, 2, 3]\nprint(os.getcwd(), shout('rows'))"),
        code("final_answer(sum(rows) + extra)"),
    )
    with CodeAgent(tools=[Shout()], model=model, executor=SandboxctlExecutor(image=IMAGE)) as agent:
        answer = agent.run("Add the rows.", additional_args={"extra": 36})
        assert answer == 42
        assert "/io ROWS" in str(agent.memory.steps[1].observations)


def test_value_of_the_last_expression_and_all_output_are_returned(executor: SandboxctlExecutor) -> None:
    output = executor(
        "import subprocess, sys\nprint('one')\nsubprocess.run(['echo', 'two'])\nprint('three', file=sys.stderr)\n6 * 7"
    )
    assert output.output == "42"
    assert sorted(output.logs.split()) == ["one", "three", "two"]
    assert not output.is_final_answer


def test_error_of_a_step_has_its_output_and_keeps_the_names(executor: SandboxctlExecutor) -> None:
    executor("kept = 7")
    with pytest.raises(AgentError, match="ZeroDivisionError") as failure:
        executor("print('before')\n1 / 0")
    assert "before" in str(failure.value)
    assert executor("kept").output == "7"


def test_step_that_takes_too_long_is_interrupted_and_the_names_stay(sandbox: Sandbox) -> None:
    executor = SandboxctlExecutor(sandbox=sandbox, timeout=10)
    executor("kept = 7")
    with pytest.raises(AgentError, match="within its 10 s"):
        executor("while True: pass")
    assert executor("kept").output == "7"
    executor.cleanup()


def test_exit_of_the_interpreter_is_an_error_of_its_step(executor: SandboxctlExecutor) -> None:
    with pytest.raises(AgentError, match="the kernel has ended"):
        executor("import os\nos._exit(3)")
    assert executor("1 + 1").output == "2"
    with pytest.raises(AgentError, match="SystemExit"):
        executor("import sys\nsys.exit(1)")


def test_output_is_bounded(sandbox: Sandbox) -> None:
    executor = SandboxctlExecutor(sandbox=sandbox, max_print_outputs_length=1000)
    logs = executor("print('x' * 100_000)").logs
    assert len(logs) < 1100
    assert "dropped" in logs
    executor.cleanup()


def test_variables_keep_their_types(executor: SandboxctlExecutor) -> None:
    executor.send_variables({"a": (1, 2), "b": {3}, "c": b"\x00"})
    assert executor("(a, b, c)").output == "((1, 2), {3}, b'\\x00')"


def test_packages_without_an_index_are_an_error(executor: SandboxctlExecutor) -> None:
    with pytest.raises(AgentError):
        executor.install_packages(["no-such-package"])
