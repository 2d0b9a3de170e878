"""What calls send: plain data, made from arguments. Nothing here does anything."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from ..errors import error_of

if TYPE_CHECKING:
    from . import wire

__all__ = [
    "ENGINES",
    "Limits",
    "Path",
    "Spec",
    "Text",
    "command_request",
    "encoded",
    "path_bytes",
    "path_of",
    "root_of",
    "script_request",
    "spec_of",
    "text_bytes",
]

Text: TypeAlias = "str | bytes"
"""Text, or bytes, which need not be UTF-8."""

Path: TypeAlias = "str | bytes | os.PathLike[str]"
"""A path in a sandbox; as bytes where it is not UTF-8."""


Limits: TypeAlias = "wire.LimitsRequest | Mapping[str, int | float]"
"""The limits that are set, by their names, such as `memory_bytes`."""


ENGINES: Final = ("auto", "docker", "embedded")
"""The engines of this machine."""


@dataclass(frozen=True)
class Spec:
    """A sandbox to be created."""

    image: str | None
    io_dir: str | None
    limits: Limits | None
    allow: Sequence[str] | None
    name: str | None


def spec_of(
    image: str | None,
    io_dir: str | os.PathLike[str] | None,
    limits: Limits | None,
    network: Sequence[str] | None,
    name: str | None = None,
) -> Spec:
    """A sandbox of these arguments."""
    if isinstance(network, (str, bool, Mapping)):
        raise TypeError(f'network: a list of hosts is expected, such as ["example.org:443"], not {_kind(network)}')
    limits = None if limits is None else _mapping(limits, "limits")
    return Spec(image, None if io_dir is None else os.path.abspath(io_dir), limits, network, name)


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


def _content(value: object, name: str = "") -> wire.Content:
    if isinstance(value, str):
        return value
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(f"{name}{name and ': '}text or bytes are expected, not {type(value).__name__}")
    raw = bytes(cast("bytes", value))
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(raw).decode()}


def _contents(values: Mapping[str, Text], name: str) -> dict[str, wire.Content]:
    return {key: _content(value, f"{name}[{key!r}]") for key, value in _mapping(values, name).items()}


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
        if not timeout > 0:
            raise ValueError(f"timeout: seconds above 0 are expected, not {timeout!r}")
        all_limits["timeout_ms"] = max(1, round(timeout * 1000))
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
) -> wire.ExecutionRequest:
    """A program with arguments, or a line for the shell."""
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
    request = _common(secrets, limits, timeout)
    request["command"] = what
    return request
