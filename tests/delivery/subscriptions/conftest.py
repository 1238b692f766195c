"""The node of the tests of subscriptions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.delivery.node import Node, node_in


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node of one shard, whose ring is soon full."""
    with node_in(tmp_path, shards=1, ring_bytes=1 << 16) as made:
        yield made
