"""One daemon for all attacks of a module: none may get further than what its test says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.daemon import Daemon, running


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with one shard and the default settings, with topic ``secrets`` of one record."""
    with running(tmp_path_factory.mktemp("data")) as daemon:
        assert daemon.produce("secrets", "the record").status == 200
        yield daemon
