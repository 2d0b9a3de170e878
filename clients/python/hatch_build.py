"""Puts the program into the wheel, where `SANDBOXCTL_WHEEL_BINARY` names it.

The wheel is then for one platform, which `SANDBOXCTL_WHEEL_PLATFORM` names as pip does: `manylinux_2_28_x86_64`.
Without them it is the wheel for all others, which has the client alone.
"""

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):
    """Called by hatchling for each wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        binary = os.environ.get("SANDBOXCTL_WHEEL_BINARY")
        if binary:
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{os.environ['SANDBOXCTL_WHEEL_PLATFORM']}"
            build_data["shared_scripts"][binary] = "sandboxctl"
