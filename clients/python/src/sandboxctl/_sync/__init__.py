# Made from __init__.py by scripts/unasync.
"""The client for synchronous programs, from which `scripts/unasync` makes the synchronous one."""
