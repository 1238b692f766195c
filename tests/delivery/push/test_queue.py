"""What one POST carries, when, and what becomes of it."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any, get_args

import pytest
from msgspec import Struct

from delivery.push.queue import (
    COALESCING_WAIT_FACTOR,
    RUN_STATES,
    MessageRun,
    PushQueue,
    RunEvent,
    RunState,
    Unit,
)  # fmt: skip
from delivery.subscriptions.window.messages import Place
from ledger.delivery.push_settings import PushSettings
from ledger.delivery.subscription_rules import MODES, KeyFallback, Mode, SubscriptionRules

MS = 1_000_000


class Message(Struct):
    """A message, as a sender has it."""

    seq: int
    key: str | None = None
    partition: int = 0
    size_bytes: int = 100
    epoch: int = 0
    node: str | None = None

    @property
    def place(self) -> Place:
        """Partition and offset."""
        return self.partition, self.seq


Queue = PushQueue[Message]


def queue_of(
    mode: Mode = "key_shared",
    *,
    is_reliable: bool = True,
    key_fallback: KeyFallback = "none",
    **settings: Any,
) -> Queue:
    """An empty queue."""
    rules = SubscriptionRules(mode=mode, reliable=is_reliable, key_fallback=key_fallback)
    return PushQueue(rules, PushSettings("http://receiver.example/", **settings))


def batches_of(mode: Mode = "key_shared", **settings: Any) -> Queue:
    """An empty queue in the batch mode, that does not wait."""
    given: dict[str, Any] = {"format": "batch", "batch_wait_ms": 0} | settings
    return queue_of(mode, **given)


def seqs(unit: Unit[Message] | None) -> list[int]:
    """What a unit carries."""
    return [] if unit is None else [message.seq for message in unit.messages]


def all_next(queue: Queue, now_ns: int = 0) -> list[Unit[Message]]:
    """What may be sent simultaneously."""
    units = []
    while (unit := queue.next(now_ns)) is not None:
        units.append(unit)
        queue.check_invariants()
    return units


def some(keys: str, **fields: Any) -> list[Message]:
    """Messages from 1 on, by their keys; ``-`` has none."""
    return [Message(seq, None if key == "-" else key, **fields) for seq, key in enumerate(keys, 1)]


def test_one_post_of_a_key_is_under_way_and_those_without_key_go_in_parallel() -> None:
    queue = queue_of()
    queue.add(some("aab--"), 0)
    units = all_next(queue)
    assert [seqs(unit) for unit in units] == [[1], [3], [4], [5]]
    assert [message.seq for message in queue.done(units[0])[0]] == [1]
    assert [seqs(unit) for unit in all_next(queue)] == [[2]]


def test_exclusive_sends_one_post_at_a_time_per_partition() -> None:
    queue = queue_of("exclusive")
    queue.add([*some("--"), *some("--", partition=1)], 0)
    units = all_next(queue)
    assert [(unit.messages[0].partition, seqs(unit)) for unit in units] == [(0, [1]), (1, [1])]


def test_no_more_units_are_under_way_than_there_are_connections() -> None:
    queue = queue_of("shared", connections_max=2)
    queue.add(some("aaa"), 0)
    units = all_next(queue)
    assert len(units) == queue.under_way == 2
    assert queue.next_due_ns() is None
    queue.done(units[1])
    assert [seqs(unit) for unit in all_next(queue)] == [[3]]


def test_a_batch_waits_for_more_records_until_it_is_full() -> None:
    queue = queue_of("shared", format="batch", batch_max=3, batch_wait_ms=100)
    queue.add(some("--"), 5 * MS)
    assert queue.next(104 * MS) is None and queue.next_due_ns() == 105 * MS
    queue.add([Message(3)], 50 * MS)
    assert seqs(queue.next(50 * MS)) == [1, 2, 3]
    queue.add([Message(4)], 60 * MS)
    assert queue.next(159 * MS) is None
    assert seqs(queue.next(160 * MS)) == [4]


def test_a_batch_waits_longer_under_pressure() -> None:
    queue = queue_of("shared", format="batch", batch_wait_ms=100)
    queue.add(some("-"), 0)
    queue.is_coalescing = True
    assert queue.next_due_ns() == 100 * MS * COALESCING_WAIT_FACTOR
    queue.is_coalescing = False
    assert seqs(queue.next(100 * MS)) == [1]


def test_a_batch_ends_before_the_record_that_makes_it_too_large() -> None:
    queue = batches_of("shared", batch_bytes_max=1_024)
    queue.add([Message(1), Message(2, size_bytes=5_000), Message(3), Message(4)], 0)
    assert [seqs(unit) for unit in all_next(queue)] == [[1], [2], [3, 4]]


def test_records_of_one_key_are_next_to_each_other_in_a_batch() -> None:
    queue = batches_of(batch_max=4)
    queue.add(some("abababcc"), 0)
    units = all_next(queue)
    assert [seqs(unit) for unit in units] == [[1, 3, 5, 2], [7, 8]]
    queue.done(units[0])
    assert [seqs(unit) for unit in all_next(queue)] == [[4, 6]]


def test_a_refused_batch_is_bisected_until_the_record_is_alone() -> None:
    queue = batches_of("shared")
    queue.add(some("-" * 8), 0)
    delivered: list[int] = []
    refused: list[int] = []
    posts = 0
    while (unit := queue.next(0)) is not None:
        posts += 1
        if 6 in seqs(unit):
            refused += [message.seq for message in queue.refused(unit)]
        else:
            delivered += [message.seq for message in queue.done(unit)[0]]
        queue.check_invariants()
    assert refused == [6] and sorted(delivered) == [1, 2, 3, 4, 5, 7, 8]
    assert posts == 7 and queue.messages == queue.bytes == 0


def test_halves_of_a_batch_with_one_key_go_one_after_the_other() -> None:
    queue = batches_of()
    queue.add(some("aaaab"), 0)
    (unit,) = all_next(queue)
    queue.refused(unit)
    first, *others = all_next(queue)
    assert seqs(first) == [1, 2, 3] and not others
    queue.done(first)
    assert [seqs(unit) for unit in all_next(queue)] == [[4, 5]]


def test_what_follows_a_failure_is_forgotten_for_the_owner_takes_it_back() -> None:
    queue = batches_of(batch_max=2)
    queue.add(some("aaaab"), 0)
    unit = queue.next(0)
    assert unit is not None
    assert [message.seq for message in queue.failed(unit)] == [1], "one of each run is enough"
    assert queue.messages == 1
    assert [seqs(unit) for unit in all_next(queue)] == [[5]]
    queue.add(some("aa"), 0)
    assert [seqs(unit) for unit in all_next(queue)] == [[1, 2]]


def test_the_later_halves_of_a_batch_lose_what_follows_a_failure() -> None:
    queue = batches_of(batch_max=6)
    queue.add(some("aaaabb"), 0)
    (unit,) = all_next(queue)
    queue.refused(unit)
    (half,) = all_next(queue)
    nacked = queue.failed(half)
    queue.check_invariants()
    assert [message.seq for message in nacked] == [1]
    assert [seqs(unit) for unit in all_next(queue)] == [[5, 6]]


def test_what_is_under_way_when_the_stream_is_opened_again_is_awaited_before_it_is_sent() -> None:
    queue = queue_of("shared")
    queue.add(some("----", epoch=1), 0)
    units = [unit for unit in (queue.next(0) for _ in range(3)) if unit is not None]
    queue.clear()
    queue.check_invariants()
    queue.add([Message(seq, epoch=7) for seq in (2, 3, 4)], 0)
    assert [seqs(unit) for unit in all_next(queue)] == [[4]], "the others are under way"
    assert queue.done(units[0]) == ([], [(0, 1)]), "it may come again yet"
    acknowledged, come_again = queue.done(units[1])
    assert [(message.seq, message.epoch) for message in acknowledged] == [(2, 7)]
    assert come_again == [] == queue.failed(units[2])
    assert [seqs(unit) for unit in all_next(queue)] == [[3]], "it was not delivered"
    queue.check_invariants()


def test_of_a_run_that_comes_again_only_what_was_not_delivered_meanwhile_is_sent() -> None:
    queue = batches_of(batch_max=2)
    queue.add(some("aaa"), 0)
    (unit,) = all_next(queue)
    queue.clear()
    queue.add(some("aaa", epoch=9), 0)
    assert all_next(queue) == []
    acknowledged, _ = queue.done(unit)
    assert [(message.seq, message.epoch) for message in acknowledged] == [(1, 9), (2, 9)]
    assert [seqs(unit) for unit in all_next(queue)] == [[3]]


def test_of_an_unreliable_subscription_the_next_message_follows_one_that_failed() -> None:
    queue = queue_of("exclusive", is_reliable=False)
    queue.add(some("--"), 0)
    (unit,) = all_next(queue)
    assert [message.seq for message in queue.failed(unit)] == [1]
    assert [seqs(unit) for unit in all_next(queue)] == [[2]]


def test_parts_of_a_batch_are_cut_when_the_format_changes() -> None:
    queue = batches_of("shared")
    queue.add(some("-" * 4), 0)
    (unit,) = all_next(queue)
    queue.refused(unit)
    queue.set_settings(PushSettings("http://receiver.example/"))
    queue.check_invariants()
    assert [seqs(unit) for unit in all_next(queue)] == [[1], [2], [3], [4]]


def test_messages_without_a_key_go_one_after_the_other_by_node_only_if_that_is_asked_for() -> None:
    messages = [Message(1, node="n"), Message(2, "n"), Message(3, node="n"), Message(4)]
    queue = queue_of(key_fallback="node")
    queue.add(messages, 0)
    first = all_next(queue)
    assert [seqs(unit) for unit in first] == [[1], [4]], "a key and a node of one name are one key"
    queue.done(first[0])
    assert [seqs(unit) for unit in all_next(queue)] == [[2]]
    queue = queue_of()
    queue.add(messages, 0)
    assert [seqs(unit) for unit in all_next(queue)] == [[1], [2], [3], [4]]


@pytest.mark.parametrize(("state", "event"), [*product(RunState, RunEvent)])
def test_a_run_changes_as_its_table_says_and_in_no_other_way(
    state: RunState, event: RunEvent
) -> None:
    run = MessageRun[Message]("x")
    run.state = state
    if (state, event) in RUN_STATES:
        run.change(event)
        assert run.state is RUN_STATES[state, event]
    else:
        with pytest.raises(KeyError):
            run.change(event)
        assert run.state is state


@pytest.mark.parametrize("mode", get_args(Mode))
def test_the_order_of_a_mode_says_what_waits_for_what(mode: Mode) -> None:
    together = {"key": [1, 2], "partition": [1, 3], "none": []}[MODES[mode].order]
    queue = queue_of(mode)
    queue.add([Message(1, "x"), Message(2, "x", partition=1), Message(3, "y")], 0)
    sent = []
    while (unit := queue.next(0)) is not None:
        sent += [each.seq for each in unit.messages]
    assert sent == [seq for seq in (1, 2, 3) if seq not in together[1:]]


def test_a_queue_takes_a_run_through_the_whole_table() -> None:
    queue, seen = batches_of(batch_max=3), [RunState.EMPTY]

    def then(state: RunState) -> None:
        queue.check_invariants()
        assert run.state is state
        seen.append(state)

    queue.add([Message(1, "x")], 0)
    (run,) = queue._runs.values()
    then(RunState.LISTED)
    queue.add([Message(2, "x")], 0)
    then(RunState.LISTED)
    unit = queue.next(0)
    then(RunState.UNDER_WAY)
    queue.add([Message(3, "x")], 0)
    then(RunState.UNDER_WAY)
    assert unit is not None and queue.refused(unit) == []
    then(RunState.CUT)
    queue.add([Message(4, "x")], 0)
    then(RunState.CUT)
    for state in (RunState.CUT, RunState.LISTED, RunState.EMPTY):
        unit = queue.next(0)
        then(RunState.UNDER_WAY)
        assert unit is not None
        queue.done(unit)
        then(state)
    assert not queue._runs
    assert set(pairwise(seen)) == {(before, after) for (before, _), after in RUN_STATES.items()}
