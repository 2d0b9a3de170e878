"""smolagents: a `PythonExecutor` whose Python runs in a sandbox.

What smolagents (1.26) asks of an executor, and what this one does:

- `send_variables(dict)` and `send_tools(dict)` before each run; `executor(code)` for each step, which returns
  `CodeOutput(output, logs, is_final_answer)` or raises `AgentError`. All of this is `RemotePythonExecutor`'s, down to
  its safe serialization, except for running the code: `run_code_raise_errors`.
- **State is kept between steps**: names, imports, open files. They are of a context of the sandbox's code interpreter,
  which lives as long as the executor. A step that exceeds its time limit is interrupted, and the names stay.
- `cleanup()` at the end of the agent. It closes the sandbox that the executor made itself; one that it was given
  stays open.

Everything that code prints, its child processes too, is in `logs`, at most `max_print_outputs_length` characters: the
end is dropped. The value of a last expression is `output`, as text. Packages of `additional_imports` are installed
with pip into the io dir, which needs an image with pip and a sandbox that may reach an index.

The image needs the code interpreter: `templates/e2b-code-interpreter/build` makes one. A sandbox that is given needs
`ports=[49999]` and `processes="kept"`.
"""

# smolagents has no types for others.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from smolagents.default_tools import FinalAnswerTool
from smolagents.local_python_executor import CodeOutput
from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.remote_executors import RemotePythonExecutor
from smolagents.tools import Tool, get_tools_definition_code
from smolagents.utils import AgentError

from sandboxctl import CodeContext, Sandbox, SandboxError, Timeout

__all__ = ["SandboxctlExecutor"]

# The patch of the final answer uses these if they are there, for answers that are arrays or images. The source of the
# tool imports them whether they are or not.
_OPTIONAL = frozenset({"numpy", "PIL"})
_OPTIONAL_IMPORT = re.compile(r"^(import|from) (numpy|PIL)\b.*$", re.MULTILINE)

IMAGE = "sandboxctl-e2b-code-interpreter:latest"


class SandboxctlExecutor(RemotePythonExecutor):
    """Runs an agent's code in a sandbox: `CodeAgent(..., executor=SandboxctlExecutor())`.

    Without a `sandbox` it creates one from `options`, the arguments of `Sandbox.create`, and closes it in `cleanup`.
    `timeout` is the time limit of a step, in seconds.
    """

    def __init__(
        self,
        *,
        sandbox: Sandbox | None = None,
        image: str | None = None,
        options: Mapping[str, Any] | None = None,
        additional_imports: Sequence[str] = (),
        logger: AgentLogger | None = None,
        allow_pickle: bool = False,
        timeout: float = 60,
        max_print_outputs_length: int = 50_000,
    ) -> None:
        super().__init__(
            list(additional_imports), logger or AgentLogger(level=LogLevel.ERROR), allow_pickle=allow_pickle
        )
        if sandbox is not None and (image is not None or options):
            raise ValueError("a sandbox that exists has its image and its options already")
        self._owned = sandbox is None
        kept: dict[str, Any] = {"ports": [49999], "processes": "kept", **(options or {})}
        self._sandbox = sandbox or Sandbox.create(image=image or IMAGE, **kept)
        self._timeout = timeout
        self._limit = max_print_outputs_length
        self._context: CodeContext | None = None
        try:
            self.installed_packages = self.install_packages(list(additional_imports))
        except BaseException:
            self.cleanup()
            raise

    def run_code_raise_errors(self, code: str) -> CodeOutput:
        """Runs one step."""
        interpreter = self._sandbox.interpreter
        try:
            if self._context is None:
                self._context = interpreter.create_context()
            run = interpreter.run_code(code, context=self._context, timeout=self._timeout)
        except Timeout as error:
            raise AgentError(f"The step did not end within its {self._timeout:g} s.", self.logger) from error
        except SandboxError as error:
            raise AgentError(f"The step did not run: {error.message}", self.logger) from error
        logs, error = run.stdout + run.stderr, run.error
        if len(logs) > self._limit:
            logs = logs[: self._limit] + "\n... [the rest was dropped]\n"
        if error is None:
            return CodeOutput(output=run.text, logs=logs, is_final_answer=False)
        if error.name == self.FINAL_ANSWER_EXCEPTION:
            answer = self._deserialize_final_answer(error.value, self.allow_pickle)
            return CodeOutput(output=answer, logs=logs, is_final_answer=True)
        raise AgentError(
            f"{logs}\nExecuting code yielded an error:\n{error.name}\n{error.value}\n{error.traceback[-self._limit :]}",
            self.logger,
        )

    def send_tools(self, tools: dict[str, Tool]) -> None:
        """Defines the tools in the interpreter, with the packages that they import."""
        answer = tools.get("final_answer")
        if isinstance(answer, FinalAnswerTool):
            self._patch_final_answer_with_exception(answer)
        wanted: set[str] = set()
        for tool in tools.values():
            packages = set(tool.to_dict()["requirements"]) - {"smolagents", *self.installed_packages}
            wanted |= packages - _OPTIONAL if tool is answer else packages
        if wanted:
            names = sorted("pillow" if name == "PIL" else name for name in wanted)
            self.installed_packages += self.install_packages(names)
        code = get_tools_definition_code(tools)
        self.run_code_raise_errors(_OPTIONAL_IMPORT.sub(r"try:\n    \g<0>\nexcept ImportError:\n    pass", code))

    def install_packages(self, additional_imports: list[str]) -> list[str]:
        """Installs packages with pip into the io dir, for this sandbox."""
        if additional_imports:
            arguments = ["-m", "pip", "install", "--user", "--quiet", *additional_imports]
            # The interpreter looks for such packages from now on, too.
            self.run_code_raise_errors(
                "import site, subprocess, sys\n"
                f"subprocess.run([sys.executable, *{arguments!r}], check=True)\n"
                "site.addsitedir(site.getusersitepackages())\n"
                "del site, subprocess"
            )
        return additional_imports

    def cleanup(self) -> None:
        """Ends the context, and the sandbox if the executor created it."""
        context, self._context = self._context, None
        if self._owned:
            self._sandbox.close()
        elif context is not None:
            self._sandbox.interpreter.remove_context(context)
