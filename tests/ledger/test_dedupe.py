"""The window and the bound of idempotency keys."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ledger import cursors, topics
from ledger.checks import invariants
from ledger.dedupe import PRUNE_STEP, DedupeLimits
from ledger.ledger import Ledger
from ledger.types import Advance, TopicConfig
from tests.ledger.requests import Request, answers, draft_of, lease

LIMITS = DedupeLimits(window_ms=1_000, entries_max=100)


class Keys:
    """Commits keys to one topic, a lease each time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledger = Ledger(path, nullcontext(), dedupe_limits=LIMITS)
        self.topic_id = self.ledger.write(topics.create, "a", TopicConfig(), 1)[0].topic_id
        self.counter = 0

    def send(
        self, keys: list[str], now_ms: int, fingerprints: Sequence[int | None] = (), **more: Any
    ) -> list[str]:
        self.counter += 1
        told = [*fingerprints, *[None] * len(keys)]
        requests = [
            Request(self.topic_id, key=key, fingerprint=each, **more)
            for key, each in zip(keys, told, strict=False)
        ]
        draft = draft_of(lease(self.counter), requests)
        commit = self.ledger.commit(draft, now_ms, lambda _: None)
        return [answer.kind for answer in answers(commit, requests)]

    def entries(self) -> int:
        with closing(sqlite3.connect(self.path)) as connection:
            count: int = connection.execute("SELECT count(*) FROM dedupe").fetchone()[0]
            return count


@pytest.fixture
def keys(tmp_path: Path) -> Iterator[Keys]:
    keys = Keys(tmp_path / "ledger.db")
    yield keys
    keys.ledger.read(invariants.check)
    keys.ledger.close()


def test_a_key_counts_to_the_end_of_the_window_and_not_longer(keys: Keys) -> None:
    assert keys.send(["k"], 5_000) == ["stored"]
    assert keys.send(["k"], 6_000) == ["deduped"]
    assert keys.send(["k"], 6_001) == ["stored"]
    assert keys.send(["k"], 6_002) == ["deduped"]


@pytest.mark.parametrize("lease_of_its_own", [True, False])
def test_other_records_under_a_used_key_are_no_repeat_and_change_nothing(
    keys: Keys, lease_of_its_own: bool
) -> None:
    steps = [("k", 1), ("k", 2), ("k", 1), ("other", 2)]
    expected = ["stored", "key_reused", "deduped", "stored"]
    if lease_of_its_own:
        assert [keys.send([key], 5_000, [told])[0] for key, told in steps] == expected
    else:
        told = [each for _, each in steps]
        assert keys.send([key for key, _ in steps], 5_000, told) == expected
    assert keys.entries() == 2
    assert keys.send(["k", "k"], 6_000, [2, 1]) == ["key_reused", "deduped"]
    assert keys.send(["k"], 6_001, [2]) == ["stored"]


def test_without_a_fingerprint_a_key_alone_tells_a_repeat(keys: Keys) -> None:
    """Of a former version: its rows, and its requests in objects that a recovery takes."""
    keys.send(["old", "new"], 5_000, [None, 1])
    with closing(sqlite3.connect(keys.path)) as connection, connection:
        of_then = msgspec.msgpack.encode(([(0, 1, 1)], 1))
        connection.execute("UPDATE dedupe SET answer = ? WHERE key = 'old'", (of_then,))
    assert keys.send(["old", "new"], 5_001, [7, None]) == ["deduped", "deduped"]


def test_other_records_under_a_used_key_move_no_cursor(keys: Keys) -> None:
    cursor = keys.ledger.write(cursors.create, "c", "client", 1)[0].cursor_id
    keys.send(["k"], 5_000, [1])
    step = Advance(cursor, 0, 0, 1)
    assert keys.send(["k"], 5_000, [2], advance=step) == ["key_reused"]
    assert keys.send(["l"], 5_000, [2], advance=step) == ["stored"]


def test_a_repeat_does_not_prolong_the_window(keys: Keys) -> None:
    keys.send(["k"], 5_000)
    assert keys.send(["k"], 5_900) == ["deduped"]
    assert keys.send(["k"], 6_500) == ["stored"]


def test_keys_past_the_window_are_removed_in_steps(keys: Keys) -> None:
    keys.send([f"old-{number}" for number in range(90)], 5_000)
    assert keys.entries() == 90
    keys.send(["new"], 7_000)
    assert keys.entries() == 91 - PRUNE_STEP - 2
    keys.send(["newer"], 7_000)
    assert keys.entries() == 2


def test_a_key_at_the_end_of_its_window_is_not_removed_by_others(keys: Keys) -> None:
    keys.send(["k"], 5_000)
    keys.send(["other"], 6_000)
    assert keys.send(["k"], 6_000) == ["deduped"]


def test_a_bound_that_was_lowered_is_reached_in_steps(keys: Keys) -> None:
    keys.ledger.close()
    keys.ledger = Ledger(keys.path, nullcontext())
    keys.send([f"k-{number}" for number in range(300)], 5_000)
    keys.ledger.close()
    keys.ledger = Ledger(keys.path, nullcontext(), dedupe_limits=LIMITS)
    keys.send(["a"], 5_001)
    assert keys.entries() == 301 - PRUNE_STEP - 2


def test_there_are_never_more_keys_than_the_bound_and_the_oldest_go_first(keys: Keys) -> None:
    for number in range(0, 150, 10):
        keys.send([f"k-{number + at}" for at in range(10)], 5_000 + number)
        assert keys.entries() <= LIMITS.entries_max
    assert keys.entries() == LIMITS.entries_max
    assert keys.send(["k-50"], 5_200) == ["deduped"]
    assert keys.send(["k-49"], 5_200) == ["stored"]


def test_keys_expire_although_commits_without_conditions_follow(keys: Keys) -> None:
    keys.send(["k"], 5_000)
    for counter in range(1_000, 1_064):
        draft = draft_of(lease(counter), [Request(keys.topic_id)])
        keys.ledger.commit(draft, 9_000, lambda _: None)
    assert keys.entries() == 0
