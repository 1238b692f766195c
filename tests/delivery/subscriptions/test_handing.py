"""A batch says the same in all formats, and is what the schema says. A sender gets what its owner
hands over. Pieces of what was missed become few ranges, which say the same."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.streams.formats import MSGPACK, NDJSON, SSE
from delivery.subscriptions.handing import (
    GAPS_KEPT,
    Handed,
    PushedBatch,
    PushedMessage,
    SenderOpened,
    SenderOutlet,
    Sent,
    encoded,
    hand,
    polled,
    with_gap,
)
from delivery.subscriptions.schemas import ConsumedMessage, MissedOffsets, Polled
from tests.delivery.watch.watching import Client
from uploader.l0.records import Record

SENT: list[Sent] = [
    (0, 1, (7, 1_000, Record('{"a":\n1}', key="k"))),
    (0, 1, (8, 1_001, Record('"é"', tag="t", node="n", meta='{"m":1}'))),
    (0, 2, (5, 900, Record(b"\x00\xff", key=""))),
    (3, 1, (9, 1_002, Record("null"))),
]
EXPECTED = [
    {"partition": 0, "epoch": 12, "attempt": 1, "seq": 7, "ts": 1000, "data": {"a": 1}, "key": "k"},
    {"partition": 0, "epoch": 12, "attempt": 1, "seq": 8, "ts": 1001, "data": "é", "tag": "t",
     "node": "n", "meta": {"m": 1}},
    {"partition": 0, "epoch": 12, "attempt": 2, "seq": 5, "ts": 900, "data_b64": "AP8=", "key": ""},
    {"partition": 3, "epoch": 12, "attempt": 1, "seq": 9, "ts": 1002, "data": None},
]  # fmt: skip
TEXT = st.none() | st.text()
RECORDS = st.builds(
    Record, st.text() | st.binary(), st.none(), key=TEXT, tag=TEXT, node=TEXT, meta=TEXT
)
MESSAGES = st.builds(
    PushedMessage, st.integers(0, 1_000), st.integers(1, 2**53), st.integers(1, 9),
    st.integers(1, 2**53), st.integers(0, 2**48), RECORDS,
)  # fmt: skip


def test_each_message_is_a_line() -> None:
    lines = encoded(NDJSON, 12, SENT).decode().splitlines()
    assert [json.loads(line) for line in lines] == EXPECTED


def test_each_message_is_an_event() -> None:
    events = encoded(SSE, 12, SENT).decode().split("\n\n")
    assert events.pop() == ""
    found = [event.split("\n") for event in events]
    assert {name for name, _ in found} == {"event: message"}
    assert [json.loads(data.removeprefix("data: ")) for _, data in found] == EXPECTED


def test_msgpack_has_the_batch_in_a_map_with_data_as_it_is_stored() -> None:
    batch = msgspec.msgpack.decode(encoded(MSGPACK, 12, SENT))
    assert (batch["event"], batch["epoch"], len(batch["messages"])) == ("messages", 12, 4)
    assert [message["data"] for message in batch["messages"]] == [each[2][2].data for each in SENT]
    assert batch["messages"][2]["attempt"] == 2 and batch["messages"][3]["partition"] == 3


@pytest.mark.parametrize("sent", [SENT, []])
def test_a_poll_gets_what_the_schema_says(sent: list[Sent]) -> None:
    answer = polled(12 if sent else None, sent, b"[]")
    found = msgspec.json.decode(answer, type=Polled)
    assert found.epoch == (12 if sent else None) and found.gaps == []
    assert json.loads(answer)["messages"] == (EXPECTED if sent else [])
    assert all(isinstance(message, ConsumedMessage) for message in found.messages)


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


def missed(gaps: list[MissedOffsets]) -> set[tuple[int, int, str]]:
    return {
        (gap.partition, offset, gap.reason)
        for gap in gaps
        for offset in range(gap.gap_from, gap.gap_to + 1)
    }


def test_a_piece_that_continues_the_last_of_its_partition_is_joined_with_it() -> None:
    gaps: list[MissedOffsets] = []
    for gap in (
        MissedOffsets(0, 1, 1, "cap"), MissedOffsets(1, 1, 4, "cap"), MissedOffsets(0, 2, 7, "cap"),
        MissedOffsets(0, 8, 9, "ttl"), MissedOffsets(1, 6, 6, "cap"), MissedOffsets(1, 6, 6, "cap"),
    ):  # fmt: skip
        gaps = with_gap(gaps, gap)
    assert gaps == [
        MissedOffsets(0, 1, 7, "cap"), MissedOffsets(1, 1, 4, "cap"), MissedOffsets(0, 8, 9, "ttl"),
        MissedOffsets(1, 6, 6, "cap"),
    ]  # fmt: skip


def test_only_the_last_ones_are_kept() -> None:
    gaps: list[MissedOffsets] = []
    for start in range(0, 3 * GAPS_KEPT, 2):
        gaps = with_gap(gaps, MissedOffsets(0, start, start, "cap"))
    assert len(gaps) == GAPS_KEPT and gaps[-1].gap_from == 3 * GAPS_KEPT - 2


@given(
    st.lists(
        st.builds(
            lambda partition, first, length, reason: MissedOffsets(
                partition, first, first + length, reason
            ),
            st.integers(0, 1), st.integers(1, 20), st.integers(0, 4),
            st.sampled_from(["cap", "ttl"]),
        ),
        max_size=20,
    )
)  # fmt: skip
def test_joining_neither_adds_nor_loses_an_offset(pieces: list[MissedOffsets]) -> None:
    gaps: list[MissedOffsets] = []
    for gap in pieces:
        gaps = with_gap(gaps, gap)
    assert missed(gaps) == missed(pieces)
