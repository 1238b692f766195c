"""What a plan holds, what a switch changes, and which objects become free by it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any, Concatenate, ParamSpec, TypeVar

import pytest

from ledger import reads, topics
from ledger.checks import invariants
from ledger.errors import RunLost, SwitchRefused
from ledger.lake import lake_files, lake_tables, pages, runs
from ledger.lake.types import FileRange, Hole, LakeRange, LakeTable, NewFile, TableSwitch
from ledger.ledger import Ledger
from ledger.space import marking, retention
from ledger.tx import ReadTx
from ledger.types import Topic, TopicConfig
from tests.ledger.lakes import commit, compact, plan_all, switches_of
from tests.ledger.requests import Request, key_of, lease

P = ParamSpec("P")
T = TypeVar("T")


def rows(ledger: Ledger, sql: str) -> list[Any]:
    with closing(sqlite3.connect(ledger.path)) as connection:
        found = connection.execute(sql).fetchall()
        connection.commit()
    return found


def planned(ledger: Ledger, **how: Any) -> list[tuple[int, list[tuple[int, int, int, int]]]]:
    """(commit number, [(topic id, partition, first, last)]) of a plan."""
    return [
        (
            item.commit_number,
            [(e.topic_id, e.partition, e.first_offset, e.last_offset) for e in item.extents],
        )
        for item in plan_all(ledger, **how)
    ]


def free(ledger: Ledger) -> list[int]:
    """Commit numbers of free objects."""
    sql = "SELECT commit_number FROM objects WHERE free_ms IS NOT NULL ORDER BY 1"
    return [row[0] for row in rows(ledger, sql)]


def test_a_plan_is_objects_in_commit_order_with_their_extents(ledger: Ledger, topic: Topic) -> None:
    t = topic.topic_id
    commit(ledger, 7, Request(t, ((0, 2), (1, 1))))
    commit(ledger, 3, Request(t, ((1, 4),)))
    commit(ledger, 5, Request(t, ((0, 1),)))
    assert planned(ledger) == [
        (1, [(t, 0, 1, 2), (t, 1, 1, 1)]),
        (2, [(t, 1, 2, 5)]),
        (3, [(t, 0, 3, 3)]),
    ]
    assert planned(ledger, to_commit=2) == planned(ledger)[:2]
    assert planned(ledger, page=1) == planned(ledger)
    (first, *_) = ledger.read(lake_tables.plan_objects, 0, 3)
    assert (first.key, first.locator) == (key_of(lease(7)), f"at:{key_of(lease(7))}")
    assert list(first.extents) == [
        *ledger.read(reads.extents_from, t, 0, 1, 1), *ledger.read(reads.extents_from, t, 1, 1, 1)
    ]  # fmt: skip
    assert first.size_bytes == first.extents[0].object_size_bytes


def test_a_plan_is_of_live_topics_and_of_those_asked_for(ledger: Ledger, topic: Topic) -> None:
    other, _ = ledger.write(topics.create, "other", TopicConfig(), 1)
    commit(ledger, 1, Request(topic.topic_id), Request(other.topic_id))
    commit(ledger, 2, Request(topic.topic_id))
    commit(ledger, 3, Request(other.topic_id))
    assert planned(ledger, topic_ids={other.topic_id}, page=1) == [
        (1, [(other.topic_id, 0, 1, 1)]),
        (3, [(other.topic_id, 0, 2, 2)]),
    ]
    ledger.write(topics.delete, "orders", 2)
    assert planned(ledger) == planned(ledger, topic_ids={other.topic_id})
    assert planned(ledger, topic_ids=set()) == []


def test_a_plan_leaves_out_what_was_evicted(ledger: Ledger, topic: Topic) -> None:
    for counter in (1, 2, 3):
        commit(ledger, counter, Request(topic.topic_id, ((0, 2),)))
    rows(
        ledger, "UPDATE partitions SET earliest_seq = 4, count = 3, bytes = 40 WHERE partition = 0"
    )
    assert [number for number, _ in planned(ledger)] == [2, 3]


def test_a_page_of_a_plan_does_not_hold_its_view_of_the_ledger(
    ledger: Ledger, topic: Topic
) -> None:
    for counter in range(1, 5):
        commit(ledger, counter, Request(topic.topic_id))
    assert len(ledger.read(lake_tables.plan_objects, 0, 4, limit=1)) == 1
    rows(
        ledger, "UPDATE partitions SET earliest_seq = 4, count = 1, bytes = 10 WHERE partition = 0"
    )
    assert ledger.read(reads.partition_states, topic.topic_id)[0].earliest_seq == 4


def test_a_switch_is_what_readers_and_the_next_plan_see(ledger: Ledger, topic: Topic) -> None:
    t = topic.topic_id
    commit(ledger, 1, Request(t, ((0, 4), (1, 2))))
    commit(ledger, 2, Request(t, ((0, 2),)))
    version = ledger.read(topics.catalog_version)
    compact(ledger, "r1", now_ms=100, to_commit=1)
    assert ledger.read(lake_tables.compacted_seqs, t) == {0: 4, 1: 2}
    assert [state.compacted_seq for state in ledger.read(reads.partition_states, t)] == [4, 2]
    assert ledger.read(topics.catalog_version) == version + 1
    assert planned(ledger) == [(2, [(t, 0, 5, 6)])]
    assert ledger.read(lake_tables.find, t) == LakeTable(t, f"headgate.t{t}", "r1.json", 100)
    assert ledger.read(lake_tables.every) == [ledger.read(lake_tables.find, t)]
    assert ledger.read(lake_tables.find, 99) is None
    (file,) = ledger.read(lake_files.of_topic, t)
    assert (file.path, file.rows, file.run) == (f"file:///lake/r1-{t}-0.parquet", 6, "r1")
    assert ledger.read(lake_files.ranges, t) == {
        file.file_id: (
            LakeRange(0, 1, 4, 4, 40, 1_000, 1_000), LakeRange(1, 1, 2, 2, 20, 1_000, 1_000)
        )
    }  # fmt: skip
    assert free(ledger) == [1]
    compact(ledger, "r2", now_ms=200)
    assert ledger.read(lake_tables.compacted_seqs, t) == {0: 6, 1: 2}
    assert planned(ledger) == []
    assert free(ledger) == [1, 2]


def test_ranges_come_in_pages_of_whole_files(ledger: Ledger, topic: Topic) -> None:
    t = topic.topic_id
    for run in ("r1", "r2", "r3", "r4"):
        commit(ledger, int(run[1]), Request(t, ((0, 4), (1, 2))))
        compact(ledger, run)
    first, second, third, fourth = (file.file_id for file in ledger.read(lake_files.of_topic, t))
    whole = ledger.read(lake_files.ranges, t)
    assert [len(found) for found in whole.values()] == [2, 2, 2, 2]

    def paged(limit: int) -> list[list[int]]:
        found: list[list[int]] = []
        after = 0
        while page := ledger.read(lake_files.ranges, t, after, limit):
            assert page.items() <= whole.items()
            found.append(list(page))
            after = max(page)
        return found

    assert paged(8) == [[first, second, third, fourth]]
    assert paged(4) == [[first, second], [third, fourth]]
    assert paged(3) == [[first, second], [third, fourth]], "a file is not divided"
    assert paged(1) == [[first], [second], [third], [fourth]]


def test_a_run_that_has_ended_is_not_begun_again(ledger: Ledger) -> None:
    ledger.write(runs.begin, "r", "test", 1)
    ledger.write(runs.end, "r", 2)
    with pytest.raises(RunLost, match="it ended or was taken over at 2"):
        ledger.write(runs.begin, "r", "test", 3)
    ledger.write(runs.begin, "next", "test", 3)
    with pytest.raises(RunLost):
        ledger.write(runs.begin, "r", "test", 4)
    assert ledger.read(runs.living, 4) == "next"


def test_a_repeated_switch_does_no_harm(ledger: Ledger, topic: Topic) -> None:
    commit(ledger, 1, Request(topic.topic_id, ((0, 4),)))
    switches = switches_of(plan_all(ledger), "r")
    ledger.write(runs.begin, "r", "test", 1)
    ledger.write(lake_tables.switch, "r", switches, 2)
    commit(ledger, 2, Request(topic.topic_id, ((0, 1),)))
    before = (
        ledger.read(lake_files.of_topic, topic.topic_id),
        ledger.read(lake_files.ranges, topic.topic_id),
    )
    ledger.write(lake_tables.switch, "r", switches, 3)
    assert (
        ledger.read(lake_files.of_topic, topic.topic_id),
        ledger.read(lake_files.ranges, topic.topic_id),
    ) == before
    assert ledger.read(lake_tables.compacted_seqs, topic.topic_id)[0] == 4


def test_file_ranges_are_those_of_live_files_by_their_first_offset(
    ledger: Ledger, topic: Topic
) -> None:
    t = topic.topic_id
    for run in ("r1", "r2", "r3"):
        commit(ledger, int(run[1]), Request(t, ((0, 10),)))
        compact(ledger, run, days=2)

    def firsts(offset: int, limit: int = 99) -> list[int]:
        return [
            one.range.first_offset
            for one in ledger.read(lake_files.ranges_from, t, 0, offset, limit)
        ]

    assert firsts(1) == [1, 2, 11, 12, 21, 22]
    assert firsts(9, 2) == [1, 2]
    assert firsts(10) == [2, 11, 12, 21, 22]
    assert firsts(30) == [22]
    assert firsts(31) == []
    assert ledger.read(lake_files.ranges_from, t, 1, 1, 9) == []
    # A later run rewrites the files of the first.
    old = ledger.read(lake_files.of_topic, t)[:2]
    merged = NewFile("file:///lake/r4.parquet", 9, 10, (LakeRange(0, 1, 10, 10, 100, 1, 1),))
    ledger.write(runs.begin, "r4", "test", 500)
    ledger.write(
        lake_tables.switch,
        "r4",
        [TableSwitch(t, "headgate.x", "4", {}, (merged,), tuple(f.path for f in old))],
        500,
    )
    assert firsts(1) == [1, 11, 12, 21, 22]
    assert ledger.read(lake_files.ranges_from, t, 0, 1, 1) == [
        FileRange(ledger.read(lake_files.of_topic, t)[-1].file_id, merged.path, 9, merged.ranges[0])
    ]
    assert {f.file_id for f in ledger.read(lake_files.of_topic, t)} == set(
        ledger.read(lake_files.ranges, t)
    )
    assert len(ledger.read(lake_files.of_topic, t)) == 5
    dropped = [
        f
        for f in ledger.read(lake_files.of_topic, t, with_dropped=True)
        if f.dropped_ms is not None
    ]
    assert [(f.path, f.dropped_ms) for f in dropped] == [(f.path, 500) for f in old]


def test_a_hole_is_kept_and_its_object_is_never_free(ledger: Ledger, topic: Topic) -> None:
    t = topic.topic_id
    for counter in (1, 2, 3):
        commit(ledger, counter, Request(t, ((0, 3),)))
    compact(ledger, "r", bad_keys={key_of(lease(2))})
    hole = Hole(t, 0, 4, 6, key_of(lease(2)), "torn")
    assert ledger.read(lake_tables.holes, t) == [hole]
    assert ledger.read(lake_tables.holes, 99) == []
    assert planned(ledger) == []
    assert free(ledger) == [1, 3]
    ledger.write(topics.delete, "orders", 7)
    with ledger.writing() as connection:
        assert marking.mark_moved(connection, 7) == 0


@pytest.mark.parametrize(
    ("watermarks", "ranges", "words"),
    [
        ({0: 5}, (), "watermark of partition 0 is 5, but the next offset of topic 1 there is 5"),
        ({2: 1}, (), "topic 1 never had a partition 2"),
        ({0: 3}, (LakeRange(0, 1, 4, 4, 1, 1, 1),), "holds offset 4 of partition 0, its watermark"),
    ],
)
def test_a_switch_that_says_more_than_the_ledger_is_refused_whole(
    ledger: Ledger, topic: Topic, watermarks: dict[int, int], ranges: tuple[LakeRange, ...],
    words: str,
) -> None:  # fmt: skip
    commit(ledger, 1, Request(topic.topic_id, ((0, 4),)))
    ledger.write(runs.begin, "r", "test", 1)
    good = TableSwitch(topic.topic_id, "headgate.orders", "1", {0: 1})
    bad = TableSwitch(
        topic.topic_id, "headgate.orders", "2", watermarks, (NewFile("file:///x", 1, 4, ranges),)
    )
    with pytest.raises(SwitchRefused, match=words):
        ledger.write(lake_tables.switch, "r", [good, bad], 5)
    assert (
        ledger.read(lake_tables.every) == []
        and ledger.read(lake_files.of_topic, topic.topic_id) == []
    )
    assert ledger.read(lake_tables.compacted_seqs, topic.topic_id) == {0: 0, 1: 0}


def scans(ledger: Ledger, statement: str, values: tuple[int, ...]) -> list[str]:
    """What SQLite reads from end to end, or sorts, for a statement."""
    with closing(sqlite3.connect(ledger.path)) as connection:
        plan = connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)
        return [row[3] for row in plan if not row[3].startswith(("SEARCH", "LIST", "CORR"))]


def test_marking_reads_what_moved_and_a_page_of_a_plan_ends_early(ledger: Ledger) -> None:
    # With 100,000 objects a scan would hold the ledger's lock for a second.
    assert scans(ledger, marking._MARK_SQL, (1,)) == ["SCAN p", "SCAN quarantine"]
    assert scans(ledger, lake_tables._PLAN_SQL, (0, 9)) == []
    assert scans(ledger, lake_files._RANGES_SQL, (1, 0, 1, 9)) == ["USE TEMP B-TREE FOR ORDER BY"]


def test_an_object_is_free_when_the_last_of_its_partitions_is(ledger: Ledger, topic: Topic) -> None:
    other, _ = ledger.write(topics.create, "other", TopicConfig(), 1)
    commit(ledger, 1, Request(topic.topic_id, ((0, 2), (1, 2))), Request(other.topic_id))
    commit(ledger, 2, Request(topic.topic_id))
    compact(ledger, "r", to_commit=1, topic_ids=frozenset({topic.topic_id}))
    assert free(ledger) == []
    commit(ledger, 3, Request(other.topic_id))
    retention.trim(ledger, "other", 0, 2)
    with ledger.writing() as connection:
        assert marking.mark_moved(connection, 77) == 1
        assert marking.mark_moved(connection, 78) == 0
    assert rows(ledger, "SELECT free_ms FROM objects") == [(77,), (None,), (None,)]
    ledger.write(topics.delete, "other", 80)
    with ledger.writing() as connection:
        assert marking.mark_moved(connection, 81) == 1
    assert free(ledger) == [1, 3]


def test_a_hole_of_an_evicted_object_takes_the_mark_away(ledger: Ledger, topic: Topic) -> None:
    # A run died between its tables' commit and the switch; meanwhile all of it was evicted.
    commit(ledger, 1, Request(topic.topic_id, ((0, 2),)))
    switches = switches_of(plan_all(ledger), "r", {key_of(lease(1))})
    retention.trim(ledger, "orders", 0, 3)
    assert not marking.mark_unreferenced(ledger, 5)
    assert free(ledger) == [1]
    ledger.write(runs.begin, "next", "test", 6)
    ledger.write(lake_tables.switch, "next", switches, 7)
    assert free(ledger) == []


def test_a_mark_that_a_quarantine_came_before_is_not_made(ledger: Ledger, topic: Topic) -> None:
    # The hole is told between the look at what is free and the write of it.
    commit(ledger, 1, Request(topic.topic_id, ((0, 2),)))
    commit(ledger, 2, Request(topic.topic_id, ((0, 1),)))
    switches = switches_of(plan_all(ledger, 1), "r", {key_of(lease(1))})
    retention.trim(ledger, "orders", 0, 4)
    with ledger.reading() as connection:
        marks = marking.markable(connection)
    assert marks.commits == [1, 2]
    ledger.write(runs.begin, "r", "test", 6)
    ledger.write(lake_tables.switch, "r", switches, 7)
    with ledger.writing() as connection:
        marking.mark(connection, marks, 8)
    assert free(ledger) == [2]
    ledger.read(invariants.check)


def test_bytes_up_to_the_switch_are_those_that_the_files_say(ledger: Ledger, topic: Topic) -> None:
    t = topic.topic_id
    commit(ledger, 1, Request(t, ((0, 4),)))
    commit(ledger, 2, Request(t, ((0, 2),)))
    assert ledger.read(reads.partition_states, t)[0].bytes == 60
    ledger.write(runs.begin, "r", "test", 1)
    file = NewFile("file:///x", 9, 4, (LakeRange(0, 1, 4, 4, 33, 1, 1),))
    ledger.write(
        lake_tables.switch, "r", [TableSwitch(t, "headgate.orders", "1", {0: 4}, (file,))], 2
    )
    assert ledger.read(reads.partition_states, t)[0].bytes == 53


COUNT = 2 * pages.PAGE + 7


class Counting:
    """A ledger that remembers how many rows each answer had."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.sizes: list[int] = []

    def read(
        self, function: Callable[Concatenate[ReadTx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        found = self._ledger.read(function, *args, **kwargs)
        assert isinstance(found, list)
        self.sizes.append(len(found))
        return found


@pytest.mark.parametrize("kind", ["files", "dropped", "tables", "holes", "quarantined"])
def test_no_answer_about_the_lake_has_more_than_a_page(
    ledger: Ledger, topic: Topic, kind: str
) -> None:
    t, number = topic.topic_id, range(1, COUNT + 1)
    with closing(sqlite3.connect(ledger.path)) as connection, connection:
        connection.executemany(
            "INSERT INTO lake_files (topic_id, path, size_bytes, rows, run, dropped_ms, changed)"
            " VALUES (?, ?, 1, 1, 'r', ?, 1)",
            [(t + n % 2, f"p{n}", 1 if n % 4 == 0 else None) for n in range(2 * COUNT)],
        )
        connection.executemany(
            "INSERT INTO lake_tables VALUES (?, 'n', 'l', 1, 1)", [(n,) for n in number]
        )
        # Of each partition, turn by turn in quarantine and lost.
        connection.executemany(
            "INSERT INTO quarantine VALUES (?, ?, ?, ?, ?, 'r', 1)",
            [(t, n % 2, n, n, f"k{COUNT - n}") for n in number],
        )
        connection.executemany(
            "INSERT INTO lost VALUES (?, ?, ?, ?, 'k', 'r', 1, 1)",
            [(t, n % 2, COUNT + n, COUNT + n) for n in number],
        )
    told = Counting(ledger)
    if kind in ("files", "dropped"):
        files = [*pages.files_of(told, t, kind == "dropped")]
        expected = [f"p{n}" for n in range(0, 2 * COUNT, 2) if kind == "dropped" or n % 4]
        assert [file.path for file in files] == expected
    elif kind == "tables":
        assert [table.topic_id for table in pages.tables(told)] == [*number]
    elif kind == "holes":
        places = [(hole.partition, hole.first_offset) for hole in pages.holes_of(told, t)]
        assert places == sorted((n % 2, at) for n in number for at in (n, COUNT + n))
    else:
        found = pages.quarantined(told)
        assert sorted(one.hole.first_offset for one in found) == [*number]
        assert [one.hole.key for one in found] == sorted(f"k{n}" for n in range(COUNT))
    assert len(told.sizes) > 1 and max(told.sizes) == pages.PAGE
    with closing(sqlite3.connect(ledger.path)) as connection, connection:
        for table in ("lake_files", "lake_tables", "quarantine", "lost"):
            connection.execute(f"DELETE FROM {table}")  # these keep no invariant
