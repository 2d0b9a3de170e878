"""Sandboxes of this machine against a stand-in for the binary: its process, and every way in which it ends."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from table import with_half_a_character

from sandboxctl import AsyncSandbox, NotFound, PolicyDenied, Sandbox, SandboxError, SandboxGone
from sandboxctl.errors import error_of

FAKE = Path(__file__).parents[2] / "conformance" / "fake_sandboxctl.py"
SRC = Path(__file__).parent.parent / "src"

Make = Callable[..., str]


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Make]:
    """Makes copies of the stand-in: each is a process of its own."""
    made: list[Path] = []

    def make(mode: str = "", bits: int = 0o755) -> str:
        path = tmp_path / f"sandboxctl-{len(list(tmp_path.iterdir()))}"
        path.write_text(f'#!/bin/sh\nFAKE={mode} FAKE_LOCAL="$0.local" exec {sys.executable} {FAKE} "$@"\n')
        path.chmod(bits)
        made.append(path)
        return str(path)

    yield make
    for path in made:
        if Path(f"{path}.local").exists():
            subprocess.run([path, "local", "stop"], check=True)


def received(sandbox: Sandbox) -> dict:
    """What the process received about a sandbox, and what it is."""
    return json.loads(sandbox.files.read("init"))


def test_sandboxes_share_a_process_and_their_files_do_not_mix(fake: Make, tmp_path: Path) -> None:
    binary = fake()
    with (
        Sandbox.create(binary=binary, io_dir=tmp_path / "out", limits={"memory_bytes": 5}) as one,
        Sandbox.create(binary=binary, network=["example.org"]) as two,
        Sandbox.create(binary=binary, engine="embedded") as other,
    ):
        one.files.write("a", "1")
        assert one.files.read("a") == "1"
        assert not two.files.exists("a")
        assert received(one)["pid"] == received(two)["pid"] != received(other)["pid"]
        spec = received(one)["request"]["spec"]
        assert spec == {"host_dir": str(tmp_path / "out"), "limits": {"memory_bytes": 5}}
        assert received(two)["request"]["spec"] == {"network": {"allow": ["example.org"]}}


def test_sandbox_with_a_name_is_of_the_local_service_where_others_find_it(
    fake: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SANDBOXCTL_SERVER", raising=False)
    binary = fake()
    first = Sandbox.create(
        binary=binary,
        name="web",
        io_dir=tmp_path / "out",
        metadata={"team": "a"},
        envs={"A": "1", "B": b"\xff"},
        timeout=1.5,
        idle="freeze",
        processes="kept",
    )
    assert received(first)["request"] == {
        "name": "web",
        "spec": {"host_dir": str(tmp_path / "out"), "env": {"A": "1", "B": {"b64": "/w=="}}, "processes": "kept"},
        "metadata": {"team": "a"},
        "ttl_ms": 1500,
        "idle": "freeze",
    }
    assert received(first)["arguments"] == ["local", "socket"]
    for which in ("web", first.id):
        found = Sandbox.connect(which, binary=binary)
        found.files.write("a", which)
        assert (found.id, first.files.read("a")) == (first.id, which)
    second = Sandbox.create(binary=binary, name="other")
    assert [info.name for info in Sandbox.list(binary=binary)] == ["web", "other"]
    assert [info.id for info in Sandbox.list(binary=binary, name="web")] == [first.id]
    monkeypatch.setenv("SANDBOXCTL_BINARY", str(binary))
    assert Sandbox.get_info("web").id == Sandbox.get_info(first.id).id == first.id
    programs = Sandbox.create(name="programs", image="i", env={"C": "2"})
    assert received(programs)["request"]["spec"] == {"image": "i", "env": {"C": "2"}, "processes": "kept"}
    assert programs.kill()
    info = Sandbox.connect(second.id, binary=binary).get_info()
    assert (info.status, info.generation, info.processes, info.metadata) == ("ready", 7, 0, {})
    assert Sandbox.kill("web", binary=binary)
    assert not Sandbox.kill("web", binary=binary)
    assert second.kill()
    assert not second.kill()
    assert list(Sandbox.list(binary=binary)) == []
    with pytest.raises(NotFound, match="there is no sandbox 'web'"):
        Sandbox.connect("web", binary=binary)


def test_local_service_that_has_ended_is_started_again(fake: Make) -> None:
    binary = fake()
    sandbox = Sandbox.create(binary=binary, name="a")
    sandbox.files.write("a", "1")
    subprocess.run([binary, "local", "stop"], check=True)
    # The real one has its sandboxes still; the stand-in has forgotten them.
    with pytest.raises(SandboxGone):
        sandbox.files.read("a")
    assert Sandbox.create(binary=binary, name="a").files.read("init")


async def test_local_service_for_asyncio(fake: Make) -> None:
    binary = fake()
    for name in ("a", "b"):
        await AsyncSandbox.create(binary=binary, name=name)
    assert [info.name async for info in AsyncSandbox.list(binary=binary)] == ["a", "b"]
    async with await AsyncSandbox.connect("a", binary=binary) as sandbox:
        assert sandbox.id == "s-a"
    assert await AsyncSandbox.kill("b", binary=binary)
    assert [info async for info in AsyncSandbox.list(binary=binary)] == []


def test_local_service_that_does_not_start_says_why(fake: Make, tmp_path: Path) -> None:
    binary = tmp_path / "sandboxctl"
    for code, kind in ((2, "config"), (1, "engine")):
        binary.write_text(f"#!/bin/sh\necho 'error: another engine: sandboxctl local stop' >&2; exit {code}\n")
        binary.chmod(0o755)
        with pytest.raises(SandboxError, match="another engine: sandboxctl local stop") as failure:
            Sandbox.create(binary=binary, name="a")
        assert failure.value.kind == kind
    with pytest.raises(SandboxError, match="needs protocol 1"):
        Sandbox.list(binary=fake("older")).__next__()


def test_directory_and_archive_for_commands_are_of_the_process(
    fake: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SANDBOXCTL_SERVER", "http://127.0.0.1:1")
    binary, archive = fake(), tmp_path / "x.tar"
    with (
        Sandbox.create(binary=binary, engine="embedded", rootfs="root") as one,
        Sandbox.create(binary=binary, engine="embedded", rootfs=tmp_path / "root") as two,
        Sandbox.create(binary=binary, image_archive="x.tar") as three,
    ):
        private = ["serve", "--private"]
        assert received(one)["arguments"] == ["--engine", "embedded", *private, "--rootfs", str(tmp_path / "root")]
        assert received(one)["pid"] == received(two)["pid"]
        assert received(three)["arguments"] == [*private, "--image-archive", str(archive)]
        assert "spec" not in received(three)["request"] or not received(three)["request"]["spec"]
    for given, message in [
        ({"image": "a", "rootfs": "b"}, "image and rootfs are both given"),
        ({"rootfs": "a", "image_archive": "b"}, "rootfs and image_archive are both given"),
        ({"rootfs": "a", "server": "http://127.0.0.1:1"}, "rootfs is of this machine"),
        ({"image_archive": "a", "server": "http://127.0.0.1:1"}, "image_archive is of this machine"),
    ]:
        with pytest.raises(SandboxError, match=message) as failure:
            Sandbox.create(**given)
        assert failure.value.kind == "usage"


def test_process_gets_no_variables_of_the_client(fake: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOXCTL_BINARY", fake())
    monkeypatch.setenv("SANDBOXCTL_TOKEN", "secret")
    monkeypatch.setenv("SANDBOXCTL_SERVER", "")
    with Sandbox.create() as sandbox:
        names = [name for name in received(sandbox)["env"] if name.startswith("SANDBOXCTL")]
        assert names == ["SANDBOXCTL_PROGRAMS_PULL"]


def test_wrong_arguments_are_refused_with_what_is_expected(fake: Make) -> None:
    with pytest.raises(SandboxError, match="engine: 'podman' is not one of auto, docker, embedded") as failure:
        Sandbox.create(binary=fake(), engine="podman")
    assert (failure.value.kind, failure.value.hint) == ("usage", None)
    with Sandbox.create(binary=fake()) as sandbox:
        for timeout in (-1, 0, float("nan")):
            with pytest.raises(ValueError, match="timeout: seconds above 0"):
                sandbox.run_script("return 1", timeout=timeout)
        with pytest.raises(TypeError, match="text or bytes are expected, not int"):
            sandbox.run_script(5)  # pyright: ignore
        with pytest.raises(TypeError, match=r"content: .* not int"):
            sandbox.files.write("a", 5)  # pyright: ignore


def test_process_that_refuses_its_settings_has_lost_no_sandbox(tmp_path: Path) -> None:
    binary = tmp_path / "sandboxctl"
    binary.write_text("#!/bin/sh\necho 'error: no such setting' >&2; exit 2\n")
    binary.chmod(0o755)
    with pytest.raises(SandboxError, match="no such setting") as failure:
        Sandbox.create(binary=binary)
    assert (failure.value.kind, failure.value.hint) == ("config", None)


def test_text_with_half_of_a_character_is_the_error_encoding(fake: Make) -> None:
    with Sandbox.create(binary=fake()) as sandbox:
        for call in with_half_a_character(sandbox):
            with pytest.raises(SandboxError, match="no Unicode") as failure:
                call()
            assert failure.value.kind == "encoding"
        # No call was left over.
        assert sandbox.files.read("count") == "0"


def test_hints_of_the_command_line_are_in_the_words_of_the_package() -> None:
    for hint, words in [
        (
            "--image (--rootfs or --image-archive on x) selects an image with programs",
            "image= (rootfs= or image_archive= on x) selects",
        ),
        ("--timeout raises the limit", "timeout= raises the limit"),
        ("`offset` reads a part; --max-file-size raises the limit", "`offset` reads a part; limits= raises"),
        ("SANDBOXCTL_A_B, or a.b in ~/.config/sandboxctl/config.toml, raises the limit", "limits= raises the limit"),
        ('start it with `"stdin": true`', "start it with stdin=True"),
        ("create another one", "create another one"),
    ]:
        shown = error_of("limit", "", hint).hint
        assert shown is not None
        assert shown.startswith(words)


def test_large_files_go_in_pieces_both_ways(fake: Make, tmp_path: Path) -> None:
    piece = b"7" * 1_000_000
    big = tmp_path / "big"
    big.write_bytes(piece * 12)
    with Sandbox.create(binary=fake()) as sandbox:
        files = sandbox.files
        assert files.write("pieces", (piece for _ in range(12))).bytes_written == 12_000_000
        assert files.write("bytes", piece * 12).bytes_written == 12_000_000
        with big.open("rb") as file:
            assert files.write("file", file).bytes_written == 12_000_000
        with files.stream("file") as parts:
            assert sum(map(len, parts)) == 12_000_000
        # More than there are slots: each that is left gives its slot back.
        for _ in range(20):
            with files.stream("file") as parts:
                next(parts)
        with pytest.raises(NotFound), files.stream("none") as parts:
            next(parts)


def test_upload_that_is_refused_or_fails_at_its_source_leaves_nothing(fake: Make) -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield b"x" * 100_000

    def broken() -> Iterator[bytes]:
        yield b"x"
        raise ValueError("source")

    with Sandbox.create(binary=fake()) as sandbox:
        with pytest.raises(PolicyDenied):
            sandbox.files.write("refused", endless())
        with pytest.raises(ValueError, match="source"):
            sandbox.files.write("broken", broken())
        assert not sandbox.files.exists("broken")
        with pytest.raises(SandboxError) as failure:
            sandbox.files.write("a", broken(), mode="append")
        assert failure.value.kind == "usage"
        while sandbox.files.read("count") != "0":
            pass


async def until_pending(sandbox: AsyncSandbox, calls: int) -> None:
    """Waits until the process has so many calls that it does not answer."""
    while await sandbox.files.read("count") != str(calls):
        pass


async def test_upload_ends_while_its_source_is_waited_for(fake: Make) -> None:
    async def stuck() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.Event().wait()

    binary = fake()
    async with await AsyncSandbox.create(binary=binary) as sandbox:
        with pytest.raises(PolicyDenied):
            await sandbox.files.write("refused", stuck())
        waiting = asyncio.create_task(sandbox.files.write("a", stuck()))
        await until_pending(sandbox, 1)
        with pytest.raises(SandboxGone):
            await sandbox.files.exists("die")
        with pytest.raises(SandboxGone):
            await waiting


async def test_task_that_is_cancelled_cancels_its_call_and_gives_its_slot_back(fake: Make) -> None:
    async with await AsyncSandbox.create(binary=fake()) as sandbox:
        for _ in range(30):
            heard = asyncio.Event()
            task = asyncio.create_task(sandbox.run_script("wait", on_log=lambda *_, heard=heard: heard.set()))
            await heard.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await until_pending(sandbox, 0)
        # In the line, where it was not sent.
        waiting = [asyncio.create_task(sandbox.files.read("pending")) for _ in range(21)]
        await asyncio.sleep(0)
        waiting[-1].cancel()
        waiting[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting[-1]
        await until_pending(sandbox, 19)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


def test_listener_that_raises_cancels_the_script_and_its_error_is_the_error(fake: Make) -> None:
    def refuse(text: str, level: str) -> None:
        raise KeyError(text)

    with Sandbox.create(binary=fake()) as sandbox:
        with pytest.raises(KeyError, match="waiting"):
            sandbox.run_script("wait", on_log=refuse)
        while sandbox.files.read("count") != "0":
            pass


def test_process_that_is_killed_ends_every_waiting_call_and_the_next_sandbox_has_a_new_one(fake: Make) -> None:
    binary = fake()
    sandbox = Sandbox.create(binary=binary)
    pid = received(sandbox)["pid"]
    with ThreadPoolExecutor(40) as pool:
        # More than there are slots.
        waiting: list[Future] = [pool.submit(sandbox.files.read, "pending") for _ in range(19)]
        waiting += [pool.submit(sandbox.run_script, "wait") for _ in range(20)]
        while sandbox.files.read("count") != "39":
            pass
        os.kill(pid, signal.SIGKILL)
        for each in waiting:
            with pytest.raises(SandboxGone, match="ended with signal 9"):
                each.result()
    with pytest.raises(SandboxGone):
        sandbox.files.read("a")
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    sandbox.close()
    with Sandbox.create(binary=binary) as following:
        following.files.write("a", "1")


def test_process_that_says_nonsense_is_ended(fake: Make) -> None:
    with pytest.raises(SandboxError, match="broke the protocol"):
        Sandbox.create(binary=fake("garbage")).files.read("pending")


def test_closed_sandbox_is_gone_and_what_ran_in_it_is_cancelled(fake: Make) -> None:
    binary = fake()
    with Sandbox.create(binary=binary) as sandbox, ThreadPoolExecutor() as pool, Sandbox.create(binary=binary) as other:
        running = pool.submit(sandbox.run_script, "wait")
        while other.files.read("count") != "1":
            pass
        sandbox.close()
        sandbox.close()
        assert running.result().status == "cancelled"
        for call in (lambda: sandbox.files.read("a"), lambda: sandbox.run_script("return 1")):
            with pytest.raises(SandboxGone) as failure:
                call()
            assert failure.value.kind == "gone"


def test_sandbox_that_the_process_no_longer_has_is_gone(fake: Make) -> None:
    binary = fake()
    first = Sandbox.create(binary=binary, name="same")
    second = Sandbox.create(binary=binary, name="same")
    second.close()
    with pytest.raises(SandboxGone):
        first.files.read("a")
    first.close()


def test_binary_that_is_missing_or_not_executable_is_named_with_how_to_get_it(
    fake: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SANDBOXCTL_SERVER", raising=False)
    monkeypatch.delenv("SANDBOXCTL_BINARY", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    nothing = tmp_path / "nothing"
    nothing.write_text("#!/nonexistent/interpreter\n")
    nothing.chmod(0o755)
    cases = [
        ("/nonexistent/sandboxctl", "does not exist"),
        (str(tmp_path), "is not a file"),
        (fake(bits=0o644), "is not executable"),
        (None, "no sandboxctl beside this package or in PATH"),
    ]
    for binary, how in cases:
        with pytest.raises(SandboxError, match=how) as failure:
            Sandbox.create(binary=binary)
        assert (failure.value.kind, "cargo install" in (failure.value.hint or "")) == ("config", True)
    with pytest.raises(SandboxError, match="cannot be started"):
        Sandbox.create(binary=str(nothing))
    monkeypatch.setenv("SANDBOXCTL_BINARY", "/nonexistent/x")
    with pytest.raises(SandboxError, match="SANDBOXCTL_BINARY: /nonexistent/x does not exist"):
        Sandbox.create()


@pytest.mark.parametrize(("mode", "speaks"), [("older", "no protocol for clients"), ("newer", "protocol 2")])
def test_binary_of_another_protocol_is_refused_with_both_versions(fake: Make, mode: str, speaks: str) -> None:
    with pytest.raises(SandboxError, match=rf"sandboxctl 0\.0\.9, which speaks {speaks}; this client is 0\.1\.0") as it:
        Sandbox.create(binary=fake(mode))
    assert it.value.kind == "config"


def test_process_that_cannot_start_says_why(fake: Make) -> None:
    with pytest.raises(SandboxError, match="ended with exit code 1: error: no engine answers") as failure:
        Sandbox.create(binary=fake("silent-death"))
    assert failure.value.kind == "engine"


def test_errors_are_pickled_for_other_processes(fake: Make) -> None:
    with Sandbox.create(binary=fake()) as sandbox, pytest.raises(NotFound) as failure:
        sandbox.files.read("none")
    again = pickle.loads(pickle.dumps(failure.value))
    assert (type(again), again.kind, str(again)) == (NotFound, "not_found", str(failure.value))


def program(binary: str, source: str) -> subprocess.Popen[bytes]:
    """A program with a sandbox `s` whose process's pid is printed."""
    start = f"""
import json, os, signal, sys, threading
from sandboxctl import Sandbox, SandboxGone
binary = {binary!r}
s = Sandbox.create(binary=binary)
pid = lambda s: json.loads(s.files.read("init"))["pid"]
print(pid(s), flush=True)
"""
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", start + source]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def wait_for_end(pid: int) -> None:
    """Waits until a process is gone, or a zombie of init, which has to reap it."""
    while True:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except (FileNotFoundError, ProcessLookupError):
            return


@pytest.mark.parametrize("end", ["", "sys.exit(0)", "s = None"])
def test_interpreter_that_exits_without_close_ends_its_process(fake: Make, end: str) -> None:
    child = program(fake(), end)
    out, _ = child.communicate()
    assert child.returncode == 0
    # It was waited for: it is gone when the program is.
    assert not Path(f"/proc/{int(out)}").exists()


def test_exit_ends_a_call_that_waits_for_ever(fake: Make) -> None:
    source = "threading.Thread(target=s.run_script, args=('wait',), daemon=True).start()\npid(s)"
    child = program(fake(), source)
    out, _ = child.communicate()
    assert child.returncode == 0
    assert not Path(f"/proc/{int(out)}").exists()


def test_program_that_is_killed_takes_its_process_with_it(fake: Make) -> None:
    child = program(fake(), "sys.stdin.read()")
    assert child.stdout is not None
    pid = int(child.stdout.readline())
    child.kill()
    child.wait()
    wait_for_end(pid)


def test_child_of_a_fork_has_its_own_process_and_holds_none_of_its_parent(fake: Make) -> None:
    source = """
child = os.fork()
if child == 0:
    try:
        s.files.read("init")
    except SandboxGone as error:
        print("gone", flush=True)
    s.close()
    with Sandbox.create(binary=binary) as own:
        print(pid(own) != os.getppid(), pid(own), flush=True)
    sys.exit(0)
os.waitpid(child, 0)
s.files.write("a", "1")
print(s.files.read("a"), pid(s), flush=True)
"""
    child = program(fake(), source)
    out, _ = child.communicate()
    assert child.returncode == 0
    parent, gone, own, after = out.decode().splitlines()
    assert gone == "gone"
    assert own.startswith("True ")
    assert own.split()[1] != parent
    assert after == f"1 {parent}"


def test_fork_that_lives_on_does_not_keep_its_parents_process(fake: Make) -> None:
    source = """
if os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
os.kill(os.getpid(), signal.SIGKILL)
"""
    child = program(fake(), source)
    assert child.stdout is not None
    pid = int(child.stdout.readline())
    child.wait()
    wait_for_end(pid)
    child.communicate()


def test_loop_that_is_closed_and_another_one_use_the_same_process(fake: Make) -> None:
    binary = fake()

    async def once() -> int:
        async with await AsyncSandbox.create(binary=binary) as sandbox:
            return json.loads(await sandbox.files.read("init"))["pid"]

    first = asyncio.run(once())
    pids: list[int] = []
    thread = threading.Thread(target=lambda: pids.append(asyncio.run(once())))
    thread.start()
    thread.join()
    assert pids == [first]


def test_path_is_searched_for_the_binary(fake: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SANDBOXCTL_BINARY", raising=False)
    monkeypatch.delenv("SANDBOXCTL_SERVER", raising=False)
    (tmp_path / "bin").mkdir()
    shutil.copy(fake(), tmp_path / "bin" / "sandboxctl")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    with Sandbox.create() as sandbox:
        assert not sandbox.files.exists("a")
