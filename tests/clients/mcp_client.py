"""A client of the Python SDK, of either generation, against a service and `sandboxctl mcp`. The second
generation speaks the stateless revision, and one that begins with `initialize`.

mcp_client.py URL TOKEN PROGRAM ARGUMENT...
"""

import asyncio
import contextlib
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

try:  # The second generation has a client around the session.
    from mcp import Client
except ImportError:
    Client = None


@contextlib.asynccontextmanager
async def streams(target, *rest):
    if target.startswith("http"):
        headers = {"authorization": f"Bearer {rest[0]}"}
        try:  # The second generation takes a client of httpx.
            import httpx2 as httpx
        except ImportError:
            import httpx
        from mcp.client.streamable_http import streamable_http_client

        async with httpx.AsyncClient(headers=headers, timeout=60) as client:
            async with streamable_http_client(target, http_client=client) as opened:
                yield opened[0], opened[1]
    else:
        async with stdio_client(StdioServerParameters(command=target, args=list(rest))) as opened:
            yield opened


def of(result, new, old):
    """A field under its name in the second generation, or in the first."""
    return getattr(result, new) if hasattr(result, new) else getattr(result, old)


@contextlib.asynccontextmanager
async def connected(mode, *target):
    if Client:
        async with Client(streams(*target), mode=mode) as client:
            is_stateless = client.protocol_version == "2026-07-28"
            assert is_stateless == (mode == "auto"), client.protocol_version
            yield client
    else:
        async with streams(*target) as (read, write):
            async with ClientSession(read, write) as session:
                await session.initialize()
                yield session


async def use(mode, *target):
    async with connected(mode, *target) as session:
        names = [tool.name for tool in (await session.list_tools()).tools]
        assert names[:2] == ["execute_script", "read_file"], names

        async def call(name, **arguments):
            result = await session.call_tool(name, arguments)
            assert not of(result, "is_error", "isError"), result
            return result

        skill = (await session.read_resource("skill://sandboxctl/SKILL.md")).contents[0]
        assert skill.text.startswith("---\nname: sandboxctl\n"), skill

        script = "fs.write('data.csv', 'n,sq\\n1,1\\n2,4\\n') return { rows = 2 }"
        result = await call("execute_script", script=script)
        assert of(result, "structured_content", "structuredContent")["result"] == {"rows": 2}
        link = result.content[1]
        contents = (await session.read_resource(link.uri)).contents
        assert contents[0].text == "n,sq\n1,1\n2,4\n", contents
        await call("edit_file", path="data.csv", old="2,4", new="2,four")
        found = await call("grep", pattern="four")
        lines = of(found, "structured_content", "structuredContent")["lines"]
        assert lines[0]["line"] == 3, lines
        await call("remove", path="data.csv")

        # Larger than the events that the second generation takes.
        script = (
            "fs.write('a.png', '\\137PNG\\r\\n\\26\\n' .. ('x'):rep(790000)) "
            "fs.write('large', ('x'):rep(3 * 2^19)) return ('x'):rep(530000)"
        )
        result = await call("execute_script", script=script)
        structured = of(result, "structured_content", "structuredContent")
        assert structured["result"] is None and structured["truncated"], structured
        for uri, size in [(result.content[1].uri, 530002), ("sandbox:///io/large", 3 << 19)]:
            contents = (await session.read_resource(uri)).contents
            assert len(contents[0].text) == size, (uri, len(contents[0].text))
        image = (await call("read_file", path="a.png")).content[0]
        assert image.type == "image" and len(image.data) > 1 << 20, len(image.data)
        for name in ["a.png", "large"]:
            await call("remove", path=name)
        failed = await session.call_tool("execute_script", {"script": "error('boom')"})
        assert of(failed, "is_error", "isError")
        assert failed.content[0].text.startswith("Script execution error: script:1: boom")
    print(target[0], mode, "ok")


async def main():
    url, token, *program = sys.argv[1:]
    for mode in ["auto", "legacy"] if Client else ["legacy"]:
        await use(mode, url, token)
        await use(mode, *program)


asyncio.run(main())
