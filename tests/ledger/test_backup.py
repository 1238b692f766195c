"""Entries and images against random histories: what is applied elsewhere is the same ledger."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from ledger import cursors, epochs, reads, topics
from ledger.checks import invariants
from ledger.cursors import Setting
from ledger.lake import lake_files, lake_tables, readleases, runs
from ledger.lake.types import NewFile, TableSwitch
from ledger.ledger import Ledger
from ledger.log import backup, recovery
from ledger.log.backup import TABLES, Mark
from ledger.log.entry import VERSION, Entry, Owner, decode, encode, entry_key
from ledger.space import deletions, leftovers, marking, orphans, retention, unreferenced
from ledger.space.leftovers import Heard
from ledger.types import CursorMove, ProducerBatch, Topic, TopicConfig
from tests.ledger.images import image_of
from tests.ledger.lakes import compact
from tests.ledger.requests import Request, draft_of, key_of, lease
from tests.ledger.test_model import LedgerMachine
from tests.ledger.upkeep import evict_all
from tests.long import examples

OWNER = Owner("host", 1, "boot", 1, 2, "/data")


# What is found again rather than told, and what ends with its ledger.
NOT_TOLD = {("objects", "free_ms"), ("partitions", "freed_seq")}
HISTORIES = {"history", "event_history"}  # notes, which a recovery changes
NO_TABLES = {"runs", "push_rates", "sqlite_sequence"}


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
        tables["meta"] = [row for row in tables["meta"] if row[0] not in HISTORIES]
    kept = {row[1:3]: row for row in here.pop("dedupe")}
    assert all(kept[row[1:3]] == row for row in there.pop("dedupe"))
    assert set(there.pop("deletions")) <= set(here.pop("deletions"))
    assert here == there


def unsynced(ledger: Ledger) -> Ledger:
    """The ledger with commits that are not durable: no test of these cuts the power."""
    ledger._connection.execute("PRAGMA synchronous = OFF")
    return ledger


class Chain:
    """What one recovery would find: an image or nothing, and entries after it."""

    def __init__(self, told: Mark, image: bytes | None) -> None:
        self.told = told
        self.image = image
        self.entries: list[bytes] = []

    def tell(self, ledger: Ledger) -> None:
        self.told, changes = ledger.read(backup.changes_since, self.told)
        number = len(self.entries) + 1
        entry = Entry(VERSION, b"", 1, number, "entry", OWNER, 0, self.told, changes)
        self.entries.append(encode(entry))

    def applied(self, path: Path, repeats: int) -> Ledger:
        if self.image is not None:
            path.write_bytes(self.image)
        copy = unsynced(Ledger(path, nullcontext()))
        for number, data in enumerate(self.entries, 1):
            changes = decode(data, entry_key(1, number)).changes
            assert changes is not None
            for _ in range(repeats):
                copy.write(backup.apply, changes)
        copy.write(recovery.begin_history, "copied", self.told)
        return copy


class BackupMachine(LedgerMachine):
    """Tells each history as a daemon would: an entry now and then, and images."""

    def __init__(self) -> None:
        super().__init__()
        self.chains = [Chain(Mark(), None)]

    def opened(self) -> Ledger:
        return unsynced(super().opened())

    def heard(self) -> Heard:
        """What all chains were told."""
        told = [chain.told for chain in self.chains]
        return Heard(
            min(each.catalog_version for each in told), min(each.change_number for each in told)
        )

    @rule()
    def tell(self) -> None:
        for chain in self.chains:
            chain.tell(self.ledger)

    @precondition(lambda self: len(self.chains) < 4)
    @rule(more_meanwhile=st.booleans())
    def snapshot(self, more_meanwhile: bool) -> None:
        mark = self.ledger.read(backup.mark)
        if more_meanwhile:
            self.create("b", 1)
        self.chains.append(Chain(mark, image_of(self.ledger)))

    def teardown(self) -> None:
        try:
            self.tell()
            while leftovers.remove_some(self.ledger, self.heard()):
                pass
            for at, chain in enumerate(self.chains):
                for repeats in (1, 2):
                    path = Path(self.directory.name) / f"copy-{at}-{repeats}.db"
                    with closing(chain.applied(path, repeats)) as copy:
                        copy.read(invariants.check)
                        while leftovers.remove_some(copy, self.heard()):
                            pass
                        assert_same(self.ledger.path, path)
        finally:
            super().teardown()


TestBackupOfHistories = BackupMachine.TestCase
TestBackupOfHistories.settings = settings(
    max_examples=examples(40), stateful_step_count=20, deadline=None
)


def test_images_alone_are_the_whole_ledger(ledger: Ledger, topic: Topic, tmp_path: Path) -> None:
    ledger.commit(draft_of(lease(1), [Request(topic.topic_id, key="k")]), 10, lambda _: None)
    copy = tmp_path / "copy.db"
    copy.write_bytes(image_of(ledger))
    assert_same(tmp_path / "ledger.db", copy)


def test_a_mark_tells_everything_that_is_news(ledger: Ledger, topic: Topic) -> None:
    seen = [ledger.read(backup.mark)]

    def is_news() -> bool:
        seen.append(ledger.read(backup.mark))
        return seen[-1] != seen[-2]

    assert not is_news()
    ledger.commit(draft_of(lease(1), [Request(topic.topic_id)]), 10, lambda _: None)
    assert is_news()
    ledger.write(topics.alter, "orders", TopicConfig(partitions=3))
    assert is_news()
    ledger.write(epochs.raise_floor, ledger.write(epochs.advance))
    assert is_news()
    ledger.write(recovery.begin_history, "another", seen[-1])
    assert is_news()
    assert not is_news()


def test_an_answer_is_told_though_all_told_before_are_gone(tmp_path: Path) -> None:
    # Ids must not begin again when the table was emptied: the mark would cover the new row.
    ledger = Ledger(tmp_path / "ledger.db", nullcontext())
    topic, _ = ledger.write(topics.create, "orders", TopicConfig(), 1)
    request = Request(topic.topic_id, key="k")
    for counter, now_ms in ((1, 1_000), (2, 10_000_000)):
        told = ledger.read(backup.mark)
        ledger.commit(draft_of(lease(counter), [request]), now_ms, lambda _: None)
        _, changes = ledger.read(backup.changes_since, told)
        assert [row[2] for row in changes.rows["dedupe"]] == ["k"]
    ledger.close()


def lake_of(ledger: Ledger, topic: Topic, counters: Sequence[int]) -> None:
    """One object and one run for each."""
    for counter in counters:
        ledger.commit(draft_of(lease(counter), [Request(topic.topic_id)]), 10, lambda _: None)
        compact(ledger, f"run-{counter}", now_ms=100 * counter)


def test_a_switch_is_news_and_tells_only_what_it_changed(ledger: Ledger, topic: Topic) -> None:
    other, _ = ledger.write(topics.create, "other", TopicConfig(), 1)
    lake_of(ledger, topic, [1])
    lake_of(ledger, other, [9])
    told = ledger.read(backup.mark)
    lake_of(ledger, topic, [2])
    assert ledger.read(backup.mark) != told
    _, changes = ledger.read(backup.changes_since, told)
    assert [row[5] for row in changes.rows["lake_files"]] == ["run-2"]
    assert [row[:3] for row in changes.rows["lake_ranges"]] == [[topic.topic_id, 0, 2]]
    assert [row[2] for row in changes.rows["lake_tables"]] == ["run-2.json"]
    moved = {row[1]: row for row in changes.rows["partitions"]}
    assert moved[0][TABLES["partitions"][0].index("compacted_seq")] == 2


def test_a_dropped_file_is_told_again(ledger: Ledger, topic: Topic) -> None:
    lake_of(ledger, topic, [1])
    told = ledger.read(backup.mark)
    (file,) = ledger.read(lake_files.of_topic, topic.topic_id)
    ledger.write(runs.begin, "again", "test", 500)
    joined = NewFile(
        "file:///joined", 1, 1, ledger.read(lake_files.ranges, topic.topic_id)[file.file_id]
    )
    switch = TableSwitch(topic.topic_id, "t", "m", {}, (joined,), (file.path,))
    ledger.write(lake_tables.switch, "again", [switch], 600)
    _, changes = ledger.read(backup.changes_since, told)
    assert [(row[2], row[6]) for row in changes.rows["lake_files"]] == [
        (file.path, 600), (joined.path, None)
    ]  # fmt: skip


def test_what_an_entry_names_is_gone_for_who_applies_it(
    ledger: Ledger, topic: Topic, tmp_path: Path
) -> None:
    lake_of(ledger, topic, [1, 2])
    ledger.write(topics.create, "other", TopicConfig(), 1)
    with closing(Ledger(tmp_path / "copy.db", nullcontext())) as copy:
        mark, changes = ledger.read(backup.changes_since, Mark())
        copy.write(backup.apply, changes)
        assert len(copy.read(reads.objects)) == 2
        before = ledger.read(lake_files.of_topic, topic.topic_id)
        assert copy.read(lake_files.of_topic, topic.topic_id) == before
        rule = ledger.read(deletions.policy, 10_000, 0, 2)
        found = ledger.read(unreferenced.page, rule, (-1, 0))
        assert [one.key for one in ledger.write(unreferenced.name, rule, found)] == [
            key_of(lease(1))
        ]
        ledger.write(lake_files.name, [before[0].path])
        mark, changes = ledger.read(backup.changes_since, mark)
        for _ in range(2):
            copy.write(backup.apply, changes)
        assert [row.key for row in copy.read(reads.objects)] == [key_of(lease(2))]
        assert copy.read(reads.extents_from, topic.topic_id, 0, 1, 9) == ledger.read(
            reads.extents_from, topic.topic_id, 0, 2, 9
        )
        assert copy.read(lake_files.of_topic, topic.topic_id) == before[1:]
        assert set(copy.read(lake_files.ranges, topic.topic_id)) == {before[1].file_id}
        # Here they are until the store has let go of them.
        assert (
            len(ledger.read(reads.objects)) == 2
            and ledger.read(lake_files.of_topic, topic.topic_id) == before
        )
        assert copy.read(deletions.keys) == ledger.read(deletions.keys)


def test_read_leases_are_told_as_they_stand(ledger: Ledger, tmp_path: Path) -> None:
    with closing(Ledger(tmp_path / "copy.db", nullcontext())) as copy:
        mark = Mark()
        for held in (["a"], ["a", "b"], ["b"], []):
            for name in {"a", "b"} - set(held):
                ledger.write(readleases.end, name)
            for name in sorted(set(held) - {one.lease for one in ledger.read(readleases.live, 5)}):
                ledger.write(readleases.take, name, "plan", 5, 1_000)
            mark, changes = ledger.read(backup.changes_since, mark)
            copy.write(backup.apply, changes)
            assert copy.read(readleases.live, 5) == ledger.read(readleases.live, 5)
            assert [one.lease for one in copy.read(readleases.live, 5)] == held


def test_since_when_objects_are_free_is_found_again(
    ledger: Ledger, topic: Topic, tmp_path: Path
) -> None:
    lake_of(ledger, topic, [1, 2])
    with closing(Ledger(tmp_path / "copy.db", nullcontext())) as copy:
        copy.write(backup.apply, ledger.read(backup.changes_since, Mark())[1])
        rule = copy.read(deletions.policy, 10_000, 0, 9)
        assert copy.read(unreferenced.page, rule, (-1, 0)) == []
        while marking.mark_unreferenced(copy, 9_000):
            pass
        assert [one.since_ms for one in copy.read(unreferenced.page, rule, (-1, 0))] == [9_000]


def test_what_a_cap_evicted_is_told(ledger: Ledger, topic: Topic, tmp_path: Path) -> None:
    ledger.commit(draft_of(lease(1), [Request(topic.topic_id, ((0, 5),))]), 10, lambda _: None)
    told = ledger.read(backup.mark)
    ledger.write(topics.alter, "orders", TopicConfig(partitions=2, cap_records=2))
    evict_all(ledger, 20)
    with closing(Ledger(tmp_path / "copy.db", nullcontext())) as copy:
        for mark in (Mark(), told):
            copy.write(backup.apply, ledger.read(backup.changes_since, mark)[1])
        state = copy.read(reads.partition_states, topic.topic_id)[0]
        assert state == ledger.read(reads.partition_states, topic.topic_id)[0]
        assert (state.earliest_seq, state.lost_seq, state.lost_reason) == (4, 3, "cap")


def test_ids_that_were_told_are_not_given_again_by_a_recovered_ledger(
    ledger: Ledger, topic: Topic
) -> None:
    """Also when no row is left to tell them by: a later entry would pass the new rows over."""
    told = Mark(dedupe_id=5, deletion_id=7)
    ledger.write(recovery.begin_history, "recovered", told)
    ledger.commit(draft_of(lease(1), [Request(topic.topic_id, key="k")]), 10, lambda _: None)
    ledger.write(epochs.raise_floor, ledger.write(epochs.advance))
    assert ledger.write(orphans.name, [("l0/orphan", "there")])
    rows = ledger.read(backup.changes_since, told)[1].rows
    assert [row[0] for row in rows["dedupe"]] == [6]
    assert [row[0] for row in rows["deletions"]] == [8]


def test_events_keep_their_ids_when_a_standby_goes_on_and_not_after_another_recovery(
    ledger: Ledger,
) -> None:
    found = []
    for name, followed in (("a", True), ("b", False), ("c", True), ("d", True), ("e", False)):
        ledger.write(recovery.begin_history, name, Mark(), followed=followed)
        assert ledger.read(backup.history) == name
        found.append(ledger.read(backup.event_history))
    assert found == ["", "b", "b", "b", "e"]


def test_an_entry_carries_the_cursors_and_positions_that_changed_since_and_no_others(
    ledger: Ledger,
) -> None:
    def told(since: Mark) -> tuple[Mark, list[object], list[object]]:
        mark, changes = ledger.read(backup.changes_since, since)
        names = [row[1] for row in changes.rows.get("cursors", [])]
        return mark, names, [row[:3] for row in changes.rows.get("cursor_positions", [])]

    for name in ("a", "b"):
        ledger.write(cursors.create, name, "client", 1)
    mark, *rows = told(Mark())
    assert rows == [["a", "b"], []]
    ledger.write(cursors.set_positions, "b", "client", [Setting(3, 5)])
    mark, *rows = told(mark)
    assert rows == [[], [[2, 3, 5]]]
    ledger.write(cursors.flush, [CursorMove(1, 0, 0, 4), CursorMove(2, 3, 5, 6)])
    mark, *rows = told(mark)
    assert rows == [[], [[1, 0, 4], [2, 3, 6]]]
    ledger.write(cursors.delete, "a", "client", 1)
    mark, *rows = told(mark)
    assert rows == [["a"], []]
    assert told(mark)[1:] == ([], [])


def test_an_entry_carries_the_producers_that_changed_since_and_no_others(
    ledger: Ledger, topic: Topic
) -> None:
    def told(since: Mark, *producer_ids: int) -> tuple[Mark, list[object]]:
        requests = []
        for each in producer_ids:
            batch = ProducerBatch(each, 0, sent[each], sent[each])
            requests.append(Request(topic.topic_id, producer=batch))
            sent[each] += 1
        ledger.commit(draft_of(lease(sum(sent.values())), requests), 10, lambda _: None)
        mark, changes = ledger.read(backup.changes_since, since)
        return mark, [row[2] for row in changes.rows.get("producers", [])]

    sent = {7: 0, 8: 0}
    mark, rows = told(Mark(), 7, 8)
    assert rows == [7, 8]
    mark, rows = told(mark, 7)
    assert rows == [7]
    assert told(mark, 7, 8)[1] == [7, 8]


def test_an_entry_that_was_told_before_an_image_was_copied_takes_nothing_of_it_back(
    ledger: Ledger, topic: Topic
) -> None:
    """Such an entry may be sent after the image, and is applied on top of it."""
    ledger.write(cursors.create, "c", "client", 1)
    ledger.write(cursors.set_positions, "c", "client", [Setting(0, 5)])
    told, older = ledger.read(backup.changes_since, Mark())
    ledger.write(epochs.raise_floor, ledger.write(epochs.advance))
    ledger.write(epochs.begin_incarnation, 1)
    ledger.write(topics.delete, topic.name, 1)
    topic, _ = ledger.write(topics.create, topic.name, TopicConfig(), 1)
    ledger.write(cursors.delete, "c", "client", 1)
    ledger.write(cursors.create, "c", "client", 1)
    ledger.commit(draft_of(lease(1, epoch=3), [Request(topic.topic_id)]), 10, lambda _: None)
    newer = ledger.read(backup.changes_since, told)[1]
    assert all(newer.state[name] > older.state[name] for name in newer.state)
    ledger.write(backup.apply, older)
    assert ledger.read(backup.changes_since, Mark())[1].state == newer.state
    ledger.write(backup.apply, newer)  # comes after it, and has what the older one took back


def test_an_object_whose_quarantine_is_told_is_not_free(
    ledger: Ledger, topic: Topic, tmp_path: Path
) -> None:
    ledger.commit(draft_of(lease(1), [Request(topic.topic_id)]), 10, lambda _: None)
    (row,) = ledger.read(reads.objects)
    there = tmp_path / "copy.db"
    there.write_bytes(image_of(ledger))
    with closing(Ledger(there, nullcontext())) as copy, closing(sqlite3.connect(there)) as look:
        retention.trim(copy, "orders", 0, 2)
        while marking.mark_unreferenced(copy, 20):
            pass
        assert look.execute("SELECT free_ms FROM objects").fetchall() == [(20,)]
        compact(ledger, "r", bad_keys={row.key})
        copy.write(backup.apply, ledger.read(backup.changes_since, Mark())[1])
        assert look.execute("SELECT free_ms FROM objects").fetchall() == [(None,)]
