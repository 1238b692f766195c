"""What a sender decodes is what the owner of a subscription has written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.push.messages import (
    PushedBatch,
    PushedMessage,
    PushGap,
    StreamAlive,
    StreamBroken,
    StreamEnded,
    events_of,
)
from delivery.streams.formats import MSGPACK, Origin
from delivery.streams.wire import LAST_CHUNK, chunk
from delivery.subscriptions.encoding import encoded
from delivery.subscriptions.missed import GAPS_KEPT
from uploader.l0.records import Record

ORIGIN = Origin("orders", 3, 1)
TEXT = st.none() | st.text()
RECORDS = st.builds(
    Record, st.text() | st.binary(), st.none(), key=TEXT, tag=TEXT, node=TEXT, meta=TEXT
)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 1_000), st.integers(1, 9),
            st.tuples(st.integers(1, 2**53), st.integers(0, 2**48), RECORDS),
        ),
        min_size=1,
    )
)  # fmt: skip
def test_every_field_of_a_message_arrives_as_it_was_stored(
    sent: list[tuple[int, int, tuple[int, int, Record]]],
) -> None:
    (batch,) = events_of(chunk(encoded(MSGPACK, 7, sent)))
    assert batch == PushedBatch(
        7,
        [
            PushedMessage(
                partition, 7, attempt, seq, ts, record.data,
                record.key, record.tag, record.node, record.meta,
            )
            for partition, attempt, (seq, ts, record) in sent
        ],
    )  # fmt: skip


def test_the_size_of_a_message_counts_all_its_fields() -> None:
    message = PushedMessage(0, 1, 1, 5, 9, b"123", "1234", "12345", "1", "12")
    assert message.size_bytes == 3 + 4 + 5 + 1 + 2


@pytest.mark.parametrize("gaps", [0, 1, 2, GAPS_KEPT])
def test_gaps_come_in_the_chunk_of_the_messages_after_them(gaps: int) -> None:
    told = b"".join(MSGPACK.tombstone(ORIGIN, n, n + 1, "evicted") for n in range(gaps))
    sent = [(1, 1, (8, 9, Record("1")))]
    events = events_of(chunk(told + encoded(MSGPACK, 2, sent)))
    assert events[:-1] == [PushGap(1, n, n + 1, "evicted") for n in range(gaps)]
    assert isinstance(events[-1], PushedBatch)


def test_several_chunks_of_one_write_are_decoded_in_their_order() -> None:
    written = chunk(MSGPACK.heartbeat()) + chunk(MSGPACK.error("replaced", "why", {"a": 1}))
    assert events_of(written + LAST_CHUNK) == [
        StreamAlive(),
        StreamEnded("replaced", "why", {"a": 1}),
    ]


@pytest.mark.parametrize(
    "written",
    [b"3\r\nab", b"zz\r\nab\r\n", b"-1\r\na\r\n", b"5", chunk(b"\xc1"), chunk(b"\x81\xa1"),
     chunk(MSGPACK.heartbeat() + b"\xc1"), chunk(b"\x81\xa5event\xa7unknown")],
)  # fmt: skip
def test_other_bytes_are_refused(written: bytes) -> None:
    with pytest.raises(StreamBroken):
        events_of(written)
