"""The client at every place: each engine, on this machine and at a server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import sandboxctl
from sandboxctl import AsyncSandbox, LimitExceeded, NotFound, PolicyDenied, Sandbox, SandboxError, SandboxGone, Timeout


@pytest.fixture(scope="module")
def sandbox(place: dict[str, Any]) -> Iterator[Sandbox]:
    with Sandbox.create(**place) as sandbox:
        yield sandbox


def test_files_are_written_read_and_found(sandbox: Sandbox) -> None:
    files = sandbox.files
    files.write("d/a.txt", "one\ntwo\n")
    files.write("/io/d/b.bin", bytes(range(256)))
    assert files.read("d/a.txt") == "one\ntwo\n"
    assert files.read_bytes("d/b.bin") == bytes(range(256))
    listed = files.list("d")
    assert [entry.name for entry in listed] == ["a.txt", "b.bin"]
    assert (len(listed), listed[-1].name, listed.truncated) == (2, "b.bin", False)
    assert [match.path for match in files.glob("**/*.txt")] == ["/io/d/a.txt"]
    assert [(line.line, line.text) for line in files.grep("tw.", "d")] == [(2, "two")]
    assert files.edit("d/a.txt", "two", "three").replacements == 1
    assert files.stat("d/a.txt").size == 10
    assert files.copy("d", "e", recursive=True).entries == 3
    files.move("e/a.txt", "e/c.txt")
    assert files.exists("e/c.txt")
    assert not files.exists("e/a.txt")
    assert files.remove("e", recursive=True).removed
    assert files.mkdir("e").created
    assert files.touch("e/f", mtime="2026-11-22T06:11:28Z").created
    assert files.stat("e/f").modified == "2026-11-22T06:11:28Z"
    with files.stream("d/b.bin") as parts:
        assert b"".join(parts) == bytes(range(256))


def test_names_that_are_not_utf8_are_bytes(sandbox: Sandbox) -> None:
    sandbox.files.write(b"n\xff.txt", "x")
    assert sandbox.files.read(b"n\xff.txt") == "x"
    assert b"/io/n\xff.txt" in [entry.path_bytes for entry in sandbox.files.list().entries]
    # As `os` decodes it.
    assert sandbox.files.read("n\udcff.txt") == "x"
    sandbox.files.move(b"n\xff.txt", b"m\xff.txt")
    sandbox.files.copy(b"m\xff.txt", b"o\xff.txt")
    sandbox.files.remove(b"m\xff.txt")
    sandbox.files.remove(b"o\xff.txt")


def test_errors_have_a_class_and_a_kind(sandbox: Sandbox, place: dict[str, Any]) -> None:
    with pytest.raises(NotFound) as failure:
        sandbox.files.read("none")
    assert failure.value.kind == "not_found"
    with pytest.raises(PolicyDenied) as failure:
        sandbox.files.stat("/etc/passwd")
    assert failure.value.kind == "path_escape"
    sandbox.files.write("bin", b"\xff")
    with pytest.raises(SandboxError) as failure:
        sandbox.files.read("bin")
    assert failure.value.kind == "encoding"
    with pytest.raises(SandboxError) as failure:
        Sandbox.create(**place, limits={"no_such_limit": 1})
    assert failure.value.kind == "invalid_request"


def test_command_that_fails_is_a_result_unless_it_is_checked(sandbox: Sandbox) -> None:
    run = sandbox.commands.run
    result = run("echo $A; cat; pwd; exit 3", env={"A": "b"}, stdin="in\n", cwd="/")
    assert (result.status, result.exit_code, result.stdout) == ("exit", 3, "b\nin\n/\n")
    result = run("echo", ["$A", b"\xff"])
    assert (result.status, result.stdout_bytes) == ("ok", b"$A \xff\n")
    with pytest.raises(SandboxError):
        run("exit 3", check=True)
    with pytest.raises(Timeout):
        run("sleep 60", timeout=0.2, check=True)
    assert run("no-such-program", []).error.kind == "command_not_found"  # type: ignore[union-attr]


def test_output_is_heard_while_the_command_runs(sandbox: Sandbox) -> None:
    heard: list[str] = []
    said: list[bytes] = []
    go_on = lambda part: (heard.append(part), sandbox.files.write("go", ""))  # noqa: E731
    command = "echo one; until [ -e go ]; do :; done; printf '\\377' >&2"
    result = sandbox.commands.run(command, on_stdout=go_on, on_stderr_bytes=said.append, timeout=20)
    assert (heard, said, result.stderr) == (["one\n"], [b"\xff"], "\ufffd")


def test_listener_of_this_machine_misses_nothing_of_fast_output(sandbox: Sandbox, place: dict[str, Any]) -> None:
    heard = 0

    def hear(piece: bytes) -> None:
        nonlocal heard
        heard += len(piece)

    result = sandbox.commands.run("head -c 20000000 /dev/zero", on_stdout_bytes=hear, timeout=60)
    assert result.missed == ("server" in place)
    assert heard == 20_000_000 or result.missed


def test_handle_kills_its_command(sandbox: Sandbox) -> None:
    handle = sandbox.commands.start("sleep 60")
    handle.kill()
    assert handle.wait().status == "cancelled"
    handle.kill()


def test_script_returns_its_result(sandbox: Sandbox) -> None:
    result = sandbox.run_script("print('hello') return {sum = args.a + 1}", {"a": 41})
    assert (result.status, result.result, result.logs) == ("ok", {"sum": 42}, ["hello"])
    result = sandbox.run_script("error('no')")
    assert (result.status, result.result) == ("script_error", None)
    with pytest.raises(LimitExceeded):
        sandbox.run_script("local t = {} while true do t[#t + 1] = string.rep('x', 1e6) .. #t end", check=True)


def test_calls_of_many_threads_do_not_disturb_each_other(sandbox: Sandbox) -> None:
    results: list[str] = []
    threads = [
        threading.Thread(target=lambda n=n: results.append(sandbox.commands.run("echo", [str(n)]).stdout.strip()))
        for n in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(int, results)) == list(range(20))


async def test_cancelled_task_ends_its_command(place: dict[str, Any]) -> None:
    async with await AsyncSandbox.create(**place) as sandbox:
        task = asyncio.create_task(sandbox.commands.run("touch begun; sleep 61.5", timeout=100))
        while not await sandbox.files.exists("begun"):
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        result = await sandbox.commands.run("for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $f; echo; done")
        assert "sleep 61.5\n" not in result.stdout.replace(" \n", "\n")


def test_closed_sandbox_is_gone_and_is_found_by_its_name_until_then(place: dict[str, Any]) -> None:
    first = Sandbox.create(**place, name="of-tests")
    first.files.write("kept", "x")
    second = Sandbox.create(**place, name="of-tests")
    assert second.id == first.id
    assert second.files.read("kept") == "x"
    second.close()
    second.close()
    with pytest.raises(SandboxGone):
        first.files.read("kept")
    first.close()


def test_name_is_found_by_another_program(place: dict[str, Any]) -> None:
    program = """
import json, sys
from sandboxctl import Sandbox, SandboxError
place = json.loads(sys.argv[1])
try:
    with Sandbox.create(**place, name="of-two") as sandbox:
        print(sandbox.files.read("a") if sandbox.files.exists("a") else "another")
except SandboxError as error:
    print(error.kind)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(sandboxctl.__file__).parents[1])}

    def other() -> str:
        command = [sys.executable, "-c", program, json.dumps(place)]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.strip()

    sandbox = Sandbox.create(**place, name="of-two")
    sandbox.files.write("a", "found")
    assert other() == "found"
    sandbox.close()
    assert other() == "another"


def test_what_runs_in_a_sandbox_ends_when_it_is_closed(place: dict[str, Any]) -> None:
    with Sandbox.create(**place) as sandbox:
        sandbox.commands.start("sleep 500", timeout=500)


def test_one_shots_have_a_sandbox_of_their_own(place: dict[str, Any]) -> None:
    result = sandboxctl.run_script("return args.a + 1", {"a": 41}, limits={"write_bytes": 1000}, timeout=5, **place)
    assert result.result == 42
    assert result.limits is not None
    assert (result.limits["write_bytes"], result.limits["timeout_ms"]) == (1000, 5000)
    heard: list[str] = []
    ended = sandboxctl.exec("cat; exit 3", stdin="in", on_stdout=heard.append, **place)
    assert (ended.status, ended.exit_code, "".join(heard)) == ("exit", 3, "in")
    with pytest.raises(SandboxError):
        sandboxctl.exec("false", [], check=True, **place)


async def test_one_shots_for_asyncio(place: dict[str, Any]) -> None:
    results = await asyncio.gather(*(sandboxctl.async_run_script(f"return {n}", **place) for n in range(5)))
    assert [result.result for result in results] == [0, 1, 2, 3, 4]
    assert (await sandboxctl.async_exec("echo", ["a"], **place)).stdout == "a\n"


def test_io_dir_is_of_this_machine_alone(place: dict[str, Any], tmp_path: Path) -> None:
    if "server" in place:
        with pytest.raises(SandboxError, match="io_dir") as failure:
            Sandbox.create(**place, io_dir=tmp_path)
        assert failure.value.kind == "usage"
    else:
        with Sandbox.create(**place, io_dir=tmp_path) as sandbox:
            sandbox.files.write("a", "1")
        assert (tmp_path / "a").read_text() == "1"


def test_wrong_token_is_refused_and_is_not_in_the_error(place: dict[str, Any]) -> None:
    if "token" not in place:
        pytest.skip("of a server over TCP")
    wrong = place["token"][:-1] + "x"
    with pytest.raises(SandboxError) as failure:
        Sandbox.create(**{**place, "token": wrong})
    assert (failure.value.kind, failure.value.status) == ("unauthenticated", 401)
    assert wrong not in f"{failure.value!r}{failure.value}"


def test_time_limits_say_whose_they_are(sandbox: Sandbox) -> None:
    with pytest.raises(Timeout) as failure:
        sandbox.run_script("while true do end", timeout=0.2, check=True)
    assert (failure.value.owner, failure.value.result.status) == ("execution", "timeout")


def test_process_that_is_killed_ends_what_waits_and_leaves_nothing(place: dict[str, Any], tmp_path: Path) -> None:
    if "server" in place:
        pytest.skip("of this machine")
    # One of its own: the process of the others lives on.
    own = tmp_path / "sandboxctl"
    own.symlink_to(place["binary"])
    options = {**place, "binary": own}
    before = children()
    sandbox = Sandbox.create(**options)
    [pid] = children() - before
    begun = threading.Event()
    with ThreadPoolExecutor() as pool:
        running = [
            pool.submit(sandbox.run_script, "print('up') while true do end", on_log=lambda *_: begun.set())
            for _ in range(2)
        ]
        begun.wait()
        os.kill(pid, signal.SIGKILL)
        for each in running:
            with pytest.raises(SandboxGone, match="signal 9"):
                each.result()
    assert not Path(f"/proc/{pid}").exists()
    with Sandbox.create(**options) as following:
        assert following.run_script("return 1").result == 1


def children() -> set[int]:
    """The processes of this program."""
    tasks = Path("/proc/self/task").iterdir()
    return {int(pid) for task in tasks for pid in (task / "children").read_text().split()}
