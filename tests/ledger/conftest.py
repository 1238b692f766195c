"""A fresh ledger for each test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from ledger import epochs, topics
from ledger.checks import invariants
from ledger.ledger import Ledger
from ledger.types import Topic, TopicConfig


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(tmp_path / "ledger.db", nullcontext())
    ledger.write(epochs.begin_incarnation, 1)
    yield ledger
    ledger.read(invariants.check)
    ledger.close()


@pytest.fixture
def topic(ledger: Ledger) -> Topic:
    """A topic of two partitions."""
    return ledger.write(topics.create, "orders", TopicConfig(partitions=2), 1)[0]
