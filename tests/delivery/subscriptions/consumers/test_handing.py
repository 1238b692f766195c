"""What an owner hands over arrives at the sender, through a pipe or in one process."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from delivery.subscriptions.consumers.handing import (
    Handed,
    PushedBatch,
    PushedMessage,
    SenderOpened,
    SenderOutlet,
    hand,
)
from tests.delivery.watch.watching import Client
from uploader.l0.records import Record

TEXT = st.none() | st.text()
RECORDS = st.builds(
    Record, st.text() | st.binary(), st.none(), key=TEXT, tag=TEXT, node=TEXT, meta=TEXT
)
MESSAGES = st.builds(
    PushedMessage, st.integers(0, 1_000), st.integers(1, 2**53), st.integers(1, 9),
    st.integers(1, 2**53), st.integers(0, 2**48), RECORDS,
)  # fmt: skip


def sender() -> tuple[SenderOutlet, list[Handed]]:
    """A sender's end, and what it got."""
    found: list[Handed] = []
    return SenderOutlet(found.append, lambda: True, lambda: None), found


@given(st.lists(MESSAGES, min_size=1), st.integers(0, 2**53))
def test_all_that_is_handed_over_comes_out_of_a_pipe_as_it_was(
    messages: list[PushedMessage], generation: int
) -> None:
    pipe, (end, found) = Client(), sender()
    sent: list[Handed] = [SenderOpened(generation), PushedBatch(messages)]
    for each in sent:
        hand(pipe, each)
    for write in pipe.writes:
        end.write(write)
    assert found == sent


def test_in_one_process_a_sender_gets_the_very_record_of_the_owner() -> None:
    record = Record('{"n": 1}', key="k")
    end, found = sender()
    hand(end, PushedBatch([PushedMessage(0, 1, 1, 5, 9, record)]))
    (batch,) = found
    assert isinstance(batch, PushedBatch) and batch.messages[0].record is record


def test_the_size_of_a_message_counts_all_its_fields() -> None:
    message = PushedMessage(0, 1, 1, 5, 9, Record(b"123", None, "1234", "12345", "1", "12"))
    assert message.size_bytes == 3 + 4 + 5 + 1 + 2


def test_a_sender_without_room_is_not_writable_until_it_says_that_it_has_some() -> None:
    rooms, drained = iter([False, False, True]), list[int]()
    end = SenderOutlet(lambda _: None, lambda: next(rooms), lambda: None)
    end.drained = lambda: drained.append(1)
    was = [end.writable]
    hand(end, SenderOpened(1))
    end.has_drained()
    was.append(end.writable)
    assert drained == []
    end.has_drained()
    end.has_drained()
    was.append(end.writable)
    assert was == [True, False, True] and drained == [1]


def test_what_is_handed_to_a_sender_that_has_ended_goes_nowhere() -> None:
    end, found = sender()
    end.close()
    hand(end, SenderOpened(1))
    assert found == [] and not end.writable
