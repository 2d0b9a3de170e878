"""`python -m sandboxctl`: the program, wherever pip has put it."""

import os
import sys

from ._core.binary import find_binary
from .errors import SandboxError

try:
    program = find_binary(None)
except SandboxError as error:
    sys.exit(f"error: {error}")
os.execv(program, [program, *sys.argv[1:]])
