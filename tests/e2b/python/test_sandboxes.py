"""What programs with E2B's Python SDK do, at sandboxctl serve: scripts/e2b-suite."""

import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path

import pytest
from e2b import (
    CommandExitException,
    NotFoundException,
    PtySize,
    Sandbox,
    SandboxException,
    SandboxQuery,
    TimeoutException,
)


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox.create(timeout=900, metadata={"suite": "own"}, envs={"GIVEN": "to all"}) as sandbox:
        yield sandbox


def test_sandbox_is_listed_shortened_and_killed_once():
    mark = uuid.uuid4().hex
    sandbox = Sandbox.create(timeout=600, metadata={"mark": mark})
    info = sandbox.get_info()
    assert info.metadata["mark"] == mark
    assert 500 < (info.end_at - info.started_at).total_seconds() <= 601
    listed = Sandbox.list(query=SandboxQuery(metadata={"mark": mark}))
    assert sandbox.sandbox_id in [each.sandbox_id for each in listed.next_items()]
    sandbox.set_timeout(60)
    assert sandbox.get_info().end_at < info.end_at
    assert Sandbox.connect(sandbox.sandbox_id).is_running()
    assert sandbox.kill()
    assert not sandbox.is_running()
    assert not sandbox.kill()
    with pytest.raises(TimeoutException):
        sandbox.commands.run("true")


def test_command_has_output_environment_directory_and_exit_code(sandbox):
    heard = []
    ran = sandbox.commands.run(
        "echo $GIVEN $OWN; pwd; echo odd >&2", envs={"OWN": "too"}, cwd="/tmp", on_stdout=heard.append
    )
    assert (ran.stdout, ran.stderr, ran.exit_code) == ("to all too\n/tmp\n", "odd\n", 0)
    assert "".join(heard) == ran.stdout
    with pytest.raises(CommandExitException) as failure:
        sandbox.commands.run("exit 7")
    assert failure.value.exit_code == 7
    with pytest.raises(TimeoutException):
        sandbox.commands.run("sleep 60", timeout=1)


def test_output_is_whole_however_soon_and_however_often_it_is_printed(sandbox):
    sandbox.commands.run("head -c 1200000 /dev/zero | tr '\\0' x > /tmp/much")
    # More than is kept of all commands together, and than one may print before it has a reader.
    for _ in range(70):
        assert len(sandbox.commands.run("cat /tmp/much").stdout) == 1200000


def test_user_is_user_at_home(sandbox):
    assert sandbox.commands.run("whoami; pwd; echo $HOME").stdout.split() == ["user", "/home/user", "/home/user"]
    assert sandbox.commands.run("sudo echo $0").exit_code == 0


def test_process_in_the_background_takes_input_and_is_found_again(sandbox):
    process = sandbox.commands.run("cat", background=True, stdin=True, envs={"OWN": "a b"}, cwd="/tmp")
    [listed] = [each for each in sandbox.commands.list() if each.pid == process.pid]
    assert (listed.args, listed.envs, listed.cwd) == (["-l", "-c", "cat"], {"OWN": "a b"}, "/tmp")
    again = sandbox.commands.connect(process.pid)
    sandbox.commands.send_stdin(process.pid, "a line\n")
    sandbox.commands.close_stdin(process.pid)
    assert again.wait().exit_code == 0
    assert process.wait().stdout == "a line\n"
    sleeping = sandbox.commands.run("sleep 60", background=True)
    assert sleeping.kill()
    assert not sandbox.commands.kill(sleeping.pid)


def test_terminal_is_one(sandbox):
    seen = bytearray()
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80))
    sandbox.pty.send_stdin(terminal.pid, b"tty && exit\n")
    terminal.wait(on_pty=seen.extend)
    assert b"/dev/pts/" in seen


def test_files_are_written_read_listed_moved_and_removed(sandbox):
    # More than other sandboxes take at once by default.
    content = bytes(range(256)) * (12 << 12)
    sandbox.files.write("deep/er/data.bin", content)
    assert bytes(sandbox.files.read("/home/user/deep/er/data.bin", format="bytes")) == content
    sandbox.files.write("/tmp/elsewhere", "é\n")
    assert sandbox.commands.run("cat /tmp/elsewhere").stdout == "é\n"
    info = sandbox.files.get_info("deep/er/data.bin")
    assert (info.size, info.owner, info.group, info.permissions) == (len(content), "user", "user", "-rw-r--r--")
    sandbox.files.rename("deep/er/data.bin", "moved/data.bin")
    assert [each.name for each in sandbox.files.list("moved")] == ["data.bin"]
    assert not sandbox.files.exists("deep/er/data.bin")
    sandbox.files.remove("moved")
    with pytest.raises(NotFoundException):
        sandbox.files.read("moved/data.bin")


def test_files_of_the_kernel_are_read_and_listed(sandbox):
    assert sandbox.files.read("/proc/version") == sandbox.commands.run("cat /proc/version").stdout
    assert sandbox.files.read("/dev/null") == ""
    assert sandbox.files.get_info("/proc/cpuinfo").name == "cpuinfo"
    assert sandbox.files.exists("/proc/1/mem")
    assert not sandbox.files.exists("/proc/nothing")
    assert {"self", "meminfo"} <= {each.name for each in sandbox.files.list("/proc")}
    assert "shm" in [each.name for each in sandbox.files.list("/dev")]


def test_files_move_between_the_home_and_tmp(sandbox):
    sandbox.files.write("/tmp/out/deep/a.txt", "a")
    sandbox.files.rename("/tmp/out", "in")
    assert sandbox.files.read("in/deep/a.txt") == "a"
    sandbox.files.rename("in/deep/a.txt", "/tmp/a.txt")
    assert sandbox.files.read("/tmp/a.txt") == "a"
    assert not sandbox.files.exists("/tmp/out")
    assert not sandbox.files.exists("in/deep/a.txt")


def test_watch_tells_of_a_file_that_was_just_written(sandbox):
    sandbox.files.make_dir("watched")
    watch = sandbox.files.watch_dir("watched")
    sandbox.files.write("watched/new", "1")
    assert {event.name for event in watch.get_new_events()} == {"new"}
    watch.stop()


def test_signed_url_is_enough_for_its_file_alone(sandbox):
    sandbox.files.write("shared.txt", "for you")
    url = sandbox.download_url("shared.txt", use_signature_expiration=60)
    with urllib.request.urlopen(url) as answer:
        assert answer.read() == b"for you"
    with pytest.raises(urllib.error.HTTPError) as refusal:
        urllib.request.urlopen(url.replace("shared.txt", "other.txt"))
    assert refusal.value.code == 401


def test_what_is_not_offered_is_refused_at_once(sandbox):
    since = time.monotonic()
    with pytest.raises(SandboxException):
        sandbox.create_snapshot()
    # Its SDK would wait a minute for an answer.
    assert time.monotonic() - since < 30


def test_example_of_the_guide_prints_its_total():
    example = Path(__file__).parents[3] / "examples/with_e2b.py"
    assert subprocess.run([sys.executable, example], capture_output=True, check=True).stdout == b"6\n"


def test_paused_sandbox_resumes_with_its_processes():
    with Sandbox.create(timeout=900) as sandbox:
        process = sandbox.commands.run("sleep 900", background=True)
        assert sandbox.pause()
        assert Sandbox.connect(sandbox.sandbox_id).commands.run(f"kill -0 {process.pid}").exit_code == 0
