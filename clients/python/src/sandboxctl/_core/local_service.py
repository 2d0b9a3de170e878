"""The user's own service on this machine, which keeps sandboxes that other programs find."""

from __future__ import annotations

import os
import subprocess
import threading
from typing import Final

from ..errors import SandboxError, error_of
from .binary import find_binary, version_mismatch
from .connection import Connections, Server
from .process import arguments_of, environment, socket_of

__all__ = ["local_service"]

# The time for its start, in seconds.
_START: Final = 60.0
_STDERR_KEPT: Final = 4096


class LocalService(Server):
    """A service that the binary starts on first use. It ends by itself when it has no sandbox, and starts again."""

    takes_directories = True

    def __init__(self, binary: str, arguments: list[str]) -> None:
        self._command = [binary, *arguments]
        super().__init__(f"unix:{self._start()}", None)

    def failure(self, error: BaseException | None, why: str) -> SandboxError:
        """The error of a connection that is lost, or is not made. Of a service that has ended, the next attempt finds
        another one."""
        if isinstance(error, (ConnectionRefusedError, FileNotFoundError)):
            try:
                self.connections = Connections(f"unix:{self._start()}")
            except SandboxError as failed:
                return failed
        return error_of("unavailable", f"no connection to the local service: {why}")

    def _start(self) -> str:
        """Makes sure that it runs, and returns the path of its socket."""
        binary = self._command[0]
        try:
            ended = subprocess.run(
                self._command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_START, env=environment()
            )
        except OSError as error:
            message = f"{binary} cannot be started: {error.strerror}"
            raise error_of("config", message, "is it built for this machine?") from error
        except subprocess.TimeoutExpired as error:
            raise error_of("engine", "the local service did not start in time") from error
        said = ended.stderr[-_STDERR_KEPT:].decode("utf-8", "replace").strip()
        if ended.returncode == 0:
            return socket_of(binary, ended.stdout)
        if ended.returncode == 2 and ("unexpected argument" in said or "unrecognized subcommand" in said):
            raise version_mismatch(binary, None)
        message = said.removeprefix("error: ") or f"{binary} ended with exit code {ended.returncode}"
        raise error_of("config" if ended.returncode == 2 else "engine", message)


_services: dict[tuple[str, str | None, tuple[str, str] | None], LocalService] = {}
_starting = threading.Lock()


def local_service(
    binary: str | os.PathLike[str] | None, engine: str | None, root: tuple[str, str] | None = None
) -> LocalService:
    """The service of this user, with an engine and a directory or an archive that commands run in if they are given."""
    path = find_binary(binary)
    with _starting:
        service = _services.get((path, engine, root))
        if service is None:
            service = LocalService(path, arguments_of(["local", "socket"], engine, root))
            _services[path, engine, root] = service
        return service


def _forked() -> None:
    global _starting
    _starting = threading.Lock()


os.register_at_fork(after_in_child=_forked)
