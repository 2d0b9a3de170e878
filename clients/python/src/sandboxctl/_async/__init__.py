"""The client for asyncio, from which `scripts/unasync` makes the synchronous one."""
