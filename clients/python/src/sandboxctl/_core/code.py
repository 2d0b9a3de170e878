"""What code has done in the interpreter of a sandbox: results as values, from the lines of its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from .answers import Answer, parsed, unexpected
from .lines import Lines

__all__ = ["CodeContext", "CodeError", "CodeRun", "CodeValue", "Reader"]

_LONGEST_LINE: Final = 64 << 20
# Of a result, what is not a format.
_MEMBERS: Final = frozenset({"type", "is_main_result", "extra"})


@dataclass(frozen=True)
class CodeContext:
    """A context: code that runs in it finds what code before it has defined."""

    id: str
    language: str
    cwd: str


@dataclass(frozen=True)
class CodeValue:
    """A value or a figure that code has shown."""

    formats: Mapping[str, Any]
    """What it looks like in each format that it has: `text`, `html`, `markdown`, `svg`, `latex`, `json`, `javascript`,
    `data` (the columns of a data frame), and in base64 `png`, `jpeg` and `pdf`."""
    is_main: bool
    """Whether it is the value of the last expression."""

    @property
    def text(self) -> str | None:
        """Its text."""
        return self.formats.get("text")


@dataclass(frozen=True)
class CodeError:
    """An error that ended the code."""

    name: str
    value: str
    traceback: str


@dataclass
class CodeRun:
    """What code has done. An error in it is a result."""

    stdout: str = ""
    stderr: str = ""
    values: list[CodeValue] = field(default_factory=list[CodeValue])
    error: CodeError | None = None
    count: int | None = None
    """Which one it is in its context, from 1 on."""

    @property
    def text(self) -> str | None:
        """The text of the last expression's value."""
        return next((value.text for value in self.values if value.is_main), None)


class Reader:
    """Reads an answer of `/execute` as it comes."""

    def __init__(self, listeners: Mapping[str, Callable[[Any], object] | None]) -> None:
        self.run = CodeRun()
        self.is_complete = False
        self._listeners = listeners
        self._lines = Lines()

    def push(self, piece: bytes) -> None:
        """Reads a piece."""
        for line in self._lines.push(piece):
            if line:
                self._event(Answer(parsed(line)))
        if self._lines.pending > _LONGEST_LINE:
            raise unexpected("a line is too long")

    def _event(self, event: Answer) -> None:
        kind, run = event.text("type"), self.run
        said: object = None
        if kind == "stdout":
            said = event.text("text")
            run.stdout += said
        elif kind == "stderr":
            said = event.text("text")
            run.stderr += said
        elif kind == "result":
            formats = {name: value for name, value in event.data.items() if name not in _MEMBERS and value is not None}
            said = CodeValue(formats, event.data.get("is_main_result") is True)
            run.values.append(said)
        elif kind == "error":
            run.error = CodeError(event.text("name"), event.text("value"), event.text("traceback"))
        elif kind == "number_of_executions":
            run.count = event.integer("execution_count")
        elif kind == "end_of_execution":
            self.is_complete = True
        listener = self._listeners.get(kind)
        if listener is not None:
            listener(said)
