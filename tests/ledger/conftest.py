"""A fresh ledger for each test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from ledger.ledger import Ledger
from ledger.types import Topic, TopicConfig


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(tmp_path / "ledger.db", nullcontext())
    ledger.begin_incarnation(1)
    yield ledger
    ledger.check_invariants()
    ledger.close()


@pytest.fixture
def topic(ledger: Ledger) -> Topic:
    """A topic of two partitions."""
    return ledger.create_topic("orders", TopicConfig(partitions=2), 1)[0]
