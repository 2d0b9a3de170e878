"""The code that the guide and the README show runs as it is shown."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandboxctl import Sandbox

ROOT = Path(__file__).parents[3]
# What an example's file has is run by `check`.
BLOCK = re.compile(r"(?<!-->\n)^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: str, image: str) -> list[str]:
    """The code blocks of a page. The tests have no registry: an image of this machine replaces the named one."""
    return [block.replace("python:3.13-slim", image) for block in BLOCK.findall((ROOT / page).read_text())]


@pytest.fixture
def image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """The image, and what the programs find."""
    try:
        binary, image = (os.environ[f"CLIENTS_TEST_{name}"] for name in ("BINARY", "IMAGE"))
    except KeyError as error:
        pytest.skip(f"{error} is not set: run ./check")
    monkeypatch.setenv("SANDBOXCTL_BINARY", binary)
    monkeypatch.delenv("SANDBOXCTL_SERVER", raising=False)
    # The service of a user of its own.
    for variable in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    Path("big").write_bytes(bytes(10_000))
    yield image
    subprocess.run([binary, "local", "stop"], check=True)


def test_snippets_of_the_guide_run_one_after_another(image: str) -> None:
    first, *others = blocks("docs/src/guides/python.md", image)
    names: dict[str, Any] = {}
    exec(first, names)
    assert Path("out/rows.txt").exists()
    with Sandbox.create(image=image, processes="kept") as sandbox:
        names["sandbox"] = sandbox
        for block in others:
            exec(block, names)
    assert len(names["results"]) == 100
    assert (names["size"], names["run"].stdout) == (10_000, "hello\n")
    assert list(Sandbox.list()) == []


@pytest.mark.parametrize("page", ["README.md", "clients/python/README.md"])
def test_snippet_of_the_readme_runs(image: str, page: str, capsys: pytest.CaptureFixture[str]) -> None:
    [block] = blocks(page, image)
    exec(block, {})
    assert capsys.readouterr().out == ("ok hi\n" if page == "README.md" else "")
