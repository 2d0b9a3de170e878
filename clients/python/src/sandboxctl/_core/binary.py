"""The binary: which one it is, and how to get it."""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ..errors import SandboxError, error_of
from .version import PROTOCOL, VERSION

__all__ = ["find_binary", "version_mismatch"]

HOW_TO_GET: Final = (
    "the wheel for Linux with glibc brings it; or build it with `cargo install --locked --path sandboxctl`, then give "
    "its path as `binary`, in SANDBOXCTL_BINARY, or put it in a directory of PATH"
)


def find_binary(given: str | os.PathLike[str] | None) -> str:
    """The path of the binary: what the caller or the environment names, what came with this package, or what `PATH`
    has."""
    named = given or os.environ.get("SANDBOXCTL_BINARY")
    if named:
        path = os.path.abspath(named)
        problem = _problem(path)
        if problem is None:
            return path
        whence = "binary" if given else "SANDBOXCTL_BINARY"
        raise error_of("config", f"{whence}: {os.fspath(named)} {problem}", HOW_TO_GET)
    for directory in (*_installed(), *os.environ.get("PATH", "").split(os.pathsep)):
        path = os.path.join(directory, "sandboxctl")
        if os.path.isabs(path) and _problem(path) is None:
            return path
    raise error_of("config", "no sandboxctl beside this package or in PATH", HOW_TO_GET)


def _installed() -> Iterator[str]:
    """Where pip puts the programs of a package."""
    yield sysconfig.get_path("scripts")
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    # `pip install --prefix`, and `--target`: from PREFIX/lib/pythonX.Y/site-packages/sandboxctl, and TARGET/sandboxctl.
    for up in ("../../../..", ".."):
        yield os.path.normpath(os.path.join(package, up, "bin"))
    yield sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user"))


def _problem(path: str) -> str | None:
    if not os.path.exists(path):
        return "does not exist"
    if not os.path.isfile(path):
        return "is not a file"
    return None if os.access(path, os.X_OK) else "is not executable"


def version_mismatch(binary: str, hello: Mapping[str, Any] | None) -> SandboxError:
    """The error for a binary that speaks another protocol, or none: it has both versions."""
    version = hello["version"] if hello and isinstance(hello.get("version"), str) else _version_of(binary)
    speaks = f"protocol {hello.get('protocol')}" if hello else "no protocol for clients"
    return error_of(
        "config",
        f"{binary} is sandboxctl {version}, which speaks {speaks}; "
        f"this client is {VERSION}, and needs protocol {PROTOCOL}",
        "install a client and a binary of the same version",
    )


def _version_of(binary: str) -> str:
    try:
        said = subprocess.run([binary, "--version"], capture_output=True, timeout=5, check=True).stdout[:4096]
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    found = re.search(rb"\d+\.\d+\.\d+[^\s,]*", said)
    return found[0].decode("utf-8", "replace") if found else "unknown"
