# Made from sandbox.py by scripts/unasync.
"""A sandbox and its commands, for synchronous programs."""

from __future__ import annotations

import os
from collections.abc import Generator, Callable, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload
from urllib.parse import quote, urlsplit

from .. import results
from .._core.answers import Answer
from .._core.names import named, worded
from .._core.requests import (
    FileScope,
    IdleAction,
    Limits,
    OpenPorts,
    Path,
    Processes,
    Spec,
    Text,
    command_request,
    filter_of,
    process_request,
    root_of,
    script_request,
    spec_of,
    ttl_of,
)
from ..errors import NotFound, SandboxError, SandboxGone, error_of
from ..results import CommandResult, Json, Listener, ScriptResult, checked
from ..views import ProcessInfo, SandboxInfo, process_info, sandbox_info
from .files import Files
from .interpreter import Interpreter
from .ports import Ports
from .process import Process, Pty, SignalName
from .transport import Execution, Transport, connect, connect_kept

if TYPE_CHECKING:
    from .._core import wire

__all__ = ["CommandHandle", "Commands", "Sandbox", "exec", "run_script"]


@worded
class CommandHandle:
    """A command that was started."""

    def __init__(self, execution: Execution, listener: Listener | None) -> None:
        self._execution = execution
        self._listener = listener

    def wait(self, *, check: bool = False) -> CommandResult:
        """Waits for its end, and hands its output to the listeners meanwhile. Whatever ends the wait leaves it running.

        With `check` a status other than `ok` is raised.
        """
        document = _document(self._execution, self._listener)
        return checked(results.command_result(document, self._listener), check)

    def kill(self) -> None:
        """Ends it, and all that it started: `wait` then has the status `cancelled`. One that has ended is as it was."""
        self._execution.kill()


@worded
class Commands:
    """The commands of a sandbox, which needs an image, or on the embedded engine a `rootfs` or an `image_archive`."""

    def __init__(self, opened: Callable[[], Transport]) -> None:
        self._opened = opened

    def start(
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
        stop_signal: SignalName | str | int | None = None,
        stop_timeout: float | None = None,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
        on_stdout_bytes: Callable[[bytes], object] | None = None,
        on_stderr_bytes: Callable[[bytes], object] | None = None,
    ) -> CommandHandle:
        """Starts a program with arguments, or without `args` a line for the shell of the image.

        `timeout` is in seconds. A command that is to end gets `stop_signal`, by default `"TERM"`, and what is left of
        it after `stop_timeout` seconds is killed; by default after 2, or what the sandbox's limits say. Secrets are
        environment variables, and are replaced in its output. The listeners get output as it comes, from `wait`: as
        text, where a character is always whole and what is not UTF-8 is U+FFFD, or as bytes. They get the first 64 MiB,
        and of a server's sandboxes the first 4: `missed` of the result says if there was more.
        """
        request = command_request(
            command,
            args,
            env=env,
            cwd=cwd,
            stdin=stdin,
            secrets=secrets,
            limits=limits,
            timeout=timeout,
            stop_signal=stop_signal,
            stop_timeout=stop_timeout,
        )
        listener = results.listener(
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            on_stdout_bytes=on_stdout_bytes,
            on_stderr_bytes=on_stderr_bytes,
        )
        execution = self._opened().start(request, wait=False)
        return CommandHandle(execution, listener)

    @overload
    def run(
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
        stop_signal: SignalName | str | int | None = None,
        stop_timeout: float | None = None,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
        on_stdout_bytes: Callable[[bytes], object] | None = None,
        on_stderr_bytes: Callable[[bytes], object] | None = None,
        check: bool = False,
        background: Literal[False] = False,
    ) -> CommandResult: ...

    @overload
    def run(
        self,
        command: Text,
        args: Sequence[Text] | None = None,
        *,
        env: Mapping[str, Text] | None = None,
        cwd: Path | None = None,
        stdin: Text | bool | None = None,
        secrets: Mapping[str, Text] | None = None,
        timeout: float | None = None,
        stop_signal: SignalName | str | int | None = None,
        stop_timeout: float | None = None,
        background: Literal[True],
        tag: str | None = None,
        merge: bool = False,
    ) -> Process: ...

    def run(
        self,
        command: Text,
        args: Sequence[Text] | None = None,
        *,
        env: Mapping[str, Text] | None = None,
        cwd: Path | None = None,
        stdin: Text | bool | None = None,
        secrets: Mapping[str, Text] | None = None,
        limits: Limits | None = None,
        timeout: float | None = None,
        stop_signal: SignalName | str | int | None = None,
        stop_timeout: float | None = None,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
        on_stdout_bytes: Callable[[bytes], object] | None = None,
        on_stderr_bytes: Callable[[bytes], object] | None = None,
        check: bool = False,
        background: bool = False,
        tag: str | None = None,
        merge: bool = False,
    ) -> CommandResult | Process:
        """Runs a command to its end; see `start`. Whatever ends the wait ends the command.

        With `background` it is a process that lives on, in a sandbox that keeps some (`processes="kept"`), and this
        returns when it has started. `stdin=True` leaves its stdin open, `tag` is a word by which `connect` finds it,
        `merge` has its stderr in its stdout, and it runs until it ends unless a `timeout` is given. What it prints is
        read by iteration: it has no listeners, and no `limits` of its own.
        """
        if background:
            heard = (on_stdout, on_stderr, on_stdout_bytes, on_stderr_bytes)
            if limits is not None or check or any(each is not None for each in heard):
                raise TypeError(
                    "run() in the background has no `limits`, `check` or listeners: iterate over the process"
                )
            process = process_request(
                command,
                args,
                env=env,
                cwd=cwd,
                stdin=stdin,
                secrets=secrets,
                timeout=timeout,
                tag=tag,
                merge=merge,
                stop_signal=stop_signal,
                stop_timeout=stop_timeout,
            )
            return Process(self._opened, process_info(self._opened().start_process(process)))
        if tag is not None or merge:
            raise TypeError("run() has `tag` and `merge` with `background=True`")
        if isinstance(stdin, bool):
            raise TypeError("stdin: text or bytes are expected, or with `background=True` whether it stays open")
        request = command_request(
            command,
            args,
            env=env,
            cwd=cwd,
            stdin=stdin,
            secrets=secrets,
            limits=limits,
            timeout=timeout,
            stop_signal=stop_signal,
            stop_timeout=stop_timeout,
        )
        listener = results.listener(
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            on_stdout_bytes=on_stdout_bytes,
            on_stderr_bytes=on_stderr_bytes,
        )
        execution = self._opened().start(request, wait=listener is None)
        return checked(results.command_result(_finish(execution, listener), listener), check)

    def connect(self, process: int | str) -> Process:
        """The process with this id, or the last one that was started with this tag."""
        if isinstance(process, int):
            return Process(self._opened, process_info(self._opened().ask("GET", f"/processes/{process}")))
        for view in Answer(self._opened().ask("GET", f"/processes?tag={quote(process, safe='')}")).items(
            "processes"
        ):
            return Process(self._opened, process_info(view.data))
        raise error_of("not_found", f"there is no process with the tag {process!r}", "`commands.list` has all")

    def list(self) -> Sequence[ProcessInfo]:
        """The processes that run, and those that have ended lately, the latest first."""
        answer = Answer(self._opened().ask("GET", "/processes"))
        return [process_info(view.data) for view in answer.items("processes")]


@worded
class Sandbox:
    """A sandbox. It ends with `close`, or with its block, and when its time is over.

    Its calls may be made by any number of threads at once.
    """

    id: str
    """Its id."""
    files: Files
    """Its files."""
    commands: Commands
    """Its commands."""
    pty: Pty
    """Its terminals."""
    interpreter: Interpreter
    """The code interpreter of its image."""
    ports: Ports
    """Its ports."""

    def __init__(self, transport: Transport, identifier: str) -> None:
        self.id = identifier
        self.files = Files(self._open)
        self.commands = Commands(self._open)
        self.pty = Pty(self._open)
        self.interpreter = Interpreter(self._open)
        self.ports = Ports(self._open)
        self._transport = transport
        self._closed = False

    @classmethod
    def create(
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
        metadata: Mapping[str, Any] | None = None,
        envs: Mapping[str, Text] | None = None,
        timeout: float | None = None,
        idle: IdleAction | None = None,
        processes: Processes | None = None,
        ports: OpenPorts | None = None,
        file_scope: FileScope | None = None,
    ) -> Sandbox:
        """Creates a sandbox, or finds the one of this name if it is the same.

        It is one of this machine, kept by a process of the `sandboxctl` binary (`binary`, else `SANDBOXCTL_BINARY`,
        else the one that came with this package, else that of `PATH`) which all sandboxes of the same `engine` share
        and which ends with this program; or of a server: `server` is its URL or `unix:PATH`, by default
        `SANDBOXCTL_SERVER`, and `token` is by default `SANDBOXCTL_TOKEN`. With a `name` and without a server it is
        kept by this user's own service on this machine instead, where other programs and `sandboxctl sandbox` find it,
        and it outlives this program.

        Its commands run in `image`. The embedded engine of this machine has no images: there they run in `rootfs`, a
        directory, or `image_archive`, a file as `docker save` writes it; sandboxes with others have another process.
        Without any of the three it has scripts and files alone. `io_dir` is a directory of this machine that holds
        its files and outlives it. `network` is the hosts that its commands may reach, such as `example.org:443`.

        `metadata` is given back by `get_info` and `list`, `envs` are environment variables of all its commands, and
        `timeout` is for how many seconds it exists, unless `set_timeout` says otherwise. When nothing uses it for a
        while its processes end and its files are kept (`idle="stop"`), or it is frozen as it is (`"freeze"`); its next
        use goes on. With `processes="kept"`, the default of one with a `name` and programs, it has terminals, and
        processes that live on after their call. `ports` are those that may be reached, a list or `"any"`:
        `sandbox.ports` has ways to them. With `file_scope="all"` operations on files go wherever its programs may, and
        follow links inside it; else they stay in the io dir and the inputs.

        Raises `SandboxError`: of kind `config` if the binary is missing or of another version, `engine` if it cannot
        start, `ServerBusy` if the server is not there or full.
        """
        if processes is None and name is not None and (image or rootfs or image_archive):
            # Others are to find what runs in it.
            processes = "kept"
        spec = spec_of(
            image,
            io_dir,
            limits,
            network,
            name,
            metadata=metadata,
            envs=envs,
            timeout=timeout,
            idle=idle,
            processes=processes,
            ports=ports,
            file_scope=file_scope,
        )
        place = connect if name is None else connect_kept
        transport = place(server, token, binary, engine, root_of(image, rootfs, image_archive))
        try:
            return cls(transport, transport.create(spec))
        except BaseException:
            transport.close()
            raise

    @classmethod
    def connect(
        cls,
        sandbox: str,
        *,
        server: str | None = None,
        token: str | None = None,
        binary: str | os.PathLike[str] | None = None,
        engine: str | None = None,
        rootfs: str | os.PathLike[str] | None = None,
        image_archive: str | os.PathLike[str] | None = None,
    ) -> Sandbox:
        """Finds a sandbox by its id or its name: at a server, or without one in this user's own service on this
        machine. A sandbox of this machine without a name is of the program that created it, and is not found."""
        transport = connect_kept(server, token, binary, engine, root_of(None, rootfs, image_archive))
        try:
            return cls(transport, transport.find(sandbox))
        except BaseException:
            transport.close()
            raise

    @classmethod
    def list(
        cls,
        *,
        metadata: Mapping[str, Any] | None = None,
        name: str | None = None,
        status: str | None = None,
        server: str | None = None,
        token: str | None = None,
        binary: str | os.PathLike[str] | None = None,
        engine: str | None = None,
        rootfs: str | os.PathLike[str] | None = None,
        image_archive: str | os.PathLike[str] | None = None,
    ) -> Generator[SandboxInfo]:
        """The sandboxes that `connect` finds, the latest first, as an iterator that asks for a page after another.

        With `metadata` only those that have these members, with `name` and `status` only those of these.
        """
        transport = connect_kept(server, token, binary, engine, root_of(None, rootfs, image_archive))
        try:
            with closing(transport.sandboxes(filter_of(metadata, name, status))) as views:
                for view in views:
                    yield sandbox_info(view)
        finally:
            transport.close()

    def kill(
        self: Sandbox | str,
        *,
        server: str | None = None,
        token: str | None = None,
        binary: str | os.PathLike[str] | None = None,
        engine: str | None = None,
        rootfs: str | os.PathLike[str] | None = None,
        image_archive: str | os.PathLike[str] | None = None,
    ) -> bool:
        """`Sandbox.kill(id)` ends the sandbox of this id or name, as `connect` finds it, and says whether there
        was one. `sandbox.kill()` is `close`."""
        if not isinstance(self, str):
            ended = self._closed
            self.close()
            return not ended
        transport = connect_kept(server, token, binary, engine, root_of(None, rootfs, image_archive))
        try:
            transport.find(self)
            transport.destroy()
        except (NotFound, SandboxGone):
            return False
        finally:
            transport.close()
        return True

    def get_info(self: Sandbox | str, *, server: str | None = None, token: str | None = None) -> SandboxInfo:
        """What it is, and its state. `Sandbox.get_info(id)` is about the sandbox of this id or name, which
        `connect` finds."""
        with Sandbox._of(self, server, token) as transport:
            return sandbox_info(transport.ask("GET", ""))

    def get_host(self, port: int) -> str:
        """The host of a public preview of this port: `https://` and this is `ports.url`."""
        return urlsplit(self.ports.url(port)).netloc

    def set_timeout(
        self: Sandbox | str, timeout: float, *, server: str | None = None, token: str | None = None
    ) -> SandboxInfo:
        """Has it end so many seconds from now, whether that is later or sooner than before; `expires_at` of what this
        returns says when: a server has a longest life. `Sandbox.set_timeout(id, 60)` does it by id or name."""
        with Sandbox._of(self, server, token) as transport:
            return sandbox_info(transport.ask("PATCH", "", json={"ttl_ms": ttl_of(timeout)}))

    def pause(self: Sandbox | str, *, server: str | None = None, token: str | None = None) -> SandboxInfo:
        """Freezes it, with its processes: they keep their memory, and run on with its next use.
        `Sandbox.pause(id)` does it by id or name."""
        with Sandbox._of(self, server, token) as transport:
            return sandbox_info(transport.ask("POST", "/pause"))

    def resume(self: Sandbox | str, *, server: str | None = None, token: str | None = None) -> SandboxInfo:
        """Has its processes run on. `Sandbox.resume(id)` does it by id or name."""
        with Sandbox._of(self, server, token) as transport:
            return sandbox_info(transport.ask("POST", "/resume"))

    def run_script(
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
        execution = self._open().start(request, wait=listener is None)
        return checked(results.script_result(_finish(execution, listener), listener), check)

    def close(self) -> None:
        """Ends the sandbox, and what runs in it, and removes it. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            self._transport.destroy()
        finally:
            self._transport.close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except SandboxError:
            # What ended the block is the error.
            if error is None:
                raise

    @staticmethod
    @contextmanager
    def _of(which: Sandbox | str, server: str | None, token: str | None) -> Generator[Transport]:
        """The transport of a sandbox, or for a while that of the one of this id or name."""
        if not isinstance(which, str):
            yield which._open()
            return
        transport = connect_kept(server, token, None, None, None)
        try:
            transport.find(which)
            yield transport
        finally:
            transport.close()

    def _open(self) -> Transport:
        if self._closed:
            raise error_of("gone", f"the sandbox {self.id} is closed", "create another one")
        return self._transport


@named
def run_script(
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
    """Runs a Luau script in a sandbox of its own; see `Sandbox.create` and `Sandbox.run_script`."""
    request = script_request(script, args, secrets=secrets, timeout=timeout)
    spec = spec_of(image, io_dir, limits, network)
    listener = results.listener(on_log=on_log)
    transport = connect(server, token, binary, engine, root_of(image, rootfs, image_archive))
    document = _once(transport, spec, request, listener)
    return checked(results.script_result(document, listener), check)


@named
def exec(
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
    stop_signal: SignalName | str | int | None = None,
    stop_timeout: float | None = None,
    on_stdout: Callable[[str], object] | None = None,
    on_stderr: Callable[[str], object] | None = None,
    on_stdout_bytes: Callable[[bytes], object] | None = None,
    on_stderr_bytes: Callable[[bytes], object] | None = None,
    check: bool = False,
) -> CommandResult:
    """Runs a command in a sandbox of its own; see `Sandbox.create` and `Commands.run`."""
    request = command_request(
        command,
        args,
        env=env,
        cwd=cwd,
        stdin=stdin,
        secrets=secrets,
        timeout=timeout,
        stop_signal=stop_signal,
        stop_timeout=stop_timeout,
    )
    spec = spec_of(image, io_dir, limits, network)
    listener = results.listener(
        on_stdout=on_stdout,
        on_stderr=on_stderr,
        on_stdout_bytes=on_stdout_bytes,
        on_stderr_bytes=on_stderr_bytes,
    )
    transport = connect(server, token, binary, engine, root_of(image, rootfs, image_archive))
    document = _once(transport, spec, request, listener)
    return checked(results.command_result(document, listener), check)


def _once(
    transport: Transport, spec: Spec, request: wire.ExecutionRequest, listener: Listener | None
) -> Json:
    try:
        with transport.once(spec, request, wait=listener is None) as execution:
            return _finish(execution, listener)
    finally:
        transport.close()


def _document(execution: Execution, listener: Listener | None) -> Json:
    if listener is not None:
        with closing(execution.events()) as events:
            for event in events:
                listener(event)
        listener.end()
    return execution.document()


def _finish(execution: Execution, listener: Listener | None) -> Json:
    """The document of an execution, which whatever ends the wait ends."""
    try:
        return _document(execution, listener)
    except BaseException:
        # What ended the wait is the error, whatever becomes of this.
        with suppress(Exception):
            execution.kill()
        raise
