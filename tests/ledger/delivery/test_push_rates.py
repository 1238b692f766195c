"""What senders have learned: kept over a restart, and no longer than the subscription."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path

import pytest

from ledger import topics
from ledger.delivery import push_rates, subscriptions
from ledger.delivery.push_rates import LearnedRate
from ledger.delivery.push_settings import PushSettings
from ledger.delivery.subscriptions import Subscription, SubscriptionConfig
from ledger.ledger import Ledger
from ledger.types import TopicConfig


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with closing(Ledger(tmp_path / "ledger.db", nullcontext())) as made:
        made.write(topics.create, "orders", TopicConfig(), 1)
        yield made


def add(ledger: Ledger, name: str = "s") -> Subscription:
    config = SubscriptionConfig(push=PushSettings("http://localhost/"))
    return ledger.write(subscriptions.create, "orders", name, config, "earliest", 5)


def count(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("SELECT count(*) FROM push_rates").fetchone()[0])


def test_the_last_that_each_sender_has_learned_is_kept(ledger: Ledger, tmp_path: Path) -> None:
    made, other = add(ledger), add(ledger, "t")
    one, two = made.subscription_id, other.subscription_id
    rates = {(one, 0): LearnedRate(0, 100.0, None), (one, 3): LearnedRate(1, 0.5, 7.5)}
    ledger.write(push_rates.write, rates)
    rates = {(one, 0): LearnedRate(2, 1 / 60, 80.25), (two, 0): LearnedRate(0, 1, 2)}
    ledger.write(push_rates.write, rates)
    ledger.close()
    with closing(Ledger(tmp_path / "ledger.db", nullcontext())) as again:
        assert again.read(push_rates.of, one) == {
            0: LearnedRate(2, 1 / 60, 80.25), 3: LearnedRate(1, 0.5, 7.5)
        }  # fmt: skip
        assert again.read(push_rates.of, 99) == {}


@pytest.mark.parametrize("ends", ["subscription", "topic"])
def test_nothing_is_kept_of_a_deleted_subscription_and_nothing_is_written(
    ledger: Ledger, tmp_path: Path, ends: str
) -> None:
    made = add(ledger)
    learned = {(made.subscription_id, 0): LearnedRate(0, 100.0, None)}
    ledger.write(push_rates.write, learned)
    if ends == "topic":
        ledger.write(topics.delete, "orders", 9)
    else:
        ledger.write(subscriptions.delete, "orders", "s", 9)
    assert count(tmp_path / "ledger.db") == 0
    ledger.write(push_rates.write, learned)
    assert count(tmp_path / "ledger.db") == 0
