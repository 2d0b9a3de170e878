"""A sandbox and its commands, for asyncio."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .. import results
from .._core.names import named, worded
from .._core.requests import Limits, Path, Spec, Text, command_request, root_of, script_request, spec_of
from ..errors import SandboxError, error_of
from ..results import CommandResult, Json, Listener, ScriptResult, checked
from .files import AsyncFiles
from .transport import AsyncExecution, AsyncTransport, connect

if TYPE_CHECKING:
    from .._core import wire

__all__ = ["AsyncCommandHandle", "AsyncCommands", "AsyncSandbox", "async_exec", "async_run_script"]


@worded
class AsyncCommandHandle:
    """A command that was started."""

    def __init__(self, execution: AsyncExecution, listener: Listener | None) -> None:
        self._execution = execution
        self._listener = listener

    async def wait(self, *, check: bool = False) -> CommandResult:
        """Waits for its end, and hands its output to the listeners meanwhile. Whatever ends the wait leaves it running.

        With `check` a status other than `ok` is raised.
        """
        document = await _document(self._execution, self._listener)
        return checked(results.command_result(document, self._listener), check)

    async def kill(self) -> None:
        """Ends it, and all that it started: `wait` then has the status `cancelled`. One that has ended is as it was."""
        await self._execution.kill()


@worded
class AsyncCommands:
    """The commands of a sandbox, which needs an image, or on the embedded engine a `rootfs` or an `image_archive`."""

    def __init__(self, opened: Callable[[], AsyncTransport]) -> None:
        self._opened = opened

    async def start(
        self,
        command: Text,
        args: Sequence[Text] | None = None,
        *,
        env: Mapping[str, Text] | None = None,
        cwd: Path | None = None,
        stdin: Text | None = None,
        secrets: Mapping[str, Text] | None = None,
        limits: Limits | None = None,
        timeout: float | None = None,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
        on_stdout_bytes: Callable[[bytes], object] | None = None,
        on_stderr_bytes: Callable[[bytes], object] | None = None,
    ) -> AsyncCommandHandle:
        """Starts a program with arguments, or without `args` a line for the shell of the image.

        `timeout` is in seconds. Secrets are environment variables, and are replaced in its output. The listeners get
        output as it comes, from `wait`: as text, where a character is always whole and what is not UTF-8 is U+FFFD, or
        as bytes. They get the first 64 MiB, and of a server's sandboxes the first 4: `missed` of the result says if
        there was more.
        """
        request = command_request(
            command, args, env=env, cwd=cwd, stdin=stdin, secrets=secrets, limits=limits, timeout=timeout
        )
        listener = results.listener(
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            on_stdout_bytes=on_stdout_bytes,
            on_stderr_bytes=on_stderr_bytes,
        )
        execution = await self._opened().start(request, wait=False)
        return AsyncCommandHandle(execution, listener)

    async def run(
        self,
        command: Text,
        args: Sequence[Text] | None = None,
        *,
        env: Mapping[str, Text] | None = None,
        cwd: Path | None = None,
        stdin: Text | None = None,
        secrets: Mapping[str, Text] | None = None,
        limits: Limits | None = None,
        timeout: float | None = None,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
        on_stdout_bytes: Callable[[bytes], object] | None = None,
        on_stderr_bytes: Callable[[bytes], object] | None = None,
        check: bool = False,
    ) -> CommandResult:
        """Runs a command to its end; see `start`. Whatever ends the wait ends the command."""
        request = command_request(
            command, args, env=env, cwd=cwd, stdin=stdin, secrets=secrets, limits=limits, timeout=timeout
        )
        listener = results.listener(
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            on_stdout_bytes=on_stdout_bytes,
            on_stderr_bytes=on_stderr_bytes,
        )
        execution = await self._opened().start(request, wait=listener is None)
        return checked(results.command_result(await _finish(execution, listener), listener), check)


@worded
class AsyncSandbox:
    """A sandbox. It ends with `close`, or with its block.

    Its calls may be made by any number of tasks at once.
    """

    id: str
    """Its id."""
    files: AsyncFiles
    """Its files."""
    commands: AsyncCommands
    """Its commands."""

    def __init__(self, transport: AsyncTransport, identifier: str) -> None:
        self.id = identifier
        self.files = AsyncFiles(self._open)
        self.commands = AsyncCommands(self._open)
        self._transport = transport
        self._closed = False

    @classmethod
    async def create(
        cls,
        *,
        image: str | None = None,
        rootfs: str | os.PathLike[str] | None = None,
        image_archive: str | os.PathLike[str] | None = None,
        io_dir: str | os.PathLike[str] | None = None,
        engine: str | None = None,
        limits: Limits | None = None,
        network: Sequence[str] | None = None,
        server: str | None = None,
        token: str | None = None,
        binary: str | os.PathLike[str] | None = None,
        name: str | None = None,
    ) -> AsyncSandbox:
        """Creates a sandbox, or finds the one of this name if it is the same.

        It is one of this machine, kept by a process of the `sandboxctl` binary (`binary`, else `SANDBOXCTL_BINARY`,
        else the one that came with this package, else that of `PATH`) which all sandboxes of the same `engine` share
        and which ends with this program; or of a server: `server` is its URL or `unix:PATH`, by default
        `SANDBOXCTL_SERVER`, and `token` is by default `SANDBOXCTL_TOKEN`.

        Its commands run in `image`. The embedded engine of this machine has no images: there they run in `rootfs`, a
        directory, or `image_archive`, a file as `docker save` writes it; sandboxes with others have another process.
        Without any of the three it has scripts and files alone. `io_dir` is a directory of this machine that holds
        its files and outlives it. `network` is the hosts that its commands may reach, such as `example.org:443`.

        Raises `SandboxError`: of kind `config` if the binary is missing or of another version, `engine` if it cannot
        start, `ServerBusy` if the server is not there or full.
        """
        transport = connect(server, token, binary, engine, root_of(image, rootfs, image_archive))
        try:
            return cls(transport, await transport.create(spec_of(image, io_dir, limits, network, name)))
        except BaseException:
            await transport.close()
            raise

    async def run_script(
        self,
        script: Text,
        args: Mapping[str, Any] | None = None,
        *,
        secrets: Mapping[str, Text] | None = None,
        limits: Limits | None = None,
        timeout: float | None = None,
        on_log: Callable[[str, str], object] | None = None,
        check: bool = False,
    ) -> ScriptResult:
        """Runs a Luau script. Whatever ends the wait ends the script.

        `timeout` is in seconds. `on_log` gets the text and the level of each entry of its log as it comes.
        """
        request = script_request(script, args, secrets=secrets, limits=limits, timeout=timeout)
        listener = results.listener(on_log=on_log)
        execution = await self._open().start(request, wait=listener is None)
        return checked(results.script_result(await _finish(execution, listener), listener), check)

    async def close(self) -> None:
        """Ends the sandbox, and what runs in it, and removes it. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            await self._transport.destroy()
        finally:
            await self._transport.close()

    async def __aenter__(self) -> AsyncSandbox:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except SandboxError:
            # What ended the block is the error.
            if error is None:
                raise

    def _open(self) -> AsyncTransport:
        if self._closed:
            raise error_of("gone", f"the sandbox {self.id} is closed", "create another one")
        return self._transport


@named
async def async_run_script(
    script: Text,
    args: Mapping[str, Any] | None = None,
    *,
    image: str | None = None,
    rootfs: str | os.PathLike[str] | None = None,
    image_archive: str | os.PathLike[str] | None = None,
    io_dir: str | os.PathLike[str] | None = None,
    engine: str | None = None,
    limits: Limits | None = None,
    network: Sequence[str] | None = None,
    server: str | None = None,
    token: str | None = None,
    binary: str | os.PathLike[str] | None = None,
    secrets: Mapping[str, Text] | None = None,
    timeout: float | None = None,
    on_log: Callable[[str, str], object] | None = None,
    check: bool = False,
) -> ScriptResult:
    """Runs a Luau script in a sandbox of its own; see `AsyncSandbox.create` and `AsyncSandbox.run_script`."""
    request = script_request(script, args, secrets=secrets, timeout=timeout)
    spec = spec_of(image, io_dir, limits, network)
    listener = results.listener(on_log=on_log)
    transport = connect(server, token, binary, engine, root_of(image, rootfs, image_archive))
    document = await _once(transport, spec, request, listener)
    return checked(results.script_result(document, listener), check)


@named
async def async_exec(
    command: Text,
    args: Sequence[Text] | None = None,
    *,
    image: str | None = None,
    rootfs: str | os.PathLike[str] | None = None,
    image_archive: str | os.PathLike[str] | None = None,
    io_dir: str | os.PathLike[str] | None = None,
    engine: str | None = None,
    limits: Limits | None = None,
    network: Sequence[str] | None = None,
    server: str | None = None,
    token: str | None = None,
    binary: str | os.PathLike[str] | None = None,
    env: Mapping[str, Text] | None = None,
    cwd: Path | None = None,
    stdin: Text | None = None,
    secrets: Mapping[str, Text] | None = None,
    timeout: float | None = None,
    on_stdout: Callable[[str], object] | None = None,
    on_stderr: Callable[[str], object] | None = None,
    on_stdout_bytes: Callable[[bytes], object] | None = None,
    on_stderr_bytes: Callable[[bytes], object] | None = None,
    check: bool = False,
) -> CommandResult:
    """Runs a command in a sandbox of its own; see `AsyncSandbox.create` and `AsyncCommands.run`."""
    request = command_request(command, args, env=env, cwd=cwd, stdin=stdin, secrets=secrets, timeout=timeout)
    spec = spec_of(image, io_dir, limits, network)
    listener = results.listener(
        on_stdout=on_stdout,
        on_stderr=on_stderr,
        on_stdout_bytes=on_stdout_bytes,
        on_stderr_bytes=on_stderr_bytes,
    )
    transport = connect(server, token, binary, engine, root_of(image, rootfs, image_archive))
    document = await _once(transport, spec, request, listener)
    return checked(results.command_result(document, listener), check)


async def _once(
    transport: AsyncTransport, spec: Spec, request: wire.ExecutionRequest, listener: Listener | None
) -> Json:
    try:
        async with transport.once(spec, request, wait=listener is None) as execution:
            return await _finish(execution, listener)
    finally:
        await transport.close()


async def _document(execution: AsyncExecution, listener: Listener | None) -> Json:
    if listener is not None:
        async with aclosing(execution.events()) as events:
            async for event in events:
                listener(event)
        listener.end()
    return await execution.document()


async def _finish(execution: AsyncExecution, listener: Listener | None) -> Json:
    """The document of an execution, which whatever ends the wait ends."""
    try:
        return await _document(execution, listener)
    except BaseException:
        # What ended the wait is the error, whatever becomes of this.
        with suppress(Exception):
            await execution.kill()
        raise
