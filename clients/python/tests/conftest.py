"""The places that the live tests run at: each engine, on this machine and at a server. `check` names what they need."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest

PLACES = ["local, embedded", "local, docker", "http, embedded", "http, docker"]
# Or those that are named, a semicolon between two.
WANTED = os.environ["CLIENTS_TEST_PLACES"].split(";") if "CLIENTS_TEST_PLACES" in os.environ else PLACES


@pytest.fixture(scope="session", params=WANTED)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Options of a sandbox with programs, one place after another."""
    try:
        binary, root, image = (os.environ[f"CLIENTS_TEST_{name}"] for name in ("BINARY", "ROOTFS", "IMAGE"))
    except KeyError as error:
        pytest.skip(f"{error} is not set: run ./check")
    scratch = tmp_path_factory.mktemp("place")
    transport, engine = request.param.split(", ")
    options = {"image": image} if engine == "docker" else {}
    if transport == "local":
        # For a user of its own, whose service ends with the tests.
        user = scratch / "program"
        variables = f"XDG_RUNTIME_DIR='{scratch}' XDG_STATE_HOME='{scratch}'"
        user.write_text(f"#!/bin/sh\n{variables} exec '{binary}' \"$@\"\n")
        user.chmod(0o755)
        # The embedded engine has no images to name.
        yield {"binary": str(user), "engine": engine, **(options or {"rootfs": root})}
        subprocess.run([user, "local", "stop"], check=True, capture_output=True)
        return
    data = scratch / "data"
    data.mkdir(mode=0o700)
    # One over a socket, and one over TCP, which needs a token.
    if engine == "docker":
        listen, more = f"unix:{scratch / 'socket'}", ["--allowed-image", image]
    else:
        listen, more = "127.0.0.1:0", ["--rootfs", root]
        scopes = [f"--scope={scope}" for scope in ("executions:write", "executions:read", "sandboxes")]
        create = [binary, "token", "create", "--data-dir", str(data), "--subject", "tests", *scopes]
        options["token"] = subprocess.run(create, check=True, capture_output=True, text=True).stdout.strip()
    command = [binary, "serve", "--engine", engine, "--listen", listen, "--data-dir", str(data), *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as server:
        assert server.stdout is not None
        log = b""
        while b"listening on" not in log:
            line = server.stdout.readline()
            assert line, log.decode()
            log += line
        # Its log goes on.
        rest = threading.Thread(target=server.stdout.read)
        rest.start()
        try:
            address = re.search(rb"listening on (http:\S+)", log)
            yield {"server": address[1].decode() if address else listen, **options}
        finally:
            server.terminate()
            rest.join()
