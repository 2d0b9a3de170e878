"""What calls send: plain data, made from arguments. Nothing here does anything."""

from __future__ import annotations

import base64
import json
import os
import signal as signals
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

from ..errors import error_of

if TYPE_CHECKING:
    from . import wire

__all__ = [
    "ENGINES",
    "FileScope",
    "IdleAction",
    "Limits",
    "OpenPorts",
    "Path",
    "Processes",
    "Spec",
    "Text",
    "bytes_of",
    "command_request",
    "encoded",
    "filter_of",
    "path_bytes",
    "path_of",
    "process_request",
    "root_of",
    "script_request",
    "spec_of",
    "terminal_request",
    "text_bytes",
    "signal_of",
    "ttl_of",
]

Text: TypeAlias = "str | bytes"
"""Text, or bytes, which need not be UTF-8."""

Path: TypeAlias = "str | bytes | os.PathLike[str]"
"""A path in a sandbox; as bytes where it is not UTF-8."""


Limits: TypeAlias = "wire.LimitsRequest | Mapping[str, int | float]"
"""The limits that are set, by their names, such as `memory_bytes`."""


Processes: TypeAlias = Literal["per_command", "kept"]
"""Whether what a command started ends with it, or a sandbox keeps the processes that are started in the background."""


FileScope: TypeAlias = Literal["io", "all"]
"""Where file operations may go: to the io dir and the inputs, or wherever the programs of the sandbox may."""


OpenPorts: TypeAlias = Sequence[int] | Literal["any"]
"""The ports of a sandbox that may be reached."""


IdleAction: TypeAlias = Literal["stop", "freeze"]
"""What happens to a sandbox that nothing uses: its processes end, or they are frozen until its next use."""


ENGINES: Final = ("auto", "docker", "embedded")
"""The engines of this machine."""

# The shell of a terminal: the one that people like best of those that there are.
_SHELL: Final = "command -v bash >/dev/null && exec bash; exec sh"


@dataclass(frozen=True)
class Spec:
    """A sandbox to be created."""

    image: str | None
    io_dir: str | None
    limits: Limits | None
    allow: Sequence[str] | None
    name: str | None
    kept: Mapping[str, Any]
    """Further members of what it is."""
    request: Mapping[str, Any]
    """Further members of the request."""


def spec_of(
    image: str | None,
    io_dir: str | os.PathLike[str] | None,
    limits: Limits | None,
    network: Sequence[str] | None,
    name: str | None = None,
    *,
    metadata: Mapping[str, Any] | None = None,
    envs: Mapping[str, Text] | None = None,
    timeout: float | None = None,
    idle: IdleAction | None = None,
    processes: Processes | None = None,
    ports: OpenPorts | None = None,
    file_scope: FileScope | None = None,
) -> Spec:
    """A sandbox of these arguments."""
    if isinstance(network, (str, bool, Mapping)):
        raise TypeError(f'network: a list of hosts is expected, such as ["example.org:443"], not {_kind(network)}')
    limits = None if limits is None else _mapping(limits, "limits")
    kept = {
        "env": _contents(envs, "envs") if envs else None,
        "processes": processes,
        "ports": _ports(ports),
        "files": file_scope,
    }
    request = {
        "metadata": _mapping(metadata, "metadata") if metadata else None,
        "ttl_ms": None if timeout is None else ttl_of(timeout),
        "idle": idle,
    }
    directory = None if io_dir is None else os.path.abspath(io_dir)
    return Spec(image, directory, limits, network, name, _given(kept), _given(request))


def _ports(ports: OpenPorts | None) -> list[int] | str | None:
    if ports is None:
        return None
    if isinstance(ports, str) and ports == "any":
        return "any"
    if isinstance(ports, (str, bool, int)):
        raise TypeError(f'ports: a list such as [8080] is expected, or "any", not {_kind(ports)}')
    return [*ports]


def ttl_of(timeout: float) -> int:
    """A time in seconds, as whole milliseconds."""
    if not timeout > 0:
        raise ValueError(f"timeout: seconds above 0 are expected, not {timeout!r}")
    return max(1, round(timeout * 1000))


def _stop_timeout_of(timeout: float) -> int:
    """A time to end, in seconds, as whole milliseconds. It may be 0."""
    if not timeout >= 0:
        raise ValueError(f"stop_timeout: seconds from 0 on are expected, not {timeout!r}")
    return round(timeout * 1000)


def signal_of(signal: str | int) -> str:
    """The name of a signal on the wire: of `TERM`, `SIGTERM`, `signal.SIGTERM` and 15."""
    name = signals.Signals(signal).name if isinstance(signal, int) else signal
    return name.upper().removeprefix("SIG")


def filter_of(metadata: Mapping[str, Any] | None, name: str | None, status: str | None) -> dict[str, str]:
    """Which sandboxes a list has. A value that is no text is meant as its JSON."""
    members = _mapping(metadata or {}, "metadata").items()
    wanted = {f"metadata.{key}": value if isinstance(value, str) else json.dumps(value) for key, value in members}
    return {**wanted, **_given({"name": name, "status": status})}


def root_of(
    image: str | None, rootfs: str | os.PathLike[str] | None, image_archive: str | os.PathLike[str] | None
) -> tuple[str, str] | None:
    """The argument that names what the commands of this machine's sandboxes run in, and its path."""
    roots = {"image": image, "rootfs": rootfs, "image_archive": image_archive}
    given = [(name, path) for name, path in roots.items() if path is not None]
    if len(given) > 1:
        raise error_of("usage", f"{given[0][0]} and {given[1][0]} are both given: commands run in one of them")
    return next(((name, os.path.abspath(path)) for name, path in given if name != "image"), None)


def encoded(value: object) -> bytes:
    """What is sent, as JSON."""
    try:
        return text_bytes(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")))
    except RecursionError as error:
        raise ValueError("what is to be sent is nested too deeply") from error


def text_bytes(text: str, errors: str = "strict") -> bytes:
    """The bytes of a text. A text with half of a character, such as "\\ud83d", has none."""
    try:
        return text.encode("utf-8", errors)
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise error_of("encoding", f"text that is no Unicode: it has {half!r} alone", "give bytes") from error


def path_bytes(path: Path) -> bytes:
    """The bytes of a path. In text, what `os` could not decode stands for itself."""
    path = os.fspath(path)
    return path if isinstance(path, bytes) else text_bytes(path, "surrogateescape")


def path_of(path: Path) -> wire.Content:
    """A path in a request: text, or bytes as `{"b64"}`."""
    return _content(path_bytes(path))


def bytes_of(value: object, name: str = "") -> bytes:
    """The bytes of text or bytes."""
    if isinstance(value, str):
        return text_bytes(value)
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(f"{name}{name and ': '}text or bytes are expected, not {type(value).__name__}")
    return bytes(cast("bytes", value))


def _content(value: object, name: str = "") -> wire.Content:
    if isinstance(value, str):
        return value
    raw = bytes_of(value, name)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(raw).decode()}


def _contents(values: Mapping[str, Text], name: str) -> dict[str, wire.Content]:
    return {key: _content(value, f"{name}[{key!r}]") for key, value in _mapping(values, name).items()}


def _given(members: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}


def _mapping(values: Any, name: str) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        raise TypeError(f'{name}: names and their values are expected, such as {{"a": 1}}, not {_kind(values)}')
    return dict(cast("Mapping[str, Any]", values))


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"


def _common(secrets: Mapping[str, Text] | None, limits: Limits | None, timeout: float | None) -> wire.ExecutionRequest:
    request: wire.ExecutionRequest = {}
    all_limits = _mapping(limits or {}, "limits")
    if timeout is not None:
        all_limits["timeout_ms"] = ttl_of(timeout)
    if all_limits:
        request["limits"] = cast("wire.LimitsRequest", all_limits)
    if secrets:
        request["secrets"] = _contents(secrets, "secrets")
    return request


def script_request(
    script: Text,
    args: Mapping[str, Any] | None = None,
    *,
    secrets: Mapping[str, Text] | None = None,
    limits: Limits | None = None,
    timeout: float | None = None,
) -> wire.ExecutionRequest:
    """A script."""
    request = _common(secrets, limits, timeout)
    request["script"] = _content(script, "script")
    if args is not None:
        request["args"] = _mapping(args, "args")
    return request


def command_request(
    command: Text,
    args: Sequence[Text] | None = None,
    *,
    env: Mapping[str, Text] | None = None,
    cwd: Path | None = None,
    stdin: Text | None = None,
    secrets: Mapping[str, Text] | None = None,
    limits: Limits | None = None,
    timeout: float | None = None,
    stop_signal: str | int | None = None,
    stop_timeout: float | None = None,
) -> wire.ExecutionRequest:
    """A program with arguments, or a line for the shell."""
    what = _command(command, args, env, cwd, stdin)
    if stop_timeout is not None:
        limits = {**_mapping(limits or {}, "limits"), "stop_timeout_ms": _stop_timeout_of(stop_timeout)}
    request = _common(secrets, limits, timeout)
    request["command"] = what
    if stop_signal is not None:
        request["stop_signal"] = cast("wire.SignalName", signal_of(stop_signal))
    return request


def process_request(
    command: Text,
    args: Sequence[Text] | None = None,
    *,
    env: Mapping[str, Text] | None = None,
    cwd: Path | None = None,
    stdin: Text | bool | None = None,
    secrets: Mapping[str, Text] | None = None,
    timeout: float | None = None,
    tag: str | None = None,
    merge: bool = False,
    stop_signal: str | int | None = None,
    stop_timeout: float | None = None,
) -> wire.ProcessRequest:
    """A process to start. With `stdin` True its stdin stays open."""
    is_open = isinstance(stdin, bool)
    request: wire.ProcessRequest = {"command": _command(command, args, env, cwd, None if is_open else stdin)}
    if stdin is True:
        request["stdin"] = True
    if secrets:
        request["secrets"] = _contents(secrets, "secrets")
    if timeout is not None:
        request["timeout_ms"] = ttl_of(timeout)
    if tag is not None:
        request["tag"] = tag
    if merge:
        request["merge"] = True
    if stop_signal is not None:
        request["stop_signal"] = cast("wire.SignalName", signal_of(stop_signal))
    if stop_timeout is not None:
        request["stop_timeout_ms"] = _stop_timeout_of(stop_timeout)
    return request


def terminal_request(
    cols: int,
    rows: int,
    command: Text | None,
    args: Sequence[Text] | None,
    *,
    env: Mapping[str, Text] | None = None,
    cwd: Path | None = None,
    secrets: Mapping[str, Text] | None = None,
    timeout: float | None = None,
    tag: str | None = None,
    term: str | None = None,
    stop_signal: str | int | None = None,
    stop_timeout: float | None = None,
) -> wire.ProcessRequest:
    """A process with a terminal: a shell, if no command is given."""
    command = _SHELL if command is None else command
    request = process_request(
        command,
        args,
        env=env,
        cwd=cwd,
        stdin=True,
        secrets=secrets,
        timeout=timeout,
        tag=tag,
        stop_signal=stop_signal,
        stop_timeout=stop_timeout,
    )
    request["pty"] = {"cols": cols, "rows": rows} if term is None else {"cols": cols, "rows": rows, "term": term}
    return request


def _command(
    command: Text,
    args: Sequence[Text] | None,
    env: Mapping[str, Text] | None,
    cwd: Path | None,
    stdin: Text | None,
) -> wire.CommandRequest:
    what: wire.CommandRequest
    if isinstance(command, (list, tuple)):
        raise TypeError(
            f"command: text is expected, not {_kind(command)}: the arguments of a program are `args`, "
            'such as run("ls", ["-l"])'
        )
    if args is None:
        what = {"shell": _content(command, "command")}
    elif isinstance(args, (str, bytes, Mapping)):
        raise TypeError(f"args: a list is expected, not {_kind(args)}")
    else:
        what = {"program": _content(command, "command"), "args": [_content(arg, "args") for arg in args]}
    if env:
        what["env"] = _contents(env, "env")
    if cwd is not None:
        what["cwd"] = path_of(cwd)
    if stdin is not None:
        what["stdin"] = _content(stdin, "stdin")
    return what
