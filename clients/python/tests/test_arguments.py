"""Arguments and names as users of other products type them, and what results and listeners are like."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Any

import pytest

import sandboxctl
from sandboxctl import AsyncCommands, AsyncFiles, AsyncSandbox, Commands, Files, Pty, Sandbox, results
from sandboxctl._core.answers import Answer


def unopened() -> Any:
    raise AssertionError("nothing is called")


FILES, COMMANDS, PTY = Files(unopened), Commands(unopened), Pty(unopened)
SANDBOX = Sandbox.__new__(Sandbox)
CALLS: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (Sandbox.create, {"template": "base"}, "`image`"),
    (Sandbox.create, {"root_dir": "root"}, "`rootfs`"),
    (Sandbox.create, {"archive": "x.tar"}, "`image_archive`"),
    (Sandbox.create, {"ttl": 60}, "`timeout`"),
    (Sandbox.create, {"env": ["A=1"]}, "names and their values"),
    (Sandbox.create, {"env": {}, "envs": {}}, "`envs`"),
    (Sandbox.create, {"labels": {}}, "`metadata`"),
    (Sandbox.create, {"envs": ["A=1"]}, "names and their values"),
    (Sandbox.create, {"background": True}, r"`background` of commands\.run"),
    (Sandbox.connect, {"timeout": 60, "sandbox": "s"}, "`timeout` of Sandbox.create"),
    (Sandbox.create, {"api_key": "x"}, "`token`"),
    (Sandbox.create, {"volumes": {}}, "`io_dir`"),
    (Sandbox.create, {"mem_limit": "1g"}, "`limits`, such as"),
    (Sandbox.create, {"allow_internet_access": True}, "`network`"),
    (Sandbox.create, {"imgae": "x"}, "is it `image`"),
    (Sandbox.create, {"nothing": 1}, "there are image, rootfs, "),
    (Sandbox, {"template": "base"}, r"Sandbox\.create\(\)"),
    (Sandbox, {}, r"Sandbox\.create\(\)"),
    (COMMANDS.run, {"command": "ls", "envs": ["A=1"]}, "names and their values"),
    (COMMANDS.run, {"cmd": "ls"}, "`command`"),
    (COMMANDS.run, {"command": "ls", "detach": True}, "`background`"),
    (COMMANDS.run, {"command": "ls", "background": True, "check": True}, "iterate over the process"),
    (COMMANDS.run, {"command": "ls", "background": True, "on_stdout": print}, "iterate over the process"),
    (COMMANDS.run, {"command": "ls", "tag": "x"}, "`background=True`"),
    (COMMANDS.run, {"command": "ls", "pty": True}, r"`pty\.create`"),
    (COMMANDS.start, {"command": "ls", "background": True}, r"`background` of commands\.run"),
    (PTY.create, {"size": (80, 24)}, "`cols`"),
    (PTY.create, {"on_pty": print}, "`on_data`"),
    (COMMANDS.run, {"command": "ls", "request_timeout": 5}, "`timeout`"),
    (COMMANDS.run, {"command": "ls", "environment": {}}, "`env`"),
    (COMMANDS.run, {"command": "ls", "workdir": "/"}, "`cwd`"),
    (COMMANDS.run, {"command": ["ls", "-l"]}, r'`args`, such as run\("ls", \["-l"\]\)'),
    (COMMANDS.run, {"command": ("ls",)}, "`args`"),
    (COMMANDS.run, {"command": "ls", "args": "-l"}, "a list is expected"),
    (COMMANDS.run, {"command": "ls", "args": {"-l": 1}}, "a list is expected"),
    (COMMANDS.run, {"command": "ls", "env": ["A=1"]}, "names and their values"),
    (COMMANDS.run, {"command": "ls", "env": {"A": 1}}, r"env\['A'\]: text or bytes"),
    (COMMANDS.run, {"command": "ls", "stdin": True}, "with `background=True` whether it stays open"),
    (COMMANDS.run, {"command": "ls", "limits": 5}, "names and their values"),
    (COMMANDS.start, {"command": ["ls"]}, "`args`"),
    (FILES.list, {"path": ".", "depth": 2}, "`max_depth`"),
    (FILES.write, {"path": "a", "data": "x"}, "`content`"),
    (FILES.read, {"path": "a", "format": "bytes"}, "`read_bytes`"),
    (FILES.move, {"old_path": "a", "new_path": "b"}, "`source`"),
    (sandboxctl.exec, {"command": ["ls"]}, "`args`"),
    (sandboxctl.exec, {"command": "ls", "template": "x"}, "`image`"),
    (sandboxctl.run_script, {"script": "x", "args": ["a"]}, "names and their values"),
    (sandboxctl.run_script, {"code": "x"}, "`script`"),
    (sandboxctl.run_script, {"script": "x", "network": "example.org"}, "a list of hosts"),
    (sandboxctl.run_script, {"script": "x", "network": {"allow": []}}, "a list of hosts"),
]


@pytest.mark.parametrize(("call", "arguments", "right"), CALLS)
def test_wrong_argument_is_a_type_error_that_names_the_right_one(
    call: Callable[..., Any], arguments: dict[str, Any], right: str
) -> None:
    with pytest.raises(TypeError, match=right):
        call(**arguments)


@pytest.mark.parametrize(
    ("call", "arguments", "right"),
    [
        (AsyncSandbox.create, {"template": "base"}, "`image`"),
        (AsyncCommands(unopened).run, {"command": ["ls", "-l"]}, "`args`"),
        (AsyncFiles(unopened).list, {"depth": 1}, "`max_depth`"),
        (sandboxctl.async_exec, {"command": "ls", "argv": []}, r"exec\(\) has no argument `argv`: is it `args`"),
    ],
)
def test_wrong_argument_of_a_coroutine_is_a_type_error_that_names_the_right_one(
    call: Callable[..., Any], arguments: dict[str, Any], right: str
) -> None:
    assert asyncio.iscoroutinefunction(call)
    with pytest.raises(TypeError, match=right):
        asyncio.run(call(**arguments))


@pytest.mark.parametrize(
    ("whose", "name", "right"),
    [
        (FILES, "make_dir", "`mkdir`"),
        (FILES, "rename", "`move`"),
        (FILES, "get_info", "`stat`"),
        (AsyncFiles(unopened), "make_dir", "`mkdir`"),
        (SANDBOX, "is_running", "`get_info`"),
        (SANDBOX, "terminate", "`close`"),
        (SANDBOX, "run_code", "`run_script`"),
        (SANDBOX, "exec_run", r"`commands\.run`"),
        (COMMANDS, "send_stdin", "`background=True`"),
        (PTY, "resize", "the terminal"),
    ],
)
def test_wrong_name_of_a_method_is_a_type_error_that_names_the_right_one(whose: object, name: str, right: str) -> None:
    with pytest.raises(TypeError, match=right):
        getattr(whose, name)
    assert not hasattr(whose, name)


def test_other_names_are_missing_as_anywhere() -> None:
    with pytest.raises(AttributeError, match="'Files' object has no attribute 'nothing'"):
        FILES.nothing  # type: ignore[attr-defined] # noqa: B018
    with pytest.raises(TypeError, match="arguments that are given by their names: recursive, max_depth"):
        FILES.list(".", True)  # type: ignore[misc]


ENTRY = {"name": "a", "path": "/io/a", "type": "file", "size": 1, "modified": None}
LINE = {"name": "a", "path": "/io/a", "line": 1, "text": "x"}


@pytest.mark.parametrize(
    ("read", "data"),
    [
        (results.listed, {"entries": [ENTRY, {**ENTRY, "path": "/io/b"}]}),
        (results.globbed, {"matches": [ENTRY, {**ENTRY, "path": "/io/b"}]}),
        (results.grepped, {"lines": [LINE, {**LINE, "path": "/io/b"}], "matches": 2, "files": 2}),
    ],
)
def test_what_is_found_is_a_sequence(read: Callable[[Answer], Any], data: dict[str, Any]) -> None:
    found = read(Answer({"path": "/io", "truncated": True, **data}))
    assert [each.path for each in found] == ["/io/a", "/io/b"]
    assert (len(found), found[0].path, found[-1].path, found[1:][0].path) == (2, "/io/a", "/io/b", "/io/b")
    assert found[0] in found
    assert found.truncated
    with pytest.raises(IndexError):
        found[2]


def test_listeners_get_text_of_whole_characters_or_the_bytes() -> None:
    content = "aä€😀".encode() + b"\xffz\xe2\x82"
    for size in range(1, len(content) + 1):
        texts: list[str] = []
        pieces: list[bytes] = []
        heard = results.listener(on_stdout=texts.append, on_stderr_bytes=pieces.append)
        assert heard is not None
        for at in range(0, len(content), size):
            text = base64.b64encode(content[at : at + size]).decode()
            for stream in ("stdout", "stderr"):
                heard({"event": "output", "stream": stream, "text": text, "encoding": "base64"})
        heard.end()
        assert "".join(texts) == content.decode("utf-8", "replace"), size
        assert all(texts)
        assert b"".join(pieces) == content


def test_gap_in_an_output_ends_the_character_before_it() -> None:
    texts: list[str] = []
    heard = results.listener(on_stdout=texts.append)
    assert heard is not None
    half = {
        "event": "output",
        "stream": "stdout",
        "text": base64.b64encode(b"a\xe2\x82").decode(),
        "encoding": "base64",
    }
    for event in (half, {"event": "omitted", "bytes": 7}, {"event": "output", "stream": "stdout", "text": "b"}):
        heard(event)
    assert ("".join(texts), heard.missed) == ("a\ufffdb", True)
