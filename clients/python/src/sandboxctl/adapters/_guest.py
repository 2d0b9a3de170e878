"""What the adapters share: how a program ended, and files outside of the io dir.

File operations of a sandbox reach its io dir and its inputs, and follow no link. A framework may ask for any path
of the machine that it believes to have: `/tmp/x`, `/etc`, a link in the io dir. Such a file is read and written by a
command inside the sandbox, which has the rights of every other command there. That needs `sh`, `cat`, `cp`
and `mkdir` in the image; without an image there are only the io dir and the inputs.
"""

from __future__ import annotations

import errno
import os
import posixpath
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sandboxctl.errors import error_of

if TYPE_CHECKING:
    from sandboxctl import CommandResult, SandboxError

IO_DIR: Final = "/io"
"""The io dir in the sandbox, and the working directory."""

_MOUNTS: Final = (IO_DIR, "/in")

# What only a command can do: a path outside of the mounts, or through a link.
COMMANDS_ONLY: Final = frozenset({"path_escape", "symlink"})

_ERRNO: Final = {
    "not_found": errno.ENOENT,
    "already_exists": errno.EEXIST,
    "is_directory": errno.EISDIR,
    "not_a_directory": errno.ENOTDIR,
    "not_empty": errno.ENOTEMPTY,
    "permission_denied": errno.EACCES,
    "not_allowed": errno.EACCES,
    "protected": errno.EACCES,
    "path_escape": errno.EACCES,
    "read_only": errno.EROFS,
    "symlink": errno.ELOOP,
    "invalid_path": errno.EINVAL,
    "disk_full": errno.ENOSPC,
    "write_limit": errno.EDQUOT,
    "too_many_files": errno.EDQUOT,
    "too_large": errno.EFBIG,
    "timeout": errno.ETIMEDOUT,
}

_FAULT = "the sandbox failed"

# The exit codes by which the scripts below say what is wrong with a path.
_PATH_CODES: Final = {
    66: ("not_found", "No such file or directory"),
    67: ("is_directory", "Is a directory"),
    68: ("permission_denied", "Permission denied"),
    69: ("special_file", "Not a regular file"),
    70: ("too_large", "File too large"),
}

READ: Final = """
[ -e "$1" ] || exit 66
[ ! -d "$1" ] || exit 67
[ -f "$1" ] || exit 69
[ -r "$1" ] || exit 68
[ -z "$3" ] || [ "$(wc -c < "$1")" -le "$3" ] || exit 70
exec cat -- "$1" > "$2"
"""

WRITE: Final = """
[ ! -d "$2" ] || exit 67
case "$2" in */*) mkdir -p -- "${2%/*}" || exit 68 ;; esac
[ ! -e "$2" ] || [ -w "$2" ] || exit 68
[ ! -e "$2" ] || [ -f "$2" ] || exit 69
cat -- "$1" > "$2" || exit 68
"""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    stdout: bytes
    stderr: bytes
    code: int | None
    """What a shell would say: its exit code, 128 and the signal, 124 after its time limit, 127 and 126 if it could not
    start. None if the sandbox failed."""
    kind: str | None
    """The kind of the error that kept it from its end, such as `timeout`."""
    reason: str | None
    """That error in words."""
    truncated: bool
    """Whether there was more output than was kept."""


def ended(result: CommandResult, stdout: Output | None = None, stderr: Output | None = None) -> Ended:
    """A result, with the outputs that were collected while it ran if that was done."""
    error = result.error
    kind = error.kind if error else None
    match (result.exit_code, result.signal, kind):
        case (_, _, "timeout"):
            code = 124
        case (_, _, "command_not_found"):
            code = 127
        case (_, _, "not_executable"):
            code = 126
        case (int(code), _, _):
            pass
        case (None, int(signal), _):
            code = 128 + signal
        case _:
            code = None
    return Ended(
        stdout=result.stdout_bytes if stdout is None else bytes(stdout.kept),
        stderr=result.stderr_bytes if stderr is None else bytes(stderr.kept),
        code=code,
        kind=kind,
        reason=(error.message if error else None) or (_FAULT if code is None else None),
        truncated=(result.stdout_truncated if stdout is None else stdout.dropped)
        or (result.stderr_truncated if stderr is None else stderr.dropped),
    )


class Output:
    """The beginning of an output, as it comes."""

    def __init__(self, capacity: int) -> None:
        self.kept = bytearray()
        self.dropped = False
        self._capacity = capacity

    def __call__(self, part: bytes) -> None:
        room = self._capacity - len(self.kept)
        self.kept += part[:room]
        self.dropped = self.dropped or len(part) > room


def in_mounts(path: str) -> bool:
    """Whether file operations reach a path, as far as its words say."""
    if not posixpath.isabs(path):
        return ".." not in path.split("/")
    return ".." not in path.split("/") and any(path == mount or path.startswith(mount + "/") for mount in _MOUNTS)


def os_error(error: SandboxError, path: str) -> OSError:
    """The error of the operating system that this one stands for: `FileNotFoundError` and so on."""
    number = _ERRNO.get(error.kind, errno.EIO)
    return OSError(number, f"{error}" if number == errno.EIO else os.strerror(number), path)


def path_error(result: Ended, path: str) -> SandboxError:
    kind, text = _PATH_CODES.get(result.code or 0, ("engine", result.reason or f"exit code {result.code}"))
    return error_of(result.kind or kind, f"{path}: {text}")


def staged_path() -> str:
    return f"{IO_DIR}/.sandboxctl-adapter-{secrets.token_hex(16)}"
