"""The certificates that a server's is checked against."""

from __future__ import annotations

import os
import ssl

from ..errors import error_of

__all__ = ["is_untrusted", "trusted"]


def trusted() -> ssl.SSLContext:
    """What certificates are checked against: those of SANDBOXCTL_CA_FILE alone, or this machine's."""
    file = os.environ.get("SANDBOXCTL_CA_FILE") or None
    try:
        return ssl.create_default_context(cafile=file)
    except OSError as error:
        hint = "name a file of certificates in PEM"
        raise error_of("config", f"SANDBOXCTL_CA_FILE: {file}: {error}", hint) from error


def is_untrusted(error: BaseException | None) -> bool:
    """Whether a server's certificate was refused."""
    return isinstance(error, ssl.SSLCertVerificationError)
