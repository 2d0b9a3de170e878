"""OpenAI Agents: a sandbox client, whose sessions are sandboxes.

What the OpenAI Agents SDK (0.24) asks of a `BaseSandboxClient` and its `BaseSandboxSession`, and what these do:

- `client.create(options=…, manifest=…, snapshot=…)` creates the sandbox; `session.start()` puts the manifest's entries
  into its workspace, which is `/io`: a manifest with the SDK's own default, `/workspace`, gets that root.
- `exec` gives bytes and an exit code, 127 for a program that does not exist, or raises `ExecTimeoutError` when the
  program and all that it started are dead, `ExecTransportError` if the sandbox is at fault. Programs have the
  manifest's environment. There is one user: a `user` is a `ConfigurationError`.
- `read` and `write` take paths in the workspace. Where they lead is asked in the sandbox first, with the SDK's own
  helper, so that a link out of the workspace is refused as the SDK has it.
- `persist_workspace` and `hydrate_workspace` are a tar of the workspace, for the SDK's snapshots.
- `shutdown` leaves the sandbox, `delete` removes it. `resume` finds it by its name, with its files; if it
  is gone there is a new one, which gets its files from the snapshot.
- No PTY and no exposed ports: nothing connects into a sandbox.

The image needs `sh`, `ls`, `cp`, `mkdir`, `rm`, and `tar` for snapshots.
"""

from __future__ import annotations

import io
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from agents.sandbox.errors import (
    ConfigurationError,
    ErrorCode,
    ExecNonZeroError,
    ExecTimeoutError,
    ExecTransportError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceWriteTypeError,
)
from agents.sandbox.manifest import Manifest
from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
from agents.sandbox.session.manager import Instrumentation
from agents.sandbox.session.runtime_helpers import RESOLVE_WORKSPACE_PATH_HELPER, RuntimeHelperScript
from agents.sandbox.session.sandbox_client import BaseSandboxClient, BaseSandboxClientOptions
from agents.sandbox.session.sandbox_session import SandboxSession
from agents.sandbox.session.sandbox_session_state import SandboxSessionState
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot
from agents.sandbox.types import ExecResult, User
from agents.sandbox.util.tar_utils import UnsafeTarMemberError, validate_tar_bytes

from sandboxctl import AsyncSandbox, SandboxError

from ._async_guest import AsyncGuest
from ._guest import IO_DIR, staged_path

if TYPE_CHECKING:
    from agents.sandbox.session.dependencies import Dependencies

__all__ = ["SandboxctlClient", "SandboxctlClientOptions", "SandboxctlSession", "SandboxctlSessionState"]

# The root of a manifest that names none.
_DEFAULT_ROOT = "/workspace"


class SandboxctlClientOptions(BaseSandboxClientOptions):
    """What a sandbox is like: arguments of `AsyncSandbox.create`."""

    type: Literal["sandboxctl"] = "sandboxctl"  # pyright: ignore[reportIncompatibleVariableOverride]
    image: str
    """The image that commands run in."""
    limits: dict[str, int | float] | None = None
    """The limits that differ from the defaults."""
    network: list[str] | None = None
    """The hosts that commands may reach; none by default."""


class SandboxctlSessionState(SandboxSessionState):
    """What is kept of a session, to go on with it later."""

    type: Literal["sandboxctl"] = "sandboxctl"  # pyright: ignore[reportIncompatibleVariableOverride]
    sandbox_id: str
    image: str
    limits: dict[str, int | float] | None = None
    network: list[str] | None = None


class SandboxctlSession(BaseSandboxSession):
    """A sandbox, as the SDK sees it."""

    def __init__(self, state: SandboxctlSessionState, sandbox: AsyncSandbox) -> None:
        self.state: SandboxctlSessionState = state  # pyright: ignore[reportIncompatibleVariableOverride]
        self._sandbox = sandbox
        self._guest = AsyncGuest(sandbox)
        self._closed = False
        self._environment: dict[str, str] | None = None

    async def close_sandbox(self) -> None:
        """Removes the sandbox."""
        self._closed = True
        await self._sandbox.close()

    async def running(self) -> bool:
        """Whether the sandbox is there."""
        if self._closed:
            return False
        try:
            await self._sandbox.files.exists(".")
        except SandboxError:
            return False
        return True

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        """Reads a file of the workspace."""
        self._refuse_user(user, "read")
        where = await self._validate_path_access(path)
        try:
            return io.BytesIO(await self._guest.read(where.as_posix()))
        except SandboxError as error:
            if error.kind == "not_found":
                raise WorkspaceReadNotFoundError(path=path, cause=error) from error
            raise WorkspaceArchiveReadError(path=path, context={"reason": error.kind}, cause=error) from error

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        """Writes a file of the workspace, with its directories, as a whole."""
        self._refuse_user(user, "write")
        where = await self._validate_path_access(path, for_write=True)
        content: object = data.read()
        if isinstance(content, str):
            content = content.encode()
        if not isinstance(content, bytes | bytearray):
            raise WorkspaceWriteTypeError(path=where, actual_type=type(content).__name__)
        try:
            await self._guest.write(where.as_posix(), bytes(content))
        except SandboxError as error:
            raise WorkspaceArchiveWriteError(path=where, context={"reason": error.kind}, cause=error) from error

    async def persist_workspace(self) -> io.IOBase:
        """The workspace as a tar."""
        root = self._workspace_root_path()
        archive = staged_path()
        skipped = sorted(path.as_posix() for path in self._persist_workspace_skip_relpaths())
        excluded = [f"--exclude=./{path}" for path in [*skipped, archive.removeprefix(f"{IO_DIR}/")]]
        try:
            await self._exec_checked_nonzero("tar", "--no-wildcards", *excluded, "-cf", archive, "-C", str(root), ".")
            return io.BytesIO(await self._sandbox.files.read_bytes(archive))
        except (SandboxError, ExecNonZeroError) as error:
            raise WorkspaceArchiveReadError(path=root, cause=error) from error
        finally:
            await self._sandbox.files.remove(archive, force=True)

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Puts the files of a tar into the workspace."""
        root = self._workspace_root_path()
        content: object = data.read()
        if not isinstance(content, bytes | bytearray):
            raise WorkspaceWriteTypeError(path=root, actual_type=type(content).__name__)
        archive = staged_path()
        try:
            validate_tar_bytes(bytes(content), allow_external_symlink_targets=False)
            await self._sandbox.files.write(archive, bytes(content))
            await self._exec_checked_nonzero("tar", "--no-same-owner", "-xf", archive, "-C", str(root))
        except UnsafeTarMemberError as error:
            context = {"reason": error.reason, "member": error.member}
            raise WorkspaceArchiveWriteError(path=root, context=context, cause=error) from error
        except (SandboxError, ExecNonZeroError) as error:
            raise WorkspaceArchiveWriteError(path=root, cause=error) from error
        finally:
            await self._sandbox.files.remove(archive, force=True)

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        program, *args = (str(word) for word in command)
        if self._environment is None:
            self._environment = await self.state.manifest.environment.resolve()
        try:
            ended = await self._guest.run(
                program, *args, cwd=self.state.manifest.root, env=self._environment, timeout=timeout
            )
        except SandboxError as error:
            raise ExecTransportError(
                command=command, context={"reason": error.kind}, cause=error, retryable=error.retryable
            ) from error
        if ended.kind == "timeout":
            raise ExecTimeoutError(command=command, timeout_s=timeout)
        if ended.code is None:
            raise ExecTransportError(command=command, context={"reason": ended.kind or "unknown"}, message=ended.reason)
        stderr = ended.stderr + (f"{ended.reason}\n".encode() if ended.reason else b"")
        return ExecResult(stdout=ended.stdout, stderr=stderr, exit_code=ended.code)

    def _prepare_exec_command(
        self, *command: str | Path, shell: bool | list[str], user: str | User | None
    ) -> list[str]:
        self._refuse_user(user, "exec")
        return super()._prepare_exec_command(*command, shell=shell, user=None)

    async def _validate_path_access(self, path: Path | str, *, for_write: bool = False) -> Path:
        return await self._validate_remote_path_access(path, for_write=for_write)

    def _runtime_helpers(self) -> tuple[RuntimeHelperScript, ...]:
        return (RESOLVE_WORKSPACE_PATH_HELPER,)

    def _should_compute_snapshot_fingerprint_on_persist(self) -> bool:
        # It is for sandboxes that are found again with files of a later time than the snapshot's.
        return False

    def _refuse_user(self, user: str | User | None, operation: Literal["exec", "read", "write"]) -> None:
        if user is not None:
            name = user.name if isinstance(user, User) else user
            raise ConfigurationError(
                message=f"a sandbox has one user: `{operation}` must be called without `user`",
                error_code=ErrorCode.SANDBOX_CONFIG_INVALID,
                op=operation,
                context={"backend": "sandboxctl", "user": name},
            )


class SandboxctlClient(BaseSandboxClient[SandboxctlClientOptions]):
    """Sandboxes of a server, by default that of `SANDBOXCTL_SERVER`, else of this machine, where they end with the
    program. No state of a session has the token."""

    backend_id = "sandboxctl"

    def __init__(
        self,
        *,
        server: str | None = None,
        token: str | None = None,
        binary: str | None = None,
        engine: str | None = None,
        instrumentation: Instrumentation | None = None,
        dependencies: Dependencies | None = None,
    ) -> None:
        super().__init__()
        named: dict[str, Any] = {"server": server, "token": token, "binary": binary, "engine": engine}
        self._connection = {name: value for name, value in named.items() if value is not None}
        self._instrumentation = instrumentation or Instrumentation()
        self._dependencies = dependencies

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: SandboxctlClientOptions,
    ) -> SandboxSession:
        """Creates a sandbox."""
        manifest = self._validate_manifest_for_create(_rooted(manifest))
        session_id = uuid.uuid4()
        sandbox = await self._sandbox(session_id, options.image, options.limits, options.network)
        state = SandboxctlSessionState(
            session_id=session_id,
            snapshot=resolve_snapshot(snapshot, str(session_id)),
            manifest=manifest,
            sandbox_id=sandbox.id,
            image=options.image,
            limits=options.limits,
            network=options.network,
        )
        return self._wrap_session(SandboxctlSession(state, sandbox), instrumentation=self._instrumentation)

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """Removes the sandbox of a session."""
        await _inner(session).close_sandbox()
        return session

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """Goes on with a session."""
        if not isinstance(state, SandboxctlSessionState):
            raise TypeError("SandboxctlClient.resume expects a SandboxctlSessionState")
        state.assert_path_grants_rebound()
        sandbox = await self._sandbox(state.session_id, state.image, state.limits, state.network)
        found = sandbox.id == state.sandbox_id
        if not found:
            state.sandbox_id = sandbox.id
            state.workspace_root_ready = False
        session = SandboxctlSession(state, sandbox)
        session._set_start_state_preserved(found, system=True)  # pyright: ignore[reportPrivateUsage]
        return self._wrap_session(session, instrumentation=self._instrumentation)

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        """Reads what is kept of a session."""
        return self._deserialize_session_state_payload(payload, SandboxctlSessionState)

    async def _sandbox(
        self,
        session_id: uuid.UUID,
        image: str,
        limits: dict[str, int | float] | None,
        network: list[str] | None,
    ) -> AsyncSandbox:
        return await AsyncSandbox.create(
            image=image, limits=limits, network=network, name=f"openai-agents-{session_id}", **self._connection
        )


def _inner(session: SandboxSession) -> SandboxctlSession:
    inner = session._inner  # pyright: ignore[reportPrivateUsage]
    if not isinstance(inner, SandboxctlSession):
        raise TypeError("SandboxctlClient.delete expects a session of its own")
    return inner


def _rooted(manifest: Manifest | None) -> Manifest:
    if manifest is None:
        return Manifest(root=IO_DIR)
    if manifest.root == _DEFAULT_ROOT:
        return manifest.model_copy(update={"root": IO_DIR})
    if manifest.root != IO_DIR and not manifest.root.startswith(IO_DIR + "/"):
        raise ConfigurationError(
            message=f"the workspace of a sandbox is {IO_DIR}, and the manifest's root is {manifest.root}",
            error_code=ErrorCode.SANDBOX_CONFIG_INVALID,
            op="start",
            context={"backend": "sandboxctl", "root": manifest.root},
        )
    return manifest
