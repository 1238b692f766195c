"""Entries and images against random histories: what is applied elsewhere is the same ledger."""

from __future__ import annotations

import sqlite3
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from ledger.backup import TABLES, Mark, restore_image
from ledger.entry import VERSION, Entry, Owner, decode, encode, entry_key
from ledger.ledger import Ledger
from ledger.types import Topic, TopicConfig
from tests.ledger.requests import Request, draft_of, lease
from tests.ledger.test_model import LedgerMachine

OWNER = Owner("host", 1, "boot", 1, 2, "/data")


# What is found again rather than told, and what ends with its ledger.
NOT_TOLD = {("objects", "free_ms"), ("partitions", "freed_seq")}
NO_TABLES = {"runs", "sqlite_sequence"}


def tables_of(path: Path) -> dict[str, list[Any]]:
    """All rows of a ledger file, by table."""
    found = {}
    with closing(sqlite3.connect(path)) as connection:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        for (name,) in tables.fetchall():
            columns = [
                row[1]
                for row in connection.execute(f"PRAGMA table_info ({name})")
                if (name, row[1]) not in NOT_TOLD
            ]
            if name not in NO_TABLES:
                rows = connection.execute(f"SELECT {', '.join(columns)} FROM {name}").fetchall()
                found[name] = sorted(rows, key=repr)
    assert found.keys() == {*TABLES, "state"}
    return found


def assert_same(source: Path, copy: Path) -> None:
    """Equal in every table. Of answers to keys the copy may have some that the source has
    removed since: they count for their window only, on either side. And of names of objects that
    are gone: a collection in the copy finds them gone."""
    there, here = tables_of(source), tables_of(copy)
    for tables in (there, here):
        tables["meta"] = [row for row in tables["meta"] if row[0] != "history"]
    kept = {row[1:3]: row for row in here.pop("dedupe")}
    assert all(kept[row[1:3]] == row for row in there.pop("dedupe"))
    assert set(there.pop("deletions")) <= set(here.pop("deletions"))
    assert here == there


def unsynced(ledger: Ledger) -> Ledger:
    """The ledger with commits that are not durable: no test of these cuts the power."""
    with ledger._session.reading() as connection:
        connection.execute("PRAGMA synchronous = OFF")
    return ledger


class Chain:
    """What one recovery would find: an image or nothing, and entries behind it."""

    def __init__(self, told: Mark, image: bytes | None) -> None:
        self.told = told
        self.image = image
        self.entries: list[bytes] = []

    def tell(self, ledger: Ledger) -> None:
        self.told, changes = ledger.changes_since(self.told)
        number = len(self.entries) + 1
        entry = Entry(VERSION, b"", 1, number, "entry", OWNER, 0, self.told, changes)
        self.entries.append(encode(entry))

    def applied(self, path: Path, repeats: int) -> Ledger:
        if self.image is not None:
            restore_image(path, self.image)
        copy = unsynced(Ledger(path, nullcontext()))
        for number, data in enumerate(self.entries, 1):
            changes = decode(data, entry_key(1, number)).changes
            assert changes is not None
            for _ in range(repeats):
                copy.apply_changes(changes)
        copy.begin_history("copied", self.told)
        return copy


class BackupMachine(LedgerMachine):
    """Tells each history as a daemon would: an entry now and then, and images."""

    def __init__(self) -> None:
        super().__init__()
        self.chains = [Chain(Mark(), None)]

    def opened(self) -> Ledger:
        return unsynced(super().opened())

    @rule()
    def tell(self) -> None:
        for chain in self.chains:
            chain.tell(self.ledger)

    @precondition(lambda self: len(self.chains) < 4)
    @rule(more_meanwhile=st.booleans())
    def snapshot(self, more_meanwhile: bool) -> None:
        mark = self.ledger.mark()
        if more_meanwhile:
            self.create("b", 1)
        self.chains.append(Chain(mark, self.ledger.image()))

    def teardown(self) -> None:
        try:
            self.tell()
            for at, chain in enumerate(self.chains):
                for repeats in (1, 2):
                    path = Path(self.directory.name) / f"copy-{at}-{repeats}.db"
                    with closing(chain.applied(path, repeats)) as copy:
                        copy.check_invariants()
                        assert_same(self.ledger.path, path)
        finally:
            super().teardown()


TestBackupOfHistories = BackupMachine.TestCase
TestBackupOfHistories.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)


def test_images_alone_are_the_whole_ledger(ledger: Ledger, topic: Topic, tmp_path: Path) -> None:
    ledger.commit(draft_of(lease(1), [Request(topic.topic_id, key="k")]), 10, lambda _: None)
    copy = tmp_path / "copy.db"
    restore_image(copy, ledger.image())
    assert_same(tmp_path / "ledger.db", copy)


def test_a_mark_tells_everything_that_is_news(ledger: Ledger, topic: Topic) -> None:
    seen = [ledger.mark()]

    def is_news() -> bool:
        seen.append(ledger.mark())
        return seen[-1] != seen[-2]

    assert not is_news()
    ledger.commit(draft_of(lease(1), [Request(topic.topic_id)]), 10, lambda _: None)
    assert is_news()
    ledger.alter_topic("orders", TopicConfig(partitions=3))
    assert is_news()
    ledger.raise_epoch_floor(ledger.raise_epoch())
    assert is_news()
    assert ledger.want_entry() == 1
    assert is_news() and seen[-1].wanted == 1
    ledger.begin_history("another", seen[-1])
    assert is_news()
    assert not is_news()


def test_an_answer_is_told_though_all_told_before_are_gone(tmp_path: Path) -> None:
    # Ids must not begin again when the table was emptied: the mark would cover the new row.
    ledger = Ledger(tmp_path / "ledger.db", nullcontext())
    topic, _ = ledger.create_topic("orders", TopicConfig(), 1)
    request = Request(topic.topic_id, key="k")
    for counter, now_ms in ((1, 1_000), (2, 10_000_000)):
        told = ledger.mark()
        ledger.commit(draft_of(lease(counter), [request]), now_ms, lambda _: None)
        _, changes = ledger.changes_since(told)
        assert [row[2] for row in changes.rows["dedupe"]] == ["k"]
    ledger.close()
