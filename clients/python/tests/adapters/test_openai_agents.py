"""The OpenAI Agents client: the SDK's lifecycle, its file and shell calls, snapshots, and a run of an agent."""

from __future__ import annotations

import io
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from agents.sandbox.entries import Dir, File
from agents.sandbox.errors import (
    ConfigurationError,
    ExecTimeoutError,
    InvalidManifestPathError,
    WorkspaceReadNotFoundError,
)
from agents.sandbox.manifest import Environment, Manifest
from agents.sandbox.session.sandbox_session import SandboxSession
from agents.sandbox.snapshot import LocalSnapshotSpec

from sandboxctl.adapters.openai_agents import SandboxctlClient, SandboxctlClientOptions

OPTIONS = SandboxctlClientOptions(image=os.environ["CLIENTS_TEST_IMAGE"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def session() -> AsyncIterator[SandboxSession]:
    client = SandboxctlClient()
    manifest = Manifest(
        entries={"docs": Dir(children={"a.txt": File(content=b"alpha\n")})},
        environment=Environment(value={"WHO": "ada"}),
    )
    session = await client.create(manifest=manifest, options=OPTIONS)
    async with session:
        yield session
    await client.delete(session)
    assert not await session.running()


async def test_manifest_is_the_workspace(session: SandboxSession) -> None:
    assert session.state.manifest.root == "/io"
    assert (await session.read(Path("docs/a.txt"))).read() == b"alpha\n"
    result = await session.exec("pwd; cat docs/a.txt; echo $WHO")
    assert (result.exit_code, result.stdout) == (0, b"/io\nalpha\nada\n")


async def test_outputs_and_exit_code_are_the_commands_own(session: SandboxSession) -> None:
    result = await session.exec("printf '\\377'; echo no >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code) == (b"\xff", b"no\n", 3)
    assert (await session.exec("no-such-program", shell=False)).exit_code == 127


async def test_timeout_is_raised_when_the_command_is_dead(session: SandboxSession) -> None:
    with pytest.raises(ExecTimeoutError):
        await session.exec("sleep 31.5", timeout=0.5)
    assert b"31.5" not in (await session.exec("ps", "ax", shell=False)).stdout


async def test_files_are_written_listed_moved_and_removed(session: SandboxSession) -> None:
    await session.write(Path("b/c.bin"), io.BytesIO(b"\x00\xff"))
    assert (await session.read(Path("/io/b/c.bin"))).read() == b"\x00\xff"
    assert await session.read_bounded(Path("b/c.bin"), max_bytes=1) == b"\x00"
    assert [entry.path for entry in await session.ls("b") if entry.path.endswith("c.bin")]
    await session.mkdir("b/d", parents=True)
    await session.mv("b/c.bin", "b/e.bin")
    assert await session.same_file("b/e.bin", "/io/b/e.bin")
    with pytest.raises(WorkspaceReadNotFoundError):
        await session.read(Path("b/c.bin"))
    await session.rm("b", recursive=True)
    assert not (await session.exec("test -e b")).ok()


async def test_patch_is_applied(session: SandboxSession) -> None:
    await session.apply_patch({"type": "create_file", "path": "p.txt", "diff": "+one\n+two\n"})
    await session.apply_patch({"type": "update_file", "path": "p.txt", "diff": "@@\n one\n-two\n+three\n"})
    assert (await session.read(Path("p.txt"))).read().decode().split() == ["one", "three"]


async def test_paths_and_links_out_of_the_workspace_are_refused(session: SandboxSession) -> None:
    for path in ("/etc/passwd", "../etc/passwd"):
        with pytest.raises(InvalidManifestPathError):
            await session.read(Path(path))
    await session.exec("ln -s /etc/passwd out; ln -s docs/a.txt in")
    with pytest.raises(InvalidManifestPathError):
        await session.read(Path("out"))
    assert (await session.read(Path("in"))).read() == b"alpha\n"


async def test_another_user_is_refused(session: SandboxSession) -> None:
    with pytest.raises(ConfigurationError):
        await session.exec("id", user="root")


async def test_other_root_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="/io"):
        await SandboxctlClient().create(manifest=Manifest(root="/elsewhere"), options=OPTIONS)


async def test_snapshot_brings_the_workspace_into_another_sandbox(tmp_path: Path) -> None:
    client = SandboxctlClient()
    session = await client.create(options=OPTIONS, snapshot=LocalSnapshotSpec(base_path=tmp_path))
    async with session:
        await session.exec("mkdir -p d; echo kept > d/f; ln -s d/f link; chmod 700 d")
    await client.delete(session)
    state = client.deserialize_session_state(client.serialize_session_state(session.state))
    resumed = await client.resume(state)
    async with resumed:
        result = await resumed.exec("cat link; ls -ld d | cut -c1-10; ls -A")
        assert result.stdout == b"kept\ndrwx------\nd\nlink\n"
    await client.delete(resumed)
