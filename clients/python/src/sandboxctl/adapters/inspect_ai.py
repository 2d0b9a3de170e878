"""Inspect: a sandbox environment for evaluations.

What Inspect (0.3.285) asks of a `SandboxEnvironment`, and what this one does:

- `sample_init` and `sample_cleanup`: one sandbox for each sample, `default`, with an io dir that ends with it.
- `exec`: an `ExecResult` for every program that ran, and for one that does not exist (127). `TimeoutError` after the
  time limit, when the program and all that it started are dead; it is not tried again, `timeout_retry` or not,
  because it was the program that took too long. `PermissionError` for what cannot be executed,
  `OutputLimitExceededError` above Inspect's limit. `user` is refused: a sandbox has one user, and no root to become.
- `read_file`, `write_file`: paths are relative to `/io`, or absolute, also outside of it where a command may read
  or write. The errors are those of Python: `FileNotFoundError`, `IsADirectoryError`, `PermissionError`.
- The tools that Inspect injects into `/var/tmp` (`bash_session`, `text_editor`, `exec_remote`) do not work: the
  root of a sandbox is read-only. `bash()` and `python()` do.

The package registers it as `sandboxctl`: `sandbox=SandboxEnvironmentSpec("sandboxctl", SandboxctlConfig(image=...))`,
or `sandbox=("sandboxctl", "sandbox.json")` with the same as JSON in a file. No token is in the configuration, which
Inspect logs: the client takes it from its environment. Inspect must run on asyncio, which is its default.
"""

from __future__ import annotations

import asyncio
import posixpath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel, ConfigDict

from sandboxctl import AsyncSandbox, SandboxError

from ._async_guest import AsyncGuest
from ._guest import IO_DIR, os_error

if TYPE_CHECKING:
    from ._guest import Ended

__all__ = ["SandboxctlConfig", "SandboxctlEnvironment"]

# A program's input above this comes from a file: a request has to fit into memory at both ends.
_STDIN = 1 << 20


class SandboxctlConfig(BaseModel, frozen=True):
    """What the sandbox of a sample is like: arguments of `AsyncSandbox.create`, without the secret ones."""

    model_config = ConfigDict(extra="forbid")

    image: str
    """The image that commands run in."""
    limits: dict[str, int | float] | None = None
    """The limits that differ from the defaults."""
    network: list[str] | None = None
    """The hosts that commands may reach; none by default."""
    server: str | None = None
    """The URL of the server; by default that of `SANDBOXCTL_SERVER`, else this machine."""
    engine: str | None = None
    """The engine of this machine."""
    binary: str | None = None
    """The path of the binary on this machine."""

    def __hash__(self) -> int:
        return hash(self.model_dump_json())


@sandboxenv(name="sandboxctl")  # pyright: ignore[reportUntypedClassDecorator]
class SandboxctlEnvironment(SandboxEnvironment):
    """A sandbox, as Inspect sees it."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        super().__init__()
        self._sandbox = sandbox
        self._guest = AsyncGuest(sandbox)

    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """Creates the sandbox of a sample."""
        wanted = config
        if isinstance(wanted, str):
            wanted = SandboxctlConfig.model_validate_json(await asyncio.to_thread(Path(wanted).read_bytes))
        if not isinstance(wanted, SandboxctlConfig):
            raise ValueError("the sandbox needs a SandboxctlConfig, or the name of a file with one: it has an image")
        options: dict[str, Any] = wanted.model_dump(exclude_none=True)
        return {"default": cls(await AsyncSandbox.create(**options))}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Ends the sandboxes of a sample, and removes them."""
        for environment in environments.values():
            await environment.as_type(SandboxctlEnvironment)._sandbox.close()

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """Reads the configuration from a log or a task file."""
        return SandboxctlConfig(**config)

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Runs a program to its end."""
        if user is not None:
            raise SandboxUserUnsupportedError(f"a sandbox has one user, and none called {user!r}")
        content = input.encode() if isinstance(input, str) else input
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        directory = posixpath.join(IO_DIR, cwd) if cwd is not None else None
        try:
            async with self._guest.input(content, above=_STDIN) as (prefix, stdin):
                program, *args = [*prefix, *cmd]
                ended = await self._guest.run(
                    program, *args, cwd=directory, env=env, stdin=stdin, timeout=timeout, capacity=limit
                )
        except SandboxError as error:
            if error.kind == "invalid_request":
                raise ValueError(str(error)) from error
            raise SandboxUnavailableError(str(error)) from error
        return _result(ended, cmd, timeout)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Writes a file, with its directories."""
        try:
            await self._guest.write(file, contents.encode() if isinstance(contents, str) else contents)
        except SandboxError as error:
            raise os_error(error, file) from error

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Reads a file."""
        try:
            content = await self._guest.read(file, limit=SandboxEnvironmentLimits.MAX_READ_FILE_SIZE)
        except SandboxError as error:
            if error.kind == "too_large":
                raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None) from error
            raise os_error(error, file) from error
        return content.decode() if text else content


def _result(ended: Ended, cmd: list[str], timeout: int | None) -> ExecResult[str]:
    stdout, stderr = (output.decode("utf-8", "replace") for output in (ended.stdout, ended.stderr))
    match ended.kind:
        case "timeout":
            raise TimeoutError(f"{cmd[0]} did not end within its {timeout} s" if timeout else ended.reason)
        case "not_executable":
            raise PermissionError(f"{cmd[0]}: {ended.reason}")
        case _:
            pass
    if ended.truncated or ended.kind == "output_limit":
        raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, stdout or stderr)
    if ended.code is None:
        if ended.kind in {"not_found", "not_a_directory"}:
            # The working directory, of which Inspect has no error.
            return ExecResult(success=False, returncode=126, stdout=stdout, stderr=f"{stderr}{ended.reason}\n")
        raise SandboxUnavailableError(ended.reason)
    if ended.reason and ended.code == 127:
        stderr += f"{ended.reason}\n"
    return ExecResult(success=ended.code == 0, returncode=ended.code, stdout=stdout, stderr=stderr)
