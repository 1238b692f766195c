"""What one POST carries, when, and what becomes of it."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from delivery.push.queue import COALESCING_WAIT_FACTOR, PushQueue
from delivery.push.units import Unit
from ledger.delivery.push_settings import PushSettings

MS = 1_000_000


class Message(Struct):
    """A message, as a sender has it."""

    seq: int
    key: str | None = None
    partition: int = 0
    size_bytes: int = 100
    epoch: int = 0


Queue = PushQueue[Message]


def queue_of(mode: str = "key_shared", *, is_reliable: bool = True, **settings: Any) -> Queue:
    """An empty queue."""
    given = PushSettings("http://receiver.example/", **settings)
    return PushQueue(mode, given, is_reliable=is_reliable)


def batches_of(mode: str = "key_shared", **settings: Any) -> Queue:
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
    queue.add(1, some("aab--"), 0)
    units = all_next(queue)
    assert [seqs(unit) for unit in units] == [[1], [3], [4], [5]]
    assert [message.seq for message in queue.done(units[0])] == [1]
    assert [seqs(unit) for unit in all_next(queue)] == [[2]]


def test_exclusive_sends_one_post_at_a_time_per_partition() -> None:
    queue = queue_of("exclusive")
    queue.add(1, [*some("--"), *some("--", partition=1)], 0)
    units = all_next(queue)
    assert [(unit.messages[0].partition, seqs(unit)) for unit in units] == [(0, [1]), (1, [1])]


def test_no_more_units_are_under_way_than_there_are_connections() -> None:
    queue = queue_of("shared", connections_max=2)
    queue.add(1, some("aaa"), 0)
    units = all_next(queue)
    assert len(units) == queue.under_way == 2
    assert queue.next_due_ns() is None
    queue.done(units[1])
    assert [seqs(unit) for unit in all_next(queue)] == [[3]]


def test_a_batch_waits_for_more_records_until_it_is_full() -> None:
    queue = queue_of("shared", format="batch", batch_max=3, batch_wait_ms=100)
    queue.add(1, some("--"), 5 * MS)
    assert queue.next(104 * MS) is None and queue.next_due_ns() == 105 * MS
    queue.add(2, [Message(3)], 50 * MS)
    assert seqs(queue.next(50 * MS)) == [1, 2, 3]
    queue.add(3, [Message(4)], 60 * MS)
    assert queue.next(159 * MS) is None
    assert seqs(queue.next(160 * MS)) == [4]


def test_a_batch_waits_longer_under_pressure() -> None:
    queue = queue_of("shared", format="batch", batch_wait_ms=100)
    queue.add(1, some("-"), 0)
    queue.is_coalescing = True
    assert queue.next_due_ns() == 100 * MS * COALESCING_WAIT_FACTOR
    queue.is_coalescing = False
    assert seqs(queue.next(100 * MS)) == [1]


def test_a_batch_ends_before_the_record_that_makes_it_too_large() -> None:
    queue = batches_of("shared", batch_bytes_max=1_024)
    queue.add(1, [Message(1), Message(2, size_bytes=5_000), Message(3), Message(4)], 0)
    assert [seqs(unit) for unit in all_next(queue)] == [[1], [2], [3, 4]]


def test_records_of_one_key_are_next_to_each_other_in_a_batch() -> None:
    queue = batches_of(batch_max=4)
    queue.add(1, some("abababcc"), 0)
    units = all_next(queue)
    assert [seqs(unit) for unit in units] == [[1, 3, 5, 2], [7, 8]]
    queue.done(units[0])
    assert [seqs(unit) for unit in all_next(queue)] == [[4, 6]]


def test_a_refused_batch_is_bisected_until_the_record_is_alone() -> None:
    queue = batches_of("shared")
    queue.add(1, some("-" * 8), 0)
    delivered: list[int] = []
    refused: list[int] = []
    posts = 0
    while (unit := queue.next(0)) is not None:
        posts += 1
        if 6 in seqs(unit):
            refused += [message.seq for message in queue.refused(unit)]
        else:
            delivered += [message.seq for message in queue.done(unit)]
        queue.check_invariants()
    assert refused == [6] and sorted(delivered) == [1, 2, 3, 4, 5, 7, 8]
    assert posts == 7 and queue.messages == queue.bytes == 0


def test_halves_of_a_batch_with_one_key_go_one_after_the_other() -> None:
    queue = batches_of()
    queue.add(1, some("aaaab"), 0)
    (unit,) = all_next(queue)
    queue.refused(unit)
    first, *others = all_next(queue)
    assert seqs(first) == [1, 2, 3] and not others
    queue.done(first)
    assert [seqs(unit) for unit in all_next(queue)] == [[4, 5]]


def test_nothing_of_a_key_goes_after_a_failure_until_the_owner_has_answered() -> None:
    queue = batches_of(batch_max=2)
    queue.add(1, some("aaa"), 0)
    (unit,) = all_next(queue)
    nacked = queue.failed(unit)
    assert [message.seq for message in nacked] == [1], "the owner takes back the rest"
    queue.add(2, [Message(4, "a"), Message(5, "b")], 0)
    assert [seqs(unit) for unit in all_next(queue)] == [[5]]
    queue.add(4, [Message(1, "a")], 0)
    assert queue.answered(nacked, 3, ()) == []
    queue.check_invariants()
    assert [seqs(unit) for unit in all_next(queue)] == [[1]], "2 to 4 were taken back"


def test_what_the_owner_took_back_does_not_count_if_it_comes_late() -> None:
    queue = queue_of("exclusive")
    queue.add(1, some("--"), 0)
    (unit,) = all_next(queue)
    assert queue.answered(queue.failed(unit), 3, ()) == [] and queue.messages == 0
    queue.add(2, [Message(3)], 0)
    queue.add(3, [Message(4), Message(1, partition=1)], 0)
    assert [(each.messages[0].partition, seqs(each)) for each in all_next(queue)] == [(1, [1])]
    queue.add(4, some("--"), 0)
    assert [seqs(unit) for unit in all_next(queue)] == [[1]]


def test_what_the_owner_does_not_take_back_is_given_back() -> None:
    queue = queue_of("exclusive")
    queue.add(1, some("---"), 0)
    (unit,) = all_next(queue)
    nacked = queue.failed(unit)
    left = queue.answered(nacked, 1, {(0, 1)})
    assert [message.seq for message in left] == [2, 3]
    queue.add(2, [Message(2)], 0)
    assert queue.answered(left, 1, {(0, 3)}) == []
    assert [seqs(unit) for unit in all_next(queue)] == [[2]]


def test_the_later_halves_of_a_batch_lose_what_follows_a_failure() -> None:
    queue = batches_of("exclusive")
    queue.add(1, some("----"), 0)
    (unit,) = all_next(queue)
    queue.refused(unit)
    (half,) = all_next(queue)
    nacked = queue.failed(half)
    queue.check_invariants()
    assert [message.seq for message in nacked] == [1] and queue.next(0) is None
    queue.answered(nacked, 1, ())
    assert queue.messages == 0


def test_a_message_that_is_here_takes_the_new_epoch_and_is_not_sent_twice() -> None:
    queue = queue_of()
    queue.add(1, some("ab"), 0)
    unit = queue.next(0)
    assert unit is not None
    queue.add(2, some("ab"), 0)
    assert [seqs(unit) for unit in all_next(queue)] == [[2]]
    assert [(message.seq, message.epoch) for message in queue.done(unit)] == [(1, 2)]


def test_what_is_under_way_counts_after_a_reopened_stream_only_if_it_comes_again() -> None:
    queue = queue_of("shared")
    queue.add(1, some("----"), 0)
    units = [queue.next(0) for _ in range(3)]
    queue.clear()
    queue.check_invariants()
    queue.add(7, [Message(2)], 0)
    assert units[0] is not None and units[1] is not None and units[2] is not None
    assert queue.done(units[0]) == [] == queue.failed(units[2])
    assert [(message.seq, message.epoch) for message in queue.done(units[1])] == [(2, 7)]
    assert queue.next(0) is None and queue.messages == 0


def test_an_answer_to_an_earlier_nack_ends_no_later_one() -> None:
    queue = queue_of("exclusive")
    queue.add(1, some("-"), 0)
    (unit,) = all_next(queue)
    early = queue.failed(unit)
    queue.clear()
    queue.add(2, some("--"), 0)
    (unit,) = all_next(queue)
    late = queue.failed(unit)
    assert queue.answered(early, 1, {(0, 1)}) == [] and queue.next(0) is None
    assert queue.answered(late, 2, ()) == [] and queue.messages == 0


def test_of_an_unreliable_subscription_the_next_message_follows_one_that_failed() -> None:
    queue = queue_of("exclusive", is_reliable=False)
    queue.add(1, some("--"), 0)
    (unit,) = all_next(queue)
    assert [message.seq for message in queue.failed(unit)] == [1]
    assert [seqs(unit) for unit in all_next(queue)] == [[2]]


def test_parts_of_a_batch_are_cut_when_the_format_changes() -> None:
    queue = batches_of("shared")
    queue.add(1, some("-" * 4), 0)
    (unit,) = all_next(queue)
    queue.refused(unit)
    queue.set_settings(PushSettings("http://receiver.example/"))
    queue.check_invariants()
    assert [seqs(unit) for unit in all_next(queue)] == [[1], [2], [3], [4]]
