# Made from _async_guest.py by scripts/unasync.
"""A sandbox as an adapter uses it, for synchronous programs."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from sandboxctl import Sandbox, SandboxError
from sandboxctl.errors import error_of

from ._guest import COMMANDS_ONLY, READ, WRITE, Ended, Output, ended, in_mounts, path_error, staged_path


class Guest:
    """A sandbox as an adapter uses it."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    @property
    def id(self) -> str:
        """The sandbox's id."""
        return self.sandbox.id

    def run(
        self,
        program: str,
        *args: str,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        timeout: float | None = None,
        capacity: int | None = None,
    ) -> Ended:
        """Runs a program to its end. With `capacity`, that many bytes of each output are kept, and not a million."""
        stdout, stderr = (None, None) if capacity is None else (Output(capacity), Output(capacity))
        result = self.sandbox.commands.run(
            program,
            args,
            cwd=cwd,
            env=env,
            stdin=stdin,
            timeout=timeout,
            on_stdout_bytes=stdout,
            on_stderr_bytes=stderr,
        )
        return ended(result, stdout, stderr)

    def read(self, path: str, limit: int | None = None) -> bytes:
        """The content of a file, of up to `limit` bytes."""
        if in_mounts(path):
            try:
                if limit is not None and (self.sandbox.files.stat(path)).size > limit:
                    raise error_of("too_large", f"{path}: more than {limit} bytes")
                return self.sandbox.files.read_bytes(path)
            except SandboxError as error:
                if error.kind not in COMMANDS_ONLY:
                    raise
        # By way of the io dir: an output would be kept up to a million bytes.
        staged = staged_path()
        try:
            result = self.run("/bin/sh", "-c", READ, "sh", path, staged, "" if limit is None else str(limit))
            if result.code != 0:
                raise path_error(result, path)
            return self.sandbox.files.read_bytes(staged)
        finally:
            self.sandbox.files.remove(staged, force=True)

    def write(self, path: str, content: bytes) -> None:
        """Writes a file, with its directories."""
        if in_mounts(path):
            try:
                self.sandbox.files.write(path, content)
            except SandboxError as error:
                if error.kind not in COMMANDS_ONLY:
                    raise
            else:
                return
        staged = staged_path()
        self.sandbox.files.write(staged, content)
        try:
            result = self.run("/bin/sh", "-c", WRITE, "sh", staged, path)
        finally:
            self.sandbox.files.remove(staged, force=True)
        if result.code != 0:
            raise path_error(result, path)

    @contextmanager
    def input(self, content: bytes | None, *, above: int) -> Generator[tuple[list[str], bytes | None]]:
        """How a program gets its stdin: with words before its own, or with the request. More than `above` bytes are
        in a file meanwhile."""
        if content is None or len(content) <= above:
            yield [], content
            return
        staged = staged_path()
        self.sandbox.files.write(staged, content)
        try:
            yield ["/bin/sh", "-c", 'input=$1; shift; exec "$@" < "$input"', "sh", staged], None
        finally:
            self.sandbox.files.remove(staged, force=True)
