"""What of a subscription is finished: flushed, settled by commits, carried, and begun again."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ledger import changes, topics
from ledger.checks import invariants
from ledger.delivery import progress, subscriptions
from ledger.delivery.progress import ROW_OFFSETS, SubscriptionFlush, SubscriptionProgress
from ledger.delivery.subscriptions import Subscription, SubscriptionConfig
from ledger.ledger import Ledger
from ledger.log import backup
from ledger.log.backup import Mark
from ledger.types import Advance, Topic, TopicConfig
from tests.ledger.requests import Answer, Request, answers, draft_of, lease
from tests.long import examples

ROWS = 3


def add(ledger: Ledger, partitions: int = 2) -> Subscription:
    """A subscription to a topic whose partitions have as many records as it may finish."""
    orders = ledger.read(topics.find, "orders")
    assert orders is not None
    parts = tuple((partition, ROWS * ROW_OFFSETS) for partition in range(partitions))
    ledger.commit(draft_of(lease(0), [Request(orders.topic_id, parts)]), 10, lambda _: None)
    config = SubscriptionConfig()
    return ledger.write(subscriptions.create, "orders", "s", config, "earliest", 5)


def bits(offsets: Iterable[int]) -> bytes:
    value = sum(1 << offset % ROW_OFFSETS for offset in set(offsets))
    return value.to_bytes(ROW_OFFSETS // 8, "little")


def flush(
    ledger: Ledger, made: Subscription, floors: dict[int, int], *finished: int, epoch: int = 1
) -> set[int]:
    """Flushes floors, and these offsets of partition 0."""
    rows = [
        (0, row, bits(offset for offset in finished if offset // ROW_OFFSETS == row))
        for row in sorted({offset // ROW_OFFSETS for offset in finished})
    ]
    flushed = SubscriptionFlush(
        made.subscription_id, made.generation, epoch, list(floors.items()), rows
    )
    return ledger.write(progress.flush, [flushed])


def finished(there: SubscriptionProgress, partition: int) -> set[int]:
    """Finished offsets above the floor."""
    return {
        row * ROW_OFFSETS + at
        for of, row, some in there.rows
        for at in range(ROW_OFFSETS)
        if of == partition and some[at // 8] >> at % 8 & 1
        if row * ROW_OFFSETS + at > there.floors.get(partition, 0)
    }


def state(ledger: Ledger, made: Subscription) -> SubscriptionProgress:
    there = ledger.read(progress.state_of, made.subscription_id)
    assert there is not None
    return there


def dead_letter(made: Subscription, offset: int, dead: Topic, partition: int = 0) -> Request:
    advance = Advance(made.generation, partition, offset, offset, True)
    return Request(dead.topic_id, advance=advance)


def commit(ledger: Ledger, counter: int, *requests: Request) -> list[Answer]:
    made = ledger.commit(draft_of(lease(counter), requests), 10, lambda _: None)
    return answers(made, requests)


@pytest.fixture
def dead(ledger: Ledger) -> Topic:
    return ledger.write(topics.create, "dead", TopicConfig(), 1)[0]


@pytest.fixture
def ledger_copy(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(tmp_path / "copy.db", nullcontext())
    yield ledger
    ledger.close()


def test_a_new_owner_gets_floors_rows_and_the_last_epoch(ledger: Ledger, topic: Topic) -> None:
    made = add(ledger)
    assert state(ledger, made) == SubscriptionProgress({}, [], made.generation, 0)
    assert flush(ledger, made, {0: 5, 1: 7}, 8, 9, ROW_OFFSETS + 3, epoch=70) == set()
    there = state(ledger, made)
    assert (there.floors, there.epoch) == ({0: 5, 1: 7}, 70)
    assert finished(there, 0) == {8, 9, ROW_OFFSETS + 3}


def test_what_is_finished_is_never_taken_back(ledger: Ledger, topic: Topic) -> None:
    made = add(ledger)
    flush(ledger, made, {0: 5}, 8, 12, epoch=9)
    flush(ledger, made, {0: 3}, 10, epoch=4)
    there = state(ledger, made)
    assert (there.floors, there.epoch, finished(there, 0)) == ({0: 5}, 9, {8, 10, 12})


def test_a_row_is_removed_when_the_floor_has_passed_all_of_it(ledger: Ledger, topic: Topic) -> None:
    made = add(ledger)
    flush(ledger, made, {}, 8, ROW_OFFSETS, ROW_OFFSETS * 2)
    flush(ledger, made, {0: ROW_OFFSETS - 2})
    assert [row for _, row, _ in state(ledger, made).rows] == [0, 1, 2]
    flush(ledger, made, {0: ROW_OFFSETS - 1})
    assert [row for _, row, _ in state(ledger, made).rows] == [1, 2]
    # One that comes late is not written again.
    flush(ledger, made, {0: ROW_OFFSETS * 2 - 1}, 8, ROW_OFFSETS + 1)
    assert [row for _, row, _ in state(ledger, made).rows] == [2]


def test_an_owner_that_was_stopped_brings_no_row_back_that_its_successor_has_passed(
    ledger: Ledger, topic: Topic
) -> None:
    made = add(ledger)
    flush(ledger, made, {0: ROW_OFFSETS + 5})
    flush(ledger, made, {}, 8, ROW_OFFSETS + 8)
    flush(ledger, made, {0: 3}, 9)
    assert [row for _, row, _ in state(ledger, made).rows] == [1]


def test_a_flush_of_another_generation_or_of_what_was_deleted_is_ignored(
    ledger: Ledger, topic: Topic
) -> None:
    former, other = (
        add(ledger),
        ledger.write(subscriptions.create, "orders", "t", SubscriptionConfig(), "earliest", 5),
    )
    flush(ledger, former, {0: 9}, 12, epoch=50)
    made = ledger.write(subscriptions.seek, former.subscription_id, {0: 2}, 6)
    assert made is not None
    flushes = [
        SubscriptionFlush(
            former.subscription_id, former.generation, 60, [(0, 9)], [(0, 0, bits([12]))]
        ),
        SubscriptionFlush(other.subscription_id, other.generation, 3, [(0, 1)], []),
    ]
    assert ledger.write(progress.flush, flushes) == {former.subscription_id}
    # Numbers of batches go on: none is used twice.
    assert state(ledger, made) == SubscriptionProgress({0: 2}, [], made.generation, 50)
    assert state(ledger, other).floors == {0: 1}
    ledger.write(subscriptions.delete, "orders", "s", 7)
    assert flush(ledger, made, {0: 3}) == {made.subscription_id}
    assert ledger.read(progress.state_of, made.subscription_id) is None


def test_a_row_of_another_length_is_a_mistake_of_the_caller(ledger: Ledger, topic: Topic) -> None:
    made = add(ledger)
    flushed = SubscriptionFlush(made.subscription_id, made.generation, 1, [], [(0, 0, b"1")])
    with pytest.raises(ValueError, match="has 512 bytes, got 1"):
        ledger.write(progress.flush, [flushed])


def test_a_dead_letter_is_stored_once_and_finishes_its_origin_in_the_same_commit(
    ledger: Ledger, topic: Topic, dead: Topic
) -> None:
    made = add(ledger)
    flush(ledger, made, {0: 5}, 9)
    given = commit(
        ledger, 1,
        dead_letter(made, 7, dead), dead_letter(made, 7, dead),  # twice in a commit
        dead_letter(made, 5, dead), dead_letter(made, 9, dead),  # below the floor, and flushed
        dead_letter(made, 7, dead, partition=1), dead_letter(made, ROW_OFFSETS, dead),
    )  # fmt: skip
    assert [each.kind for each in given] == [
        "stored", "cursor_moved", "cursor_moved", "cursor_moved", "stored", "stored",
    ]  # fmt: skip
    assert [each.parts for each in given if each.parts] == [((0, n, n),) for n in (1, 2, 3)]
    assert given[1].cursor_seq == 5
    again = commit(ledger, 2, dead_letter(made, 7, dead))
    assert [each.kind for each in again] == ["cursor_moved"]
    there = state(ledger, made)
    assert there.floors == {0: 5}
    assert finished(there, 0) == {7, 9, ROW_OFFSETS} and finished(there, 1) == {7}


def test_a_flush_of_what_the_owner_knew_before_leaves_a_settlement(
    ledger: Ledger, topic: Topic, dead: Topic
) -> None:
    made = add(ledger)
    commit(ledger, 1, dead_letter(made, 7, dead))
    flush(ledger, made, {0: 2}, 4)
    assert finished(state(ledger, made), 0) == {4, 7}


def test_dead_letters_on_their_way_at_a_seek_or_a_deletion_are_void(
    ledger: Ledger, topic: Topic, dead: Topic
) -> None:
    former = add(ledger)
    made = ledger.write(subscriptions.seek, former.subscription_id, {0: 2}, 6)
    assert made is not None
    (given,) = commit(ledger, 1, dead_letter(former, 7, dead))
    assert given.kind == "cursor_unknown" and state(ledger, made).rows == []
    ledger.write(topics.delete, "orders", 7)
    (given,) = commit(ledger, 2, dead_letter(made, 7, dead))
    assert given.kind == "cursor_unknown"


def test_a_dead_letter_into_a_deleted_topic_leaves_its_origin_open(
    ledger: Ledger, topic: Topic, dead: Topic
) -> None:
    made = add(ledger)
    ledger.write(topics.delete, "dead", 6)
    (given,) = commit(ledger, 1, dead_letter(made, 7, dead))
    assert given.kind == "topic_deleted" and state(ledger, made).rows == []


def test_the_owners_log_carries_rows_that_changed_and_removes_those_that_were_passed(
    ledger: Ledger, topic: Topic, ledger_copy: Ledger
) -> None:
    made = add(ledger)
    flush(ledger, made, {0: 5}, 8, ROW_OFFSETS + 1)
    mark, first = ledger.read(backup.changes_since, Mark())
    flush(ledger, made, {0: ROW_OFFSETS}, ROW_OFFSETS + 1, ROW_OFFSETS * 2)
    mark, second = ledger.read(backup.changes_since, mark)
    assert [row[2] for row in second.rows["finished_rows"]] == [2]
    assert "subscription_epochs" not in second.rows
    for each in (first, second, first, second):
        ledger_copy.write(backup.apply, each)
    ledger_copy.read(invariants.check)
    assert state(ledger_copy, made) == state(ledger, made)


def test_a_flush_that_changes_nothing_writes_no_row(ledger: Ledger, topic: Topic) -> None:
    made = add(ledger)
    flush(ledger, made, {0: 5}, 8)
    mark, _ = ledger.read(backup.changes_since, Mark())
    number = ledger.read(changes.latest)
    flush(ledger, made, {0: 5}, 8)
    _, later = ledger.read(backup.changes_since, mark)
    assert ledger.read(changes.latest) == number + 1
    assert not {"cursor_positions", "finished_rows", "subscription_epochs"} & set(later.rows)


@pytest.mark.parametrize(
    ("damage", "rule"),
    [
        ("UPDATE cursor_positions SET seq = 12289", "a floor is at most the last offset"),
        ("UPDATE cursor_positions SET partition = 9", "a floor is at most the last offset"),
        ("UPDATE cursor_positions SET seq = 4096", "what is finished is of a living"),
        ("UPDATE finished_rows SET bits = x'01'", "what is finished is of a living"),
        ("UPDATE finished_rows SET changed = 99", "what is finished is of a living"),
        ("UPDATE finished_rows SET cursor_id = 9", "what is finished is of a living"),
        ("UPDATE cursors SET kind = 'client'", "a living subscription has a living topic"),
        ("UPDATE subscriptions SET name = 't'", "a living subscription has a living topic"),
        ("UPDATE topics SET deleted_ms = 9", "a living subscription has a living topic"),
        ("UPDATE subscriptions SET dead_letter_id = 1", "routers and dead letters form no cycle"),
    ],
)
def test_a_check_names_the_rule_of_subscriptions_that_is_broken(
    ledger_copy: Ledger, damage: str, rule: str
) -> None:
    ledger_copy.write(topics.create, "orders", TopicConfig(2), 1)
    made = add(ledger_copy)
    flush(ledger_copy, made, {0: 5}, 8)
    assert ledger_copy.read(invariants.broken) is None
    with closing(sqlite3.connect(ledger_copy.path)) as connection, connection:
        connection.execute(damage)
    assert rule in (ledger_copy.read(invariants.broken) or "")


class ProgressMachine(RuleBasedStateMachine):
    """Owners that know more or less, dead letters, seeks, and a copy that follows the owner's log.

    The model is a set of finished offsets of partition 0.
    """

    offsets = st.integers(1, ROWS * ROW_OFFSETS - 1)

    def __init__(self) -> None:
        super().__init__()
        self.directory = TemporaryDirectory()
        self.ledger = self.opened("ledger.db")
        self.copy = self.opened("copy.db")
        self.mark = Mark()
        self.counter = 0
        self.stored: set[int] = set()
        self.known: set[int] = set()
        self.touched: set[int] = set()

    def opened(self, name: str) -> Ledger:
        return Ledger(Path(self.directory.name) / name, nullcontext())

    def teardown(self) -> None:
        self.ledger.close()
        self.copy.close()
        self.directory.cleanup()

    @initialize()
    def start(self) -> None:
        self.ledger.write(topics.create, "orders", TopicConfig(), 1)
        self.dead = self.ledger.write(topics.create, "dead", TopicConfig(), 1)[0]
        self.made = add(self.ledger, 1)

    @rule(first=offsets, count=st.sampled_from([1, 3, 100, ROW_OFFSETS]))
    def finish(self, first: int, count: int) -> None:
        some = set(range(first, min(first + count, ROWS * ROW_OFFSETS)))
        self.known |= some
        self.touched |= {offset // ROW_OFFSETS for offset in some}

    @rule()
    def finish_from_the_floor(self) -> None:
        self.finish(floor(self.known) + 1, 700)

    @rule()
    def write_down(self) -> None:
        rows = [
            (0, row, bits(each for each in self.known if each // ROW_OFFSETS == row))
            for row in sorted(self.touched)
        ]
        flushed = SubscriptionFlush(
            self.made.subscription_id, self.made.generation, 1, [(0, floor(self.known))], rows
        )
        assert self.ledger.write(progress.flush, [flushed]) == set()
        self.stored |= self.known
        self.touched = set()

    @rule(offset=offsets, times=st.integers(1, 2))
    def settle(self, offset: int, times: int) -> None:
        self.counter += 1
        given = commit(
            self.ledger, self.counter, *[dead_letter(self.made, offset, self.dead)] * times
        )
        kinds = ["cursor_moved" if offset in self.stored else "stored", "cursor_moved"]
        assert [each.kind for each in given] == kinds[:times]
        self.stored.add(offset)

    @rule()
    def another_owner(self) -> None:
        there = state(self.ledger, self.made)
        self.known = set(range(1, there.floors.get(0, 0) + 1)) | finished(there, 0)
        self.touched = set()

    @rule(to=st.integers(0, ROW_OFFSETS))
    def seek(self, to: int) -> None:
        made = self.ledger.write(subscriptions.seek, self.made.subscription_id, {0: to}, 1)
        assert made is not None
        self.made = made
        self.known, self.stored = set(range(1, to + 1)), set(range(1, to + 1))
        self.touched = set()

    @rule(twice=st.booleans())
    def carry(self, twice: bool) -> None:
        self.mark, some = self.ledger.read(backup.changes_since, self.mark)
        for _ in range(1 + twice):
            self.copy.write(backup.apply, some)
        assert state(self.copy, self.made) == state(self.ledger, self.made)
        self.copy.read(invariants.check)

    @invariant()
    def what_is_stored_is_what_was_told(self) -> None:
        there = state(self.ledger, self.made)
        at = there.floors.get(0, 0)
        assert set(range(1, at + 1)) | finished(there, 0) == self.stored
        self.ledger.read(invariants.check)


def floor(offsets: set[int]) -> int:
    at = 0
    while at + 1 in offsets:
        at += 1
    return at


TestProgressAgainstASet = ProgressMachine.TestCase
TestProgressAgainstASet.settings = settings(
    max_examples=examples(25), stateful_step_count=15, deadline=None
)
