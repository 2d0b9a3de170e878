"""Errors: each has a `kind` for programs, and a `message` and perhaps a `hint` for people."""

from __future__ import annotations

import re
from typing import Any, Literal, TypeAlias

__all__ = [
    "LimitExceeded",
    "NotFound",
    "PolicyDenied",
    "SandboxError",
    "SandboxGone",
    "ServerBusy",
    "Timeout",
    "TimeoutOwner",
    "error_of",
]

TimeoutOwner: TypeAlias = Literal["execution", "operation", "server", "client"]
"""Whose time limit: that of an execution, of a file operation, of the server, or of this client."""


class SandboxError(Exception):
    """What went wrong: `kind` is stable and for programs, `message` and `hint` are for people."""

    kind: str
    """`not_found`, `timeout`, … A later version may have others."""
    message: str
    hint: str | None
    """What to do about it, if there is something to suggest."""
    retryable: bool
    """Whether the same call may succeed later."""
    status: int | None
    """The HTTP status, if a server refused the request."""
    line: int | None
    """The line of the script where it failed."""
    traceback: str | None
    """The script's call stack."""
    value: Any
    """The table that the script raised, as JSON."""
    result: Any
    """The `ScriptResult` or `CommandResult`, if the error is that of a run with `check=True`."""

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        hint: str | None = None,
        retryable: bool = False,
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.hint = hint
        self.retryable = retryable
        self.status = status
        self.line = self.traceback = self.value = self.result = None

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.kind, self.message), self.__dict__


class NotFound(SandboxError):
    """A file, a sandbox or an execution does not exist."""


class Timeout(SandboxError):
    """A time limit expired."""

    owner: TimeoutOwner = "server"
    """Whose limit it was."""


class LimitExceeded(SandboxError):
    """A limit of the sandbox, of a file operation, or a quota."""


class PolicyDenied(SandboxError):
    """Something that is not allowed: by a policy, by the token, or by the sandbox's paths."""


class SandboxGone(SandboxError):
    """The sandbox was closed, or what kept it has ended: create another one."""


class ServerBusy(SandboxError):
    """The server, or its queue, is full."""


_CLASSES: dict[str, type[SandboxError]] = {
    **dict.fromkeys(["not_found"], NotFound),
    **dict.fromkeys(["timeout", "request_timeout"], Timeout),
    **dict.fromkeys(
        [
            "too_large",
            "write_limit",
            "too_many_files",
            "too_many_handles",
            "disk_full",
            "out_of_memory",
            "output_limit",
            "source_too_large",
            "result_too_large",
            "limit",
            "quota_exceeded",
        ],
        LimitExceeded,
    ),
    **dict.fromkeys(
        [
            "policy",
            "forbidden",
            "path_escape",
            "not_allowed",
            "protected",
            "read_only",
            "network_refused",
        ],
        PolicyDenied,
    ),
    **dict.fromkeys(["gone", "agent_lost"], SandboxGone),
    **dict.fromkeys(["full", "rate_limited", "unavailable", "busy", "in_flight", "stdin_full"], ServerBusy),
}

_RETRYABLE = frozenset(
    {
        "full",
        "rate_limited",
        "unavailable",
        "busy",
        "in_flight",
        "engine",
        "agent_lost",
        "request_timeout",
        "stdin_full",
    }
)


_WORDS = [
    (
        re.compile(r"--image \(--rootfs or --image-archive on (.*?)\) selects"),
        r"image= (rootfs= or image_archive= on \1) selects",
    ),
    (re.compile(r"--timeout raises the limit"), "timeout= raises the limit"),
    (re.compile(r'create a sandbox whose spec has `"processes": "kept"`'), 'create the sandbox with processes="kept"'),
    (re.compile(r'start it with `"stdin": true`'), "start it with stdin=True"),
    (re.compile(r"(--[a-z-]+|SANDBOXCTL_\w+, or [\w.]+ in \S+,) raises the limit"), "limits= raises the limit"),
]


def _worded(hint: str) -> str:
    """A hint of the command line, in the words of this package."""
    for flag, argument in _WORDS:
        hint = flag.sub(argument, hint)
    return hint


def error_of(
    kind: str,
    message: str,
    hint: str | None = None,
    *,
    retryable: bool | None = None,
    status: int | None = None,
    owner: TimeoutOwner = "server",
) -> SandboxError:
    """The error of a kind, in its class."""
    hint = None if hint is None else _worded(hint)
    retryable = kind in _RETRYABLE if retryable is None else retryable
    error = _CLASSES.get(kind, SandboxError)(kind, message, hint=hint, retryable=retryable, status=status)
    if isinstance(error, Timeout):
        error.owner = owner
    return error
