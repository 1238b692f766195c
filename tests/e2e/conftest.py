"""Daemons for the end-to-end tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.daemon import Daemon
from tools.ports import kept_port


@pytest.fixture(scope="module")
def daemon(shared_daemon: Daemon) -> Daemon:
    """The shared one, unless the module makes one with other settings."""
    return shared_daemon


@pytest.fixture
def listen() -> Iterator[str]:
    """An address for the test's own daemons, one after the other: nobody else gets it."""
    with kept_port() as port:
        yield f"127.0.0.1:{port}"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory for the test's own daemon."""
    return tmp_path / "data"


@pytest.fixture
def topic(request: pytest.FixtureRequest, daemon: Daemon) -> str:
    """An empty topic of the test's name, in the module's ``daemon``."""
    name = request.node.name.removeprefix("test_")[:200].replace("[", ".").rstrip("]")
    assert daemon.json("PUT", f"/v0/topics/{name}", {}).status == 201
    return str(name)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH on which ``headgate`` is this checkout."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "headgate"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m cli "$@"\n')
    script.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"
