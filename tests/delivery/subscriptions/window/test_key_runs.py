"""A sender may have the next messages of a key, and gets them again in their order."""

from __future__ import annotations

from delivery.subscriptions.window.failures import WindowPolicy
from delivery.subscriptions.window.key_shared import KeyRunsWindow
from delivery.subscriptions.window.messages import Batch
from delivery.subscriptions.window.windows import window_for

S = 1_000_000_000


def window(*keys: str, run_max: int = 10) -> KeyRunsWindow:
    made = window_for("key_shared", WindowPolicy(run_max=run_max), is_pushed=True)
    assert isinstance(made, KeyRunsWindow)
    made.open(0, 0)
    made.admit(0, keys)
    made.join("push/0")
    made.settle()
    return made


def take(made: KeyRunsWindow) -> Batch:
    batch = made.take("push/0", 100, S)
    assert batch is not None
    made.sent(batch.epoch, S)
    return batch


def offsets(batch: Batch) -> list[int]:
    return [message.offset for message in batch.messages if message is not None]


def test_a_batch_has_the_next_messages_of_each_key_up_to_the_limit() -> None:
    made = window("a", "b", "a", "a", "b", run_max=2)
    assert sorted(offsets(take(made))) == [1, 2, 3, 5]
    assert made.take("push/0", 100, S) is None, "the fourth waits for those before it"


def test_a_key_goes_on_when_all_that_is_out_is_finished() -> None:
    made = window("a", "a", "a", "a", run_max=2)
    batch = take(made)
    made.ack("push/0", batch.epoch, S, [(0, 2)])
    assert made.take("push/0", 100, S) is None and made.look_aheads[0].floor == 0
    made.ack("push/0", batch.epoch, S, [(0, 1)])
    assert made.look_aheads[0].floor == 2
    assert offsets(take(made)) == [3, 4]
    made.check_invariants()


def test_with_a_message_that_failed_those_after_it_come_back() -> None:
    made = window("a", "a", "a", "b")
    batch = take(made)
    made.ack("push/0", batch.epoch, S, [(0, 1)])
    made.nack("push/0", batch.epoch, S, [(0, 2)])
    made.check_invariants()
    assert offsets(batch) == [4] and set(made.blocked.resting) == {(0, 2)}
    assert made.take("push/0", 100, S) is None, "they wait for it"
    made.tick(100 * S)
    again = take(made)
    assert offsets(again) == [2, 3]
    assert [message.attempts for message in again.messages if message] == [1, 0]


def test_a_failure_of_one_that_is_not_the_first_counts_for_nothing() -> None:
    made = window("a", "a", "a")
    batch = take(made)
    for counted in (True, False):
        made.nack("push/0", batch.epoch, S, [(0, 2)], delay_ns=S, is_counted=counted)
        made.check_invariants()
        assert offsets(batch) == [1] and not made.blocked.resting
    made.ack("push/0", batch.epoch, S, [(0, 1)])
    assert offsets(take(made)) == [2, 3]


def test_what_could_not_be_written_comes_again_after_what_was() -> None:
    made = window("a", "a", "a")
    batch = take(made)
    made.give_back(batch.epoch, [(0, 2), (0, 3)])
    made.check_invariants()
    assert made.take("push/0", 100, S) is None
    made.ack("push/0", batch.epoch, S)
    assert offsets(take(made)) == [2, 3]


def test_what_retention_removed_of_a_run_is_passed_over() -> None:
    made = window("a", "a", "a", "a")
    batch = take(made)
    made.missing(batch.epoch, [(0, 2)])
    made.evict(0, 4)
    made.leave("push/0")
    made.check_invariants()
    made.join("push/0")
    made.settle()
    assert offsets(take(made)) == [4] and made.look_aheads[0].floor == 3


def test_what_comes_for_a_key_follows_its_run_though_the_last_of_it_is_finished_first() -> None:
    made = window("a", "a")
    take(made)
    made.ack("push/0", 1, 0, [(0, 2)])
    made.admit(0, ["a"])
    made.check_invariants()
    made.ack("push/0", 1, 0, [(0, 1)])
    assert offsets(take(made)) == [3]


def test_failed_deliveries_are_those_of_one_message_of_a_run() -> None:
    made = window("a", "a")
    take(made)
    made.nack("push/0", 1, 0)
    made.tick(S)
    assert [each.attempts for each in take(made).messages if each] == [1, 0]
    made.ack("push/0", 2, 0, [(0, 1)])
    made.give_back(2)
    assert [each.attempts for each in take(made).messages if each] == [0]


def test_of_a_partition_nothing_more_goes_to_a_sender_while_some_of_it_is_out() -> None:
    made = window_for("exclusive", WindowPolicy(), is_pushed=True)
    for partition in (0, 1):
        made.open(partition, 0)
    made.join("push/0")
    made.admit_loose(0, 2)
    first = made.take("push/0", 100, S)
    assert first is not None and offsets(first) == [1, 2]
    made.admit_loose(0, 1)
    made.admit_loose(1, 1)
    other = made.take("push/0", 100, S)
    assert other is not None and [each.place for each in other.messages if each] == [(1, 1)]
    made.ack("push/0", first.epoch, S, [(0, 1)])
    assert made.take("push/0", 100, S) is None
    made.nack("push/0", first.epoch, S, [(0, 2)])
    assert made.take("push/0", 100, S) is None, "the third waits for the second"
    made.tick(100 * S)
    again = made.take("push/0", 100, S)
    assert again is not None and offsets(again) == [2, 3]
    made.check_invariants()
