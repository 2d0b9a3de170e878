"""Names that users of other products type: a call with one of them says what it is called here.

An argument that does not exist is a `TypeError`, and so is a method that does not exist but has another name.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, Final, NoReturn, TypeVar, cast

__all__ = ["named", "worded"]

Function = TypeVar("Function", bound=Callable[..., Any])
Class = TypeVar("Class", bound=type)

# What others call an argument, by its name here, and who has it.
_ARGUMENTS: Final = {
    "image": ("Sandbox.create", "template template_id image_name container_image"),
    "rootfs": ("Sandbox.create", "root_fs root_dir"),
    "image_archive": ("Sandbox.create", "archive image_tar tarball"),
    "io_dir": ("Sandbox.create", "volumes volume_mounts mounts binds mount workspace"),
    "name": ("Sandbox.create", "sandbox_id container_name id"),
    "network": ("Sandbox.create", "allow allow_internet_access network_mode network_disabled allow_hosts hosts"),
    "server": ("Sandbox.create", "url base_url api_url domain host"),
    "token": ("Sandbox.create", "api_key access_token"),
    "limits": ("Sandbox.create", "mem_limit memory memory_mb cpus cpu_count nano_cpus pids_limit storage_opt ulimits"),
    "timeout": (
        "Sandbox.create, commands.run and run_script, in seconds",
        "timeout request_timeout timeout_ms timeout_seconds ttl",
    ),
    "metadata": ("Sandbox.create", "metadata labels"),
    "processes": ("Sandbox.create", "processes keep_processes"),
    "ports": ("Sandbox.create", "ports encrypted_ports unencrypted_ports"),
    "idle": ("Sandbox.create", "idle on_timeout auto_pause"),
    "sandbox": ("Sandbox.connect", "sandbox"),
    "background": ("commands.run", "background detach detached"),
    "merge": ("commands.run in the background", "merge"),
    "tag": ("commands.run in the background", "tag"),
    "cols": ("pty.create", "size width columns"),
    "rows": ("pty.create", "height lines"),
    "on_data": ("pty.create", "on_pty on_output"),
    "env": ("commands.run", "env envs environment env_vars environ"),
    "cwd": ("commands.run", "cwd workdir working_dir work_dir working_directory"),
    "command": ("commands.run", "cmd line"),
    "script": ("run_script", "code source_code"),
    "stdin": ("commands.run", "input"),
    "check": ("commands.run and run_script", "raise_on_error"),
    "content": ("files.write", "data text contents body"),
    "source": ("files.move and files.copy", "old_path src from_path path_from"),
    "target": ("files.move and files.copy", "new_path dst dest destination to to_path"),
    "old": ("files.edit", "old_str old_text old_string"),
    "new": ("files.edit", "new_str new_text new_string"),
    "count": ("files.edit", "replace_all expected_replacements"),
    "pattern": ("files.grep and files.glob", "regex query"),
    "max_depth": ("files.list", "depth maxdepth"),
    "limit": ("files.list, files.glob and files.grep", "max_results max_count"),
}
_EXAMPLES: Final = {"limits": ', such as {"memory_bytes": 1 << 29}'}
# What no argument does.
_SENTENCES: Final = {
    "user": "the image says as whom its commands run",
    "remove auto_remove rm": "a sandbox is removed at the end of its block, or by `close`",
    "expose exposed_ports": "`ports` of `Sandbox.create` says what may be reached",
    "tty pty interactive": "`pty.create` starts a command in a terminal",
    "stdin_open": "with `background=True`, `stdin=True` leaves it open",
    "format encoding": "`read` gives text in UTF-8, and `read_bytes` gives bytes",
    "shell": "without `args` a command is a line for the shell",
    "text universal_newlines": "a result has `stdout` and `stdout_bytes`",
    "exist_ok": "a directory may exist; `created` of the result says whether it is new",
}
# What others call a method or a member, by the name of its class here.
_MEMBERS: Final = {
    "Sandbox": {
        "stop remove delete terminate destroy shutdown": "`close`",
        "info attrs is_running status": "`get_info`",
        "sandbox_id container_id": "`id`",
        "extend": "`set_timeout`",
        "unpause": "`resume`",
        "run_code": "`interpreter.run_code`, `run_script` for Luau, and `commands.run` for programs",
        "exec exec_run run execute run_command process cmd": "`commands.run`",
        "filesystem fs": "`files`",
        "put_archive upload upload_file": "`files.write`",
        "get_archive download download_file": "`files.stream` and `files.read_bytes`",
        "logs": "the result of `commands.run` or `run_script`",
        "get_url get_preview_link": "`ports.url`",
    },
    "Files": {
        "make_dir makedirs make_directory create_dir": "`mkdir`",
        "rename mv": "`move`",
        "get_info info": "`stat`",
        "cp": "`copy`",
        "rm unlink delete rmdir rmtree": "`remove`",
        "ls list_dir listdir": "`list`",
        "cat read_text read_file": "`read`",
        "write_text write_bytes write_file write_files": "`write`",
        "download": "`stream`",
        "upload": "`write`",
        "find search": "`glob` for names, and `grep` for lines",
        "watch_dir": "`files_touched` of a result",
    },
    "Commands": {
        "exec exec_run execute": "`run`",
        "kill send_stdin": "the process that `run` gives with `background=True`, or that `connect` finds",
    },
    "CommandHandle": {
        "cancel terminate stop": "`kill`",
        "disconnect": "nothing: a handle only waits and kills",
        "pid send_stdin": "the process that `run` gives with `background=True`",
    },
    "Process": {
        "poll returncode exit_code status": "`get_info`, and `wait`",
        "send_signal": "`signal`",
        "terminate": "`stop`",
        "write stdin": "`send_stdin`",
        "send_eof": "`close_stdin`",
        "logs stdout stderr output": "iteration over it, and `events`",
        "disconnect": "nothing: a process goes on without readers",
    },
    "Terminal": {"write send_input": "`send`", "disconnect": "nothing: a terminal goes on without readers"},
    "Ports": {"expose open": "`preview`, or `forward` on this machine", "get get_host": "`url`"},
    "Pty": {
        "kill resize send_stdin send_input": "the terminal that `create` gives",
        "connect": "`commands.connect`",
    },
}


class _WrongName(TypeError, AttributeError):
    """A name of another product. It is an `AttributeError` too, for `hasattr` and `getattr` with a default."""


def _said(words: dict[str, str]) -> dict[str, str]:
    return {name: said for names, said in words.items() for name in names.split()}


_ARGUMENT: Final = {name: here for here, (_, names) in _ARGUMENTS.items() for name in names.split()}
_SENTENCE: Final = _said(_SENTENCES)
_MEMBER: Final = {kind: _said(members) for kind, members in _MEMBERS.items()}


def _wrong(function: str, name: str, known: Iterable[str]) -> TypeError:
    """The error of an argument that a function does not have."""
    known = list(known)
    here = _ARGUMENT.get(name)
    if here in known:
        right = f"it is `{here}`{_EXAMPLES.get(here, '')}"
    elif f"{name}s" in known:
        right = f"it is `{name}s`"
    elif name in _SENTENCE:
        right = _SENTENCE[name]
    elif here is not None:
        right = f"there is `{here}` of {_ARGUMENTS[here][0]}"
    elif close := difflib.get_close_matches(name, known, 1):
        right = f"is it `{close[0]}`?"
    else:
        right = f"there are {', '.join(known)}"
    return TypeError(f"{function}() has no argument `{name}`: {right}")


# Either is taken for the other: other packages have the one or the other.
_SAME: Final = {"env": "envs", "envs": "env"}


def named(function: Function) -> Function:
    """A function that says what an argument is called that it does not have."""
    code = inspect.unwrap(function).__code__
    known = [
        name for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if name not in ("self", "cls")
    ]
    said = function.__name__.removeprefix("async_")

    def check(given: dict[str, Any], count: int) -> None:
        for name in [name for name in given if name not in known]:
            same = _SAME.get(name, "")
            if same not in known or same in given:
                raise _wrong(said, name, known)
            given[same] = given.pop(name)
        if count > code.co_argcount:
            named_only = ", ".join(known[len(known) - code.co_kwonlyargcount :])
            raise TypeError(f"{said}() has arguments that are given by their names: {named_only}")

    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def later(*args: Any, **given: Any) -> Any:
            check(given, len(args))
            return await function(*args, **given)

        return cast("Function", later)

    @wraps(function)
    def now(*args: Any, **given: Any) -> Any:
        check(given, len(args))
        return function(*args, **given)

    return cast("Function", now)


def worded(kind: Class) -> Class:
    """A class whose methods are `named`, and that says what a method is called that it does not have."""
    words = _MEMBER[kind.__name__.removeprefix("Async")]

    def missing(self: object, name: str) -> NoReturn:
        if name in words:
            raise _WrongName(f"{kind.__name__} has no `{name}`: there is {words[name]}")
        raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}", name=name, obj=self)

    if "create" in vars(kind):
        _is_created(kind)
    for name, member in list(vars(kind).items()):
        if name.startswith("_"):
            continue
        if isinstance(member, classmethod):
            setattr(kind, name, classmethod(named(cast("Any", member).__func__)))
        elif inspect.isfunction(member):
            setattr(kind, name, named(member))
    cast("Any", kind).__getattr__ = missing
    return kind


def _is_created(kind: type) -> None:
    """Has a class that its callers do not make by its own name say so."""
    make, name = cast("Any", kind).__init__, kind.__name__

    @wraps(make)
    def init(self: object, *args: object, **given: object) -> None:
        if given or len(args) != make.__code__.co_argcount - 1:
            raise TypeError(f"{name}() makes none: it is {name}.create(), whose arguments are given by their names")
        make(self, *args)

    cast("Any", kind).__init__ = init
