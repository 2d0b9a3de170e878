"""Lines out of pieces of bytes."""

from __future__ import annotations

__all__ = ["Lines"]


class Lines:
    """Splits bytes at "\\n", "\\r\\n" and "\\r", as they come, and at nothing else: text of a line may have what only
    Unicode takes for the end of one."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._after_return = False

    @property
    def pending(self) -> int:
        """The length of the line so far."""
        return len(self._line)

    def push(self, piece: bytes) -> list[bytes]:
        """The lines that this piece completes."""
        if not piece:
            return []
        if self._after_return and piece.startswith(b"\n"):
            piece = piece[1:]
        self._after_return = piece.endswith(b"\r")
        lines: list[bytes] = []
        # Of bytes, these are all line ends that it knows.
        for part in piece.splitlines(keepends=True):
            self._line += part
            if part.endswith((b"\n", b"\r")):
                lines.append(bytes(self._line.rstrip(b"\r\n")))
                self._line.clear()
        return lines
