"""smolagents: a `PythonExecutor` whose Python runs in a sandbox.

What smolagents (1.26) asks of an executor, and what this one does:

- `send_variables(dict)` and `send_tools(dict)` before each run; `executor(code)` for each step, which returns
  `CodeOutput(output, logs, is_final_answer)` or raises `AgentError`. All of this is `RemotePythonExecutor`'s, down to
  its safe serialization, except for running the code: `run_code_raise_errors`.
- **State is kept between steps**: names, imports, open files. So one interpreter lives as long as the executor: it is
  a command of the sandbox that reads one request after another from a FIFO in `/tmp`. Each step is a second, short
  command that writes the request, waits for the reply and prints it. A step has a time limit of its own; a step
  that exceeds it ends the interpreter, and the next step begins with a new one, which the error says.
- `cleanup()` at the end of the agent. It closes the sandbox that the executor made itself; one that it was given
  stays open.

Everything that code prints, its child processes too, is in `logs`, at most `max_print_outputs_length` characters: the
end is dropped. The value of a last expression is `output`, as text. Packages of `additional_imports` are installed
with pip into the io dir, which needs an image with pip and a sandbox that may reach an index.

The image needs `python3`, 3.8 or newer.
"""

# smolagents has no types for others.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from smolagents.default_tools import FinalAnswerTool
from smolagents.local_python_executor import CodeOutput
from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.remote_executors import RemotePythonExecutor
from smolagents.tools import Tool, get_tools_definition_code
from smolagents.utils import AgentError

from sandboxctl import Sandbox

from ._guest import Ended
from ._sync_guest import Guest

if TYPE_CHECKING:
    from sandboxctl import CommandHandle

__all__ = ["SandboxctlExecutor"]

# The interpreter, in the sandbox. Both FIFOs are held open for reading and writing, so that a request never
# sees the end of the other side, and opening them tells whether this process is alive.
_INTERPRETER = r"""
import ast, io, json, os, sys, tempfile, traceback
home, limit = sys.argv[1], int(sys.argv[2])
os.makedirs(home, mode=0o700)
for name in ("in", "out"):
    os.mkfifo(home + "/" + name, 0o600)
requests = os.fdopen(os.open(home + "/in", os.O_RDWR), "rb", buffering=0)
replies = os.open(home + "/out", os.O_RDWR)
scope = {"__name__": "__main__", "__builtins__": __builtins__}
sys.argv = [""]
os.mkdir(home + "/ready")

def run(source):
    tree = ast.parse(source, "<step>")
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)
    exec(compile(tree, "<step>", "exec"), scope)
    if last is None:
        return None
    value = eval(compile(last, "<step>", "eval"), scope)
    return None if value is None else repr(value)

def step(source):
    captured = tempfile.TemporaryFile()
    kept = [os.dup(1), os.dup(2)]
    reply = {"output": None, "error": None}
    sys.stdout.flush(); sys.stderr.flush()
    for fd in (1, 2):
        os.dup2(captured.fileno(), fd)
    try:
        reply["output"] = run(source)
    except BaseException as error:
        reply["error"] = {"name": type(error).__name__, "value": str(getattr(error, "value", error)),
                          "traceback": "".join(traceback.format_exception(type(error), error, error.__traceback__))}
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                pass
        for fd, copy in zip((1, 2), kept):
            os.dup2(copy, fd)
            os.close(copy)
    captured.seek(0)
    logs = captured.read(4 * limit + 4).decode("utf-8", "replace")
    reply["logs"] = logs if len(logs) <= limit else logs[:limit] + "\n... [the rest was dropped]\n"
    if reply["error"]:
        reply["error"]["traceback"] = reply["error"]["traceback"][-limit:]
    return reply

pending = b""
while True:
    while b"\n" not in pending:
        pending += requests.read(1 << 16)
    line, pending = pending.split(b"\n", 1)
    reply = (json.dumps(step(json.loads(line)["code"])) + "\n").encode()
    while reply:
        reply = reply[os.write(replies, reply):]
"""

# The patch of the final answer uses these if they are there, for answers that are arrays or images. The source of the
# tool imports them whether they are or not.
_OPTIONAL = frozenset({"numpy", "PIL"})
_OPTIONAL_IMPORT = re.compile(r"^(import|from) (numpy|PIL)\b.*$", re.MULTILINE)

# A step: hands its stdin to the interpreter, and prints the reply. Exit code 3: there is no interpreter.
_STEP = r"""
import os, sys, time
home, patience = sys.argv[1], time.monotonic() + 20
while not os.path.isdir(home + "/ready"):
    if time.monotonic() > patience:
        sys.exit(3)
    time.sleep(0.005)
try:
    requests = os.open(home + "/in", os.O_WRONLY | os.O_NONBLOCK)
except OSError:
    sys.exit(3)
os.set_blocking(requests, True)
replies = os.open(home + "/out", os.O_RDONLY)
line = sys.stdin.buffer.read() + b"\n"
while line:
    line = line[os.write(requests, line):]
reply = b""
while not reply.endswith(b"\n"):
    part = os.read(replies, 1 << 16)
    if not part:
        sys.exit(3)
    reply += part
sys.stdout.buffer.write(reply)
"""


class SandboxctlExecutor(RemotePythonExecutor):
    """Runs an agent's code in a sandbox: `CodeAgent(..., executor=SandboxctlExecutor(image="python:3.13-slim"))`.

    Without a `sandbox` it creates one from `options`, the arguments of `Sandbox.create`, and closes it in `cleanup`.
    `timeout` is the time limit of a step, and `lifetime` that of the interpreter, both in seconds. A server has a
    ceiling for the latter: 600 s, unless it is configured otherwise.
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
        lifetime: float = 600,
        max_print_outputs_length: int = 50_000,
    ) -> None:
        super().__init__(
            list(additional_imports), logger or AgentLogger(level=LogLevel.ERROR), allow_pickle=allow_pickle
        )
        if sandbox is not None and (image is not None or options):
            raise ValueError("a sandbox that exists has its image and its options already")
        self._owned = sandbox is None
        self._sandbox = sandbox or Sandbox.create(image=image, **(options or {}))
        self._guest = Guest(self._sandbox)
        self._timeout = timeout
        self._lifetime = lifetime
        self._limit = max_print_outputs_length
        self._home = ""
        self._interpreter: CommandHandle | None = None
        try:
            self.installed_packages = self.install_packages(list(additional_imports))
        except BaseException:
            self.cleanup()
            raise

    def run_code_raise_errors(self, code: str) -> CodeOutput:
        """Runs one step."""
        home = self._start_interpreter()
        ended = self._guest.run(
            "python3", "-c", _STEP, home, stdin=json.dumps({"code": code}).encode(), timeout=self._timeout
        )
        if ended.code != 0 or ended.truncated:
            self._end_interpreter()
            raise AgentError(self._failure(ended), self.logger)
        reply = json.loads(ended.stdout)
        logs, error = str(reply["logs"]), reply["error"]
        if error is None:
            return CodeOutput(output=reply["output"], logs=logs, is_final_answer=False)
        if error["name"] == self.FINAL_ANSWER_EXCEPTION:
            answer = self._deserialize_final_answer(error["value"], self.allow_pickle)
            return CodeOutput(output=answer, logs=logs, is_final_answer=True)
        raise AgentError(
            f"{logs}\nExecuting code yielded an error:\n{error['name']}\n{error['value']}\n{error['traceback']}",
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
        """Ends the interpreter, and the sandbox if the executor created it."""
        if self._owned:
            self._sandbox.close()
        else:
            self._end_interpreter()

    def _start_interpreter(self) -> str:
        """The directory of the interpreter, which is started if none runs."""
        if self._interpreter is None:
            self._home = f"/tmp/.sandboxctl-python-{secrets.token_hex(8)}"
            self._interpreter = self._sandbox.commands.start(
                "python3", ["-u", "-c", _INTERPRETER, self._home, str(self._limit)], timeout=self._lifetime
            )
        return self._home

    def _end_interpreter(self) -> None:
        if self._interpreter is not None:
            self._interpreter.kill()
            self._interpreter = None

    def _failure(self, ended: Ended) -> str:
        lost = "All names that were defined before are gone: the next step begins with a new interpreter."
        if ended.truncated:
            return f"The result of the step is longer than a million bytes. {lost}"
        if ended.kind == "timeout":
            return f"The step did not end within its {self._timeout:g} s. {lost}"
        detail = ended.reason or ended.stderr.decode("utf-8", "replace").strip()
        return f"The Python interpreter of the sandbox ended{': ' + detail if detail else '.'} {lost}"
