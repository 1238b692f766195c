"""A daemon that the tests of a module share, as those in tests/e2e do, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headgate import Client
from tests.e2e.conftest import daemon, data, listen, topic
from tests.e2e.daemon import Daemon

__all__ = ["daemon", "data", "listen", "topic"]


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    with Client(daemon.url) as made:
        yield made
