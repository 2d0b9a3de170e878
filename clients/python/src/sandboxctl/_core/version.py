"""What this client is."""

from typing import Final

__all__ = ["PROTOCOL", "VERSION"]

VERSION: Final = "0.1.0"
"""The version of the package."""

PROTOCOL: Final = 1
"""The version of what it relies on in a binary: the flags of `serve --private`, its first line, its API."""
