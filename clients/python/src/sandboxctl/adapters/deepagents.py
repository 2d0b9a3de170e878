"""LangChain deepagents: a backend whose files and commands are in a sandbox.

What deepagents (0.7) asks of a `BaseSandbox`, and what this one does:

- `execute(command, timeout=)`: a shell command line; stdout and stderr together, in their order. A command that fails
  is a result. After its time limit the exit code is 124 and the output says so. The first million bytes of output
  are kept; `truncated` tells whether there were more.
- `upload_files`, `download_files`: one response per file, in order, with deepagents' error codes; no exception.
- `ls`, `read`, `write`, `edit`, `grep`, `glob` and `delete` are operations of the sandbox for paths in the io dir
  (`/io`), with no command and so with no Python in the image. `BaseSandbox` has them as shell commands and Python
  programs; that is what other paths still get, in an image that has them.
- Paths in results are absolute: deepagents' rules that deny paths are matched against absolute paths alone.
- The asynchronous methods run the others in threads, as `BackendProtocol` has it.

`read`, `edit`, `grep` and `glob` have the semantics of `BaseSandbox`: pages of lines, 500 KiB of text or binary, line
ends that an edit keeps, text that is searched as it is, names with a leading dot only where the pattern has the dot,
regular files alone, no `.git` in a search.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import posixpath
import re
from typing import TYPE_CHECKING

from deepagents.backends.protocol import (
    DeleteResult,
    EditResult,
    ExecuteResponse,
    FileData,
    FileDownloadResponse,
    FileInfo,
    FileOperationError,
    FileUploadResponse,
    GlobResult,
    GrepMatch,
    GrepResult,
    LsResult,
    ReadResult,
    WriteResult,
)
from deepagents.backends.sandbox import (
    MAX_BINARY_BYTES,
    MAX_OUTPUT_BYTES,
    TRUNCATION_MSG,
    BaseSandbox,
)
from deepagents.backends.utils import EMPTY_OLD_STRING_ERROR, normalize_read_bounds

from sandboxctl import SandboxError

from ._guest import in_mounts
from ._sync_guest import Guest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sandboxctl import Sandbox

__all__ = ["SandboxctlBackend"]

_EMPTY = "System reminder: File exists but has empty contents"

# Files that deepagents shows as base64, whatever is in them. Its own table is private; all other content that is not
# UTF-8 is base64 too.
_BINARY = frozenset(
    [
        ".png",
        ".jpeg",
        ".jpg",
        ".webp",
        ".gif",
        ".heic",
        ".heif",
        ".mp4",
        ".mpeg",
        ".mov",
        ".avi",
        ".flv",
        ".mpg",
        ".webm",
        ".wmv",
        ".3gpp",
        ".mkv",
        ".wav",
        ".mp3",
        ".aiff",
        ".aac",
        ".ogg",
        ".flac",
        ".pdf",
        ".ppt",
        ".pptx",
    ]
)

_CODES: dict[str, FileOperationError] = {
    "not_found": "file_not_found",
    "permission_denied": "permission_denied",
    "read_only": "permission_denied",
    "not_allowed": "permission_denied",
    "protected": "permission_denied",
    "path_escape": "invalid_path",
    "is_directory": "is_directory",
    "not_a_directory": "invalid_path",
    "invalid_path": "invalid_path",
}


class SandboxctlBackend(BaseSandbox):
    """A deepagents backend on a sandbox, which stays its owner's: closing it is not the backend's task.

    `timeout` is the time limit in seconds of a command that names none. Commands need a sandbox with an image.
    """

    def __init__(self, sandbox: Sandbox, *, timeout: float = 120) -> None:
        self._sandbox = sandbox
        self._guest = Guest(sandbox)
        self._timeout = timeout

    @property
    def id(self) -> str:
        """The sandbox's id."""
        return self._sandbox.id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Runs a shell command line. With a `timeout` of 0 only the sandbox's own applies."""
        seconds = self._timeout if timeout is None else (timeout or None)
        # The shell reads the command after it has sent its own stderr where stdout goes, so that the messages about
        # its syntax are in the output too.
        script = f"exec 2>&1\n{command}"
        try:
            ended = self._guest.run("/bin/sh", "-c", script, timeout=seconds)
        except SandboxError as error:
            return ExecuteResponse(output=f"Error: {error}", exit_code=None)
        output = ended.stdout.decode("utf-8", "replace")
        if ended.reason:
            output += ("" if not output or output.endswith("\n") else "\n") + f"Error: {ended.reason}\n"
        return ExecuteResponse(output=output, exit_code=ended.code, truncated=ended.truncated)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Writes files, with their directories, each as a whole."""
        responses: list[FileUploadResponse] = []
        for path, content in files:
            code = None
            if not path.startswith("/"):
                code = "invalid_path"
            else:
                try:
                    self._guest.write(path, content)
                except SandboxError as error:
                    code = _code(error)
            responses.append(FileUploadResponse(path=path, error=code))
        return responses

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Reads files."""
        responses: list[FileDownloadResponse] = []
        for path in paths:
            if not path.startswith("/"):
                responses.append(FileDownloadResponse(path=path, error="invalid_path"))
                continue
            try:
                content = self._guest.read(path)
            except SandboxError as error:
                responses.append(FileDownloadResponse(path=path, error=_code(error)))
            else:
                responses.append(FileDownloadResponse(path=path, content=content))
        return responses

    def ls(self, path: str) -> LsResult:
        """Lists a directory."""
        if not in_mounts(path):
            return super().ls(path)
        try:
            entries = self._sandbox.files.list(path).entries
        except SandboxError as error:
            return LsResult(error=f"Path '{path}': {_listing_code(error)}")
        infos: list[FileInfo] = []
        for entry in entries:
            info = FileInfo(path=entry.path, is_dir=entry.type == "directory", size=entry.size)
            if entry.modified:
                info["modified_at"] = entry.modified
            infos.append(info)
        return LsResult(entries=infos)

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Reads a page of lines, or a binary file."""
        if not in_mounts(file_path):
            return super().read(file_path, offset, limit)
        try:
            raw = self._guest.read(file_path)
        except SandboxError as error:
            code = "not_a_file" if error.kind in {"is_directory", "special_file"} else _code(error)
            return ReadResult(error=f"File '{file_path}': {code}")
        return _page(file_path, raw, offset, limit)

    def write(self, file_path: str, content: str) -> WriteResult:
        """Writes a file, with its directories, as a whole."""
        [response] = self.upload_files([(file_path, content.encode())])
        if response.error:
            return WriteResult(error=f"Failed to write file '{file_path}': {response.error}")
        return WriteResult(path=file_path)

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        """Replaces text. A file that something else changes meanwhile is left as it is."""
        if not in_mounts(file_path):
            return super().edit(file_path, old_string, new_string, replace_all)
        if not old_string:
            return EditResult(error=EMPTY_OLD_STRING_ERROR)
        try:
            text = self._guest.read(file_path).decode()
            old, new = _line_ends(text, old_string, new_string)
            count = text.count(old)
            if count == 0:
                return EditResult(error=f"Error: String not found in file: '{old_string}'")
            if count > 1 and not replace_all:
                return EditResult(
                    error=f"Error: String '{old_string}' appears multiple times. "
                    "Use replace_all=True to replace all occurrences."
                )
            if old != new:
                self._sandbox.files.edit(file_path, old, new, count=count)
        except UnicodeDecodeError:
            return EditResult(error=f"Error: File '{file_path}' is not a text file")
        except SandboxError as error:
            return EditResult(error=_edit_message(file_path, error))
        return EditResult(path=file_path, occurrences=count)

    def delete(self, file_path: str) -> DeleteResult:
        """Removes a file, or a directory with all that is in it."""
        if not in_mounts(file_path):
            return super().delete(file_path)
        try:
            self._sandbox.files.remove(file_path, recursive=True)
        except SandboxError as error:
            if error.kind == "not_found":
                return DeleteResult(error=f"Error: '{file_path}' not found")
            return DeleteResult(error=f"Error deleting file '{file_path}': {error}")
        return DeleteResult(path=file_path)

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Searches files for a text, as it is."""
        if not in_mounts(path or "."):
            return super().grep(pattern, path, glob, max_count=max_count)
        excluded = sorted(set(self.grep_exclude_dirs).difference((path or "").split("/")))
        try:
            found = self._sandbox.files.grep(
                re_escape(pattern), path or ".", glob=glob, exclude=[f"{name}/" for name in excluded], hidden=True
            )
        except SandboxError as error:
            if error.kind == "not_found":
                return GrepResult(matches=[])
            return GrepResult(error=f"Path '{path or '.'}': {error}")
        matches = [GrepMatch(path=line.path, line=line.line, text=line.text) for line in found.lines]
        if max_count is not None and len(matches) > max_count:
            return GrepResult(matches=matches[:max_count], truncated=True)
        return GrepResult(matches=matches, truncated=found.truncated)

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Finds regular files by name."""
        if not in_mounts(path or "."):
            return super().glob(pattern, path)
        if ".." in pattern.replace("\\", "/").split("/"):
            return GlobResult(error=f"Path '{path or '.'}': invalid_pattern")
        bare = "/" not in pattern
        relative = pattern.lstrip("/")
        if relative.endswith("/"):
            return GlobResult(matches=[])
        # A bare name is looked for in every directory, in those with a leading dot too.
        wanted = f"**/{relative}" if bare else relative
        try:
            found = self._sandbox.files.glob(wanted, path or ".", hidden=bare)
            # With a slash at its end a pattern has the directories alone, which are none of the files.
            directories = self._sandbox.files.glob(wanted + "/", path or ".", hidden=bare)
        except SandboxError as error:
            return GlobResult(error=f"Path '{path or '.'}': {error}")
        others = {match.path.rstrip("/") for match in directories.matches}
        dotted = not bare or re.search(r"(^|[{,])\.", relative) is not None
        names = [
            match.path
            for match in found.matches
            if match.path not in others and (dotted or not posixpath.basename(match.path).startswith("."))
        ]
        truncated = found.truncated or directories.truncated
        return GlobResult(
            matches=[FileInfo(path=name, is_dir=False) for name in names],
            truncated=truncated,
            truncation_reason="budget" if truncated else None,
        )

    async def aexecute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """`execute` in a thread."""
        return await asyncio.to_thread(self.execute, command, timeout=timeout)

    async def als(self, path: str) -> LsResult:
        """`ls` in a thread."""
        return await asyncio.to_thread(self.ls, path)

    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """`read` in a thread."""
        return await asyncio.to_thread(self.read, file_path, offset, limit)

    async def awrite(self, file_path: str, content: str) -> WriteResult:
        """`write` in a thread."""
        return await asyncio.to_thread(self.write, file_path, content)

    async def aedit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        """`edit` in a thread."""
        return await asyncio.to_thread(self.edit, file_path, old_string, new_string, replace_all)

    async def agrep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """`grep` in a thread."""
        return await asyncio.to_thread(self.grep, pattern, path, glob, max_count=max_count)

    async def aglob(self, pattern: str, path: str | None = None) -> GlobResult:
        """`glob` in a thread."""
        return await asyncio.to_thread(self.glob, pattern, path)


def re_escape(text: str) -> str:
    """A regular expression of the crate `regex` that matches this text alone."""
    return re.sub(r"[\\.+*?()|\[\]{}^$#&\-~]", r"\\\g<0>", text)


def _code(error: SandboxError) -> FileOperationError | str:
    return _CODES.get(error.kind, str(error))


def _listing_code(error: SandboxError) -> str:
    return "path_not_found" if error.kind == "not_found" else error.kind


def _edit_message(path: str, error: SandboxError) -> str:
    match error.kind:
        case "not_found":
            return f"Error: File '{path}' not found"
        case "permission_denied" | "read_only":
            return f"Error: Permission denied editing file '{path}'"
        case "is_directory" | "special_file":
            return f"Error: '{path}' is not a regular file"
        case _:
            return f"Error editing file '{path}': {error}"


def _line_ends(text: str, old: str, new: str) -> tuple[str, str]:
    """`old` and `new` with the line ends that the file has where `old` is."""
    candidates: Iterable[tuple[str, str]] = (
        (old, new),
        (_crlf(old), _crlf(new)),
        (old.replace("\r\n", "\n"), new.replace("\r\n", "\n")),
    )
    return next((pair for pair in candidates if pair[0] in text), (old, new))


def _crlf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def _page(path: str, raw: bytes, offset: int, limit: int) -> ReadResult:
    if not raw:
        return ReadResult(file_data=FileData(content=_EMPTY, encoding="utf-8"))
    text = None
    if "." + path.rpartition(".")[2].lower() not in _BINARY:
        with contextlib.suppress(UnicodeDecodeError):
            text = raw.decode()
    if text is None:
        if len(raw) > MAX_BINARY_BYTES:
            return ReadResult(
                error=f"File '{path}': Binary file exceeds maximum preview size of {MAX_BINARY_BYTES} bytes"
            )
        return ReadResult(file_data=FileData(content=base64.b64encode(raw).decode(), encoding="base64"))
    offset, limit = normalize_read_bounds(offset, limit)
    if limit == 0:
        return ReadResult(file_data=FileData(content="", encoding="utf-8"), no_lines_requested=True)
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if lines[-1] == "":
        lines.pop()
    if offset >= len(lines):
        return ReadResult(error=f"File '{path}': Line offset {offset} exceeds file length ({len(lines)} lines)")
    end = min(offset + limit, len(lines))
    content = "\n".join(lines[offset:end])
    encoded = content.encode()
    room = MAX_OUTPUT_BYTES - len(TRUNCATION_MSG.encode())
    if len(encoded) > room:
        # What is shown ends at the last whole line; a single line that is too long is cut.
        shown = encoded[:room].decode("utf-8", "ignore")
        end = offset + max(shown.count("\n"), 1)
        content = shown + TRUNCATION_MSG
    return ReadResult(
        file_data=FileData(content=content, encoding="utf-8"),
        total_lines=len(lines),
        start_line=offset + 1,
        end_line=end,
        next_offset=end if end < len(lines) else None,
    )
