"""Sandboxes for untrusted code: files, commands and scripts, on this machine or at a server.

`Sandbox` and `AsyncSandbox` have the same methods. `run_script` and `exec`, `async_run_script` and `async_exec` run
something in a sandbox of its own. A command or a script that fails is a result; everything else that goes wrong is a
`SandboxError`.
"""

from ._async.files import AsyncFiles
from ._async.interpreter import AsyncInterpreter
from ._async.ports import AsyncPorts
from ._async.process import AsyncProcess, AsyncPty, AsyncTerminal
from ._async.sandbox import AsyncCommandHandle, AsyncCommands, AsyncSandbox, async_exec, async_run_script
from ._core.code import CodeContext, CodeError, CodeRun, CodeValue
from ._core.forward import Forward
from ._core.requests import Limits
from ._core.version import VERSION as __version__
from ._core.wire import LimitsRequest
from ._sync.files import Files
from ._sync.interpreter import Interpreter
from ._sync.ports import Ports
from ._sync.process import Process, Pty, Terminal
from ._sync.sandbox import CommandHandle, Commands, Sandbox, exec, run_script
from .errors import LimitExceeded, NotFound, PolicyDenied, SandboxError, SandboxGone, ServerBusy, Timeout
from .results import (
    CommandResult,
    Copied,
    Created,
    Edited,
    Entry,
    FileChange,
    Globbed,
    Grepped,
    Line,
    Listed,
    Match,
    Moved,
    Removed,
    ScriptResult,
    Stat,
    Touched,
    Written,
)
from .views import ListeningPort, Preview, ProcessEvent, ProcessInfo, SandboxInfo

__all__ = [
    "AsyncCommandHandle",
    "AsyncCommands",
    "AsyncFiles",
    "AsyncInterpreter",
    "AsyncPorts",
    "AsyncProcess",
    "AsyncPty",
    "AsyncSandbox",
    "AsyncTerminal",
    "CodeContext",
    "CodeError",
    "CodeRun",
    "CodeValue",
    "CommandHandle",
    "CommandResult",
    "Commands",
    "Copied",
    "Created",
    "Edited",
    "Entry",
    "FileChange",
    "Files",
    "Forward",
    "Globbed",
    "Grepped",
    "Interpreter",
    "LimitExceeded",
    "Limits",
    "LimitsRequest",
    "Line",
    "Listed",
    "ListeningPort",
    "Match",
    "Moved",
    "NotFound",
    "PolicyDenied",
    "Ports",
    "Preview",
    "Process",
    "ProcessEvent",
    "ProcessInfo",
    "Pty",
    "Removed",
    "Sandbox",
    "SandboxError",
    "SandboxGone",
    "SandboxInfo",
    "ScriptResult",
    "ServerBusy",
    "Stat",
    "Terminal",
    "Timeout",
    "Touched",
    "Written",
    "__version__",
    "async_exec",
    "async_run_script",
    "exec",
    "run_script",
]
