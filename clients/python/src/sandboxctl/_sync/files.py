# Made from files.py by scripts/unasync.
"""The files of a sandbox, for synchronous programs."""

from __future__ import annotations

import base64
from collections.abc import Generator, Iterator, Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import quote

from .. import results
from .._core.answers import Answer, base64_bytes
from .._core.names import worded
from .._core.requests import Path, path_bytes, path_of, text_bytes
from .._core.waiting import Pieces
from .._core.wire import OperationName
from ..errors import LimitExceeded, error_of
from ..results import (
    Copied,
    Created,
    Edited,
    FileChange,
    Globbed,
    Grepped,
    Json,
    Listed,
    Moved,
    Removed,
    Stat,
    Written,
)
from .transport import Transport

__all__ = ["Files"]

Content: TypeAlias = "str | bytes | Pieces"
"""What is written: text in UTF-8, bytes, pieces of bytes, or a file that is open for reading bytes."""

# Content of more bytes than this is sent in pieces.
_WHOLE: Final = 4 << 20
# The most that is read of a file as a whole.
_LARGEST: Final = 1 << 30


@worded
class Files:
    """The files of a sandbox. Paths are relative to the io dir, or absolute in it (`/io/…`) or in `/in`; as bytes where
    they are not UTF-8. Links are never followed.

    What fails is a `SandboxError`: `NotFound`, `PolicyDenied` for a path outside, `LimitExceeded`, or one with a kind
    such as `is_directory`, `already_exists`, `not_empty` or `encoding`.
    """

    def __init__(self, opened: Callable[[], Transport]) -> None:
        self._opened = opened

    def read(self, path: Path, *, offset: int = 0, limit: int | None = None) -> str:
        """The content of a file, or a range of its bytes, as text, which must be UTF-8 (else `encoding`)."""
        try:
            return (self._do("read", path, encoding="utf-8", offset=offset, limit=limit)).text("content")
        except LimitExceeded as error:
            content = self._large(path, offset, limit, error)
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise error_of("encoding", f"{path!r} is not UTF-8", "read_bytes returns any content") from error

    def read_bytes(self, path: Path, *, offset: int = 0, limit: int | None = None) -> bytes:
        """The content of a file, or a range of it."""
        try:
            data = self._do("read", path, encoding="base64", offset=offset, limit=limit)
        except LimitExceeded as error:
            return self._large(path, offset, limit, error)
        return base64_bytes(data.text("content"))

    @contextmanager
    def stream(self, path: Path) -> Generator[Iterator[bytes]]:
        """The content of a file, piece by piece, of one consistent file: a context that gives an iterator."""
        parts = self._opened().download(path)
        try:
            yield parts
        finally:
            parts.close()

    def write(
        self,
        path: Path,
        content: Content,
        *,
        mode: Literal["overwrite", "append", "create_new"] | None = None,
        parents: bool | None = None,
        atomic: bool | None = None,
        permissions: int | None = None,
    ) -> Written:
        """Writes a file, whole or not at all, with its directories. One that is created has these `permissions`, such
        as 0o640.

        What comes in pieces, or from a file, may be of any size and replaces the file: `mode`, `parents`, `atomic` and
        `permissions` are for text and bytes.
        """
        options = {"mode": mode, "parents": parents, "atomic": atomic, "permissions": permissions}
        plain = all(value is None for value in options.values())
        if isinstance(content, str):
            if len(content) <= _WHOLE or not plain:
                return results.written(self._do("write", path, content=content, encoding="utf-8", **options))
            content = text_bytes(content)
        if isinstance(content, (bytes, bytearray, memoryview)):
            if len(content) <= _WHOLE or not plain:
                text = base64.b64encode(content).decode()
                return results.written(self._do("write", path, content=text, encoding="base64", **options))
            content = [bytes(content)]
        elif not any(hasattr(content, name) for name in ("read", "__iter__", "__aiter__")):
            raise TypeError(f"content: text, bytes or pieces of bytes are expected, not {type(content).__name__}")
        elif not plain:
            raise error_of(
                "usage",
                "content in pieces replaces the file: mode, parents, atomic and permissions are for text and bytes",
            )
        return results.written(Answer(self._opened().upload(path, content)))

    def edit(self, path: Path, old: str, new: str, *, count: int = 1) -> Edited:
        """Replaces a text that occurs exactly `count` times."""
        data = self._do("edit", path, old=old, new=new, count=count)
        return Edited(data.text("path"), data.integer("replacements"))

    def list(
        self, path: Path = ".", *, recursive: bool = False, max_depth: int | None = None, limit: int | None = None
    ) -> Listed:
        """The entries of a directory, sorted by their paths."""
        return results.listed(self._do("list", path, recursive=recursive, max_depth=max_depth, limit=limit))

    def glob(
        self,
        pattern: str,
        path: Path = ".",
        *,
        exclude: str | Sequence[str] = (),
        hidden: bool = False,
        limit: int | None = None,
    ) -> Globbed:
        """The paths that match a pattern. `exclude` are globs of names, or with a slash of paths, to leave out."""
        return results.globbed(
            self._do("glob", path, pattern=pattern, exclude=_globs(exclude), hidden=hidden, limit=limit)
        )

    def grep(
        self,
        pattern: str,
        path: Path = ".",
        *,
        glob: str | None = None,
        exclude: str | Sequence[str] = (),
        context: int = 0,
        ignore_case: bool = False,
        hidden: bool = False,
        limit: int | None = None,
    ) -> Grepped:
        """The lines that match a regular expression, with `context` lines around each.

        `glob` selects files by name, or with a slash by path; `exclude` leaves files and directories out.
        """
        data = self._do(
            "grep",
            path,
            pattern=pattern,
            glob=glob,
            exclude=_globs(exclude),
            context=context,
            ignore_case=ignore_case,
            hidden=hidden,
            limit=limit,
        )
        return results.grepped(data)

    def mkdir(self, path: Path, *, parents: bool = True) -> Created:
        """Creates a directory, and its parents."""
        data = self._do("mkdir", path, parents=parents)
        return Created(data.text("path"), data.flag("created"))

    def touch(self, path: Path, *, mtime: str | None = None) -> Created:
        """Creates an empty file if there is none, and sets when a file or a directory was last modified: at `mtime`, in
        RFC 3339, or now."""
        data = self._do("touch", path, mtime=mtime)
        return Created(data.text("path"), data.flag("created"))

    def remove(self, path: Path, *, recursive: bool = False, force: bool = False) -> Removed:
        """Removes a file, or with `recursive` a directory. With `force` there may be none."""
        data = self._do("remove", path, recursive=recursive, force=force)
        return Removed(data.text("path"), data.flag("removed"), data.integer("entries"))

    def move(self, source: Path, target: Path, *, overwrite: bool = False, parents: bool = False) -> Moved:
        """Gives a file or a directory another path, and that its directories with `parents`."""
        data = self._perform(
            {"operation": "rename", **_both(source, target), "overwrite": overwrite, "parents": parents}
        )
        return Moved(data.text("from"), data.text("to"))

    def copy(self, source: Path, target: Path, *, recursive: bool = False, overwrite: bool = False) -> Copied:
        """Copies a file, or with `recursive` a directory."""
        data = self._perform(
            {"operation": "copy", **_both(source, target), "recursive": recursive, "overwrite": overwrite}
        )
        return Copied(data.text("from"), data.text("to"), data.integer("entries"), data.integer("bytes"))

    def exists(self, path: Path) -> bool:
        """Whether there is something with this path."""
        return (self._do("exists", path)).flag("exists")

    def stat(self, path: Path, *, follow: bool = False) -> Stat:
        """What is known of a file. With `follow` of what a link points to, in a sandbox with `file_scope="all"`."""
        return results.stat(self._do("stat", path, follow=follow))

    def chmod(self, path: Path, permissions: int, *, recursive: bool = False) -> None:
        """Sets the permissions of a file or a directory, such as 0o640."""
        self._do("chmod", path, permissions=permissions, recursive=recursive)

    def symlink(self, path: Path, target: Path) -> None:
        """Makes a symbolic link at `path`, in a sandbox with `file_scope="all"`."""
        self._do("symlink", path, target=path_of(target))

    def read_link(self, path: Path) -> str:
        """What a symbolic link points to, in a sandbox with `file_scope="all"`."""
        return (self._do("read_link", path)).text("target")

    def set_metadata(self, path: Path, metadata: Mapping[str, str]) -> None:
        """Replaces the metadata of a file or a directory, in a sandbox with `file_scope="all"`."""
        self._do("set_metadata", path, metadata=dict(metadata))

    @contextmanager
    def watch(self, path: Path = ".", *, recursive: bool = False) -> Generator[Iterator[FileChange]]:
        """What changes in a directory, from now on: a context that gives an iterator. With `recursive` in the
        directories below it too, also in new ones. It needs a sandbox with an image.

        A reader that is slow, and a directory that cannot be watched, miss changes, which one `omitted` stands for. The
        iterator ends when the directory is gone; a connection that is lost is an error.
        """
        query = f"?path={quote(path_bytes(path), safe='')}&recursive={'true' if recursive else 'false'}"
        events = self._opened().changes(f"/watch{query}")
        try:
            # The first one says that it is on.
            for _ in events:
                break
            yield _changes(events)
        finally:
            events.close()

    def _large(self, path: Path, offset: int, limit: int | None, error: LimitExceeded) -> bytes:
        """A file of more than an operation reads."""
        if error.kind != "too_large" or offset or limit is not None:
            raise error
        content = bytearray()
        with self.stream(path) as parts:
            for part in parts:
                content += part
                if len(content) > _LARGEST:
                    raise error_of(
                        "too_large", f"{path!r} has more than {_LARGEST} bytes", "read it with `files.stream`"
                    )
        return bytes(content)

    def _do(self, operation: OperationName, path: Path, **options: Any) -> Answer:
        given = {name: value for name, value in options.items() if value is not None}
        return self._perform({"operation": operation, "path": path_of(path), **given})

    def _perform(self, operation: Json) -> Answer:
        envelope = Answer(self._opened().operation(operation))
        if not envelope.flag("success"):
            raise results.failure(envelope.data.get("error"), "operation")
        return Answer(envelope.data.get("data"))


def _changes(events: Generator[Json]) -> Generator[FileChange]:
    for event in events:
        change = results.file_change(Answer(event))
        if change is not None:
            yield change


def _globs(exclude: str | Sequence[str]) -> list[str]:
    return [exclude] if isinstance(exclude, str) else [*exclude]


def _both(source: Path, target: Path) -> Json:
    return {"from": path_of(source), "to": path_of(target)}
