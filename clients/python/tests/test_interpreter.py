"""The code interpreter, with the server of templates/e2b-code-interpreter replaced by its answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sandboxctl import CodeValue, Interpreter, SandboxError, Timeout
from sandboxctl.errors import error_of


class Exchange:
    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    def read(self) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""


class Stand:
    """A transport whose port 49999 has these answers, one a request; None is a closed port."""

    def __init__(self, *answers: list[bytes] | None) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str, Any]] = []
        self.started: list[Any] = []

    @contextmanager
    def port(
        self, port: int, method: str, path: str, body: object = None, timeout: float | None = None
    ) -> Iterator[Exchange]:
        assert port == 49999
        self.asked.append((method, path, body))
        answer = self.answers.pop(0)
        if answer is None:
            raise error_of("port_closed", "nothing listens on port 49999")
        yield Exchange(answer)

    def start_process(self, request: Any) -> Any:
        self.started.append(request)
        raise error_of("not_found", "there is no such program")


def lines(*events: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


END = {"type": "end_of_execution"}


def interpreter(stand: Stand) -> Interpreter:
    return Interpreter(lambda: stand)  # type: ignore[arg-type, return-value]


def test_output_values_and_errors_are_read_from_any_pieces() -> None:
    answer = lines(
        {"type": "number_of_executions", "execution_count": 3},
        {"type": "stdout", "text": "é\n", "timestamp": "now"},
        {"type": "keepalive"},
        {"type": "stderr", "text": "odd", "timestamp": "now"},
        {"type": "result", "png": "iVBO", "text": "<Figure>", "extra": {}, "is_main_result": False},
        {"type": "result", "text": "42", "is_main_result": True, "extra": {}},
        {"type": "error", "name": "E", "value": "v", "traceback": "t"},
        END,
    )
    for size in (1, 7, len(answer)):
        pieces = [answer[at : at + size] for at in range(0, len(answer), size)]
        heard: list[CodeValue] = []
        run = interpreter(Stand(pieces)).run_code("x", on_value=heard.append)
        assert (run.stdout, run.stderr, run.text, run.count) == ("é\n", "odd", "42", 3)
        assert run.values == heard
        assert run.values[0].formats == {"png": "iVBO", "text": "<Figure>"}
        assert run.error is not None
        assert (run.error.name, run.error.value, run.error.traceback) == ("E", "v", "t")


def test_request_names_language_context_and_variables() -> None:
    stand = Stand([lines(END)], [b'{"id": "c1", "language": "bash", "cwd": "/tmp"}'])
    interpreter(stand).run_code("x", language="bash", envs={"A": "1"})
    context = interpreter(stand).create_context(language="bash", cwd="/tmp")
    assert context.id == "c1"
    assert stand.asked == [
        ("POST", "/execute", {"code": "x", "language": "bash", "context_id": None, "env_vars": {"A": "1"}}),
        ("POST", "/contexts", {"language": "bash", "cwd": "/tmp"}),
    ]


def test_output_without_its_end_is_an_error() -> None:
    with pytest.raises(SandboxError, match="breaks off"):
        interpreter(Stand([lines({"type": "stdout", "text": "1"})])).run_code("x")


def test_code_that_takes_too_long_is_a_timeout() -> None:
    with pytest.raises(Timeout, match="within 0 s"):
        interpreter(Stand([lines({"type": "keepalive"}), lines(END)])).run_code("x", timeout=0)


def test_interpreter_that_does_not_run_is_started_and_an_image_without_one_is_named() -> None:
    stand = Stand(None)
    with pytest.raises(SandboxError, match="does not start") as failure:
        interpreter(stand).run_code("x")
    assert "sandboxctl-e2b-code-interpreter" in str(failure.value.hint)
    assert stand.started[0]["tag"] == "code-interpreter"
