"""What a server or the process says, read strictly: a malformed answer is a `SandboxError`, and nothing else."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar, cast

from ..errors import SandboxError, error_of

__all__ = ["Answer", "base64_bytes", "identifier", "is_identifier", "parsed", "unexpected"]

T = TypeVar("T")

_WORDS: Final[Mapping[type, str]] = {str: "text", int: "a whole number", bool: "true or false", list: "a list"}
# An escape that may be that of a lone surrogate: such text has no bytes.
_SURROGATE: Final = re.compile(rb"\\u[dD][89abAB]")
# It becomes a part of a URL.
_IDENTIFIER: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")


def unexpected(why: str) -> SandboxError:
    """The error of a malformed answer."""
    return error_of("internal", f"unexpected answer: {why}", "is this sandboxctl, and of the client's version?")


def parsed(text: bytes) -> Any:
    """The JSON of an answer."""
    try:
        value = _DECODER.decode(text.decode())
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise unexpected("not JSON") from error
    return value


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a number")
    return number


_DECODER: Final = json.JSONDecoder(parse_float=_number, parse_constant=_number)


def base64_bytes(text: object) -> bytes:
    """The bytes of base64."""
    if not isinstance(text, str):
        raise unexpected("base64 is expected")
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise unexpected("not base64") from error


def is_identifier(text: str) -> bool:
    """Whether it may be an id, and a part of a URL."""
    return _IDENTIFIER.fullmatch(text) is not None


def identifier(text: str) -> str:
    """An id, which may be a part of a URL."""
    if not is_identifier(text):
        raise unexpected(f"{text[:200]!r} is not an id")
    return text


class Answer:
    """An object. Each member is read as what it must be; what else it has is left to later versions."""

    def __init__(self, data: object) -> None:
        if not isinstance(data, dict):
            raise unexpected("not an object")
        self.data = cast("dict[str, Any]", data)

    def text(self, name: str) -> str:
        """A text."""
        return self._member(name, str)

    def text_or_none(self, name: str) -> str | None:
        """A text, if there is one."""
        return None if self.data.get(name) is None else self._member(name, str)

    def integer(self, name: str) -> int:
        """A whole number."""
        return self._member(name, int)

    def integer_or_none(self, name: str) -> int | None:
        """A whole number, if there is one."""
        return None if self.data.get(name) is None else self._member(name, int)

    def flag(self, name: str) -> bool:
        """Whether something is so."""
        return self._member(name, bool)

    def flag_or_none(self, name: str) -> bool | None:
        """Whether something is so, if that is known."""
        return None if self.data.get(name) is None else self._member(name, bool)

    def is_set(self, name: str) -> bool:
        """Whether something is so; what is not said is not so."""
        return name in self.data and self._member(name, bool)

    def items(self, name: str) -> list[Answer]:
        """Objects."""
        return [Answer(item) for item in self._list(name)]

    def texts(self, name: str) -> list[str]:
        """Texts."""
        texts = [text for text in self._list(name) if isinstance(text, str)]
        if len(texts) != len(self._list(name)):
            raise unexpected(f"`{name}` has more than texts")
        return texts

    def object_or_none(self, name: str) -> Any:
        """An object as it is, if there is one."""
        value = self.data.get(name)
        return None if value is None else Answer(value).data

    def raw(self, name: str) -> bytes:
        """The bytes of a name or a path: in base64 where they are not UTF-8."""
        encoded = self.data.get(f"{name}_b64")
        return self.text(name).encode() if encoded is None else base64_bytes(encoded)

    def output(self, name: str, encoding: str) -> bytes:
        """The bytes of an output, encoded as another member says."""
        match self.text_or_none(encoding):
            case "base64":
                return base64_bytes(self.text(name))
            case None | "utf-8":
                return self.text(name).encode()
            case other:
                raise unexpected(f"`{encoding}` is {other[:200]!r}")

    def _list(self, name: str) -> list[object]:
        return cast("list[object]", self._member(name, list))

    def _member(self, name: str, kind: type[T]) -> T:
        value = self.data.get(name)
        # A boolean is no number, although Python has it so.
        if type(value) is not kind:
            raise unexpected(f"`{name}` is not {_WORDS[kind]}")
        return value
