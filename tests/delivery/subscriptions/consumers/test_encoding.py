"""A batch says the same in all formats, and is what the schema says."""

from __future__ import annotations

import json

import msgspec
import pytest

from delivery.streams.formats import MSGPACK, NDJSON, SSE
from delivery.subscriptions.consumers.encoding import Sent, encoded, polled
from delivery.subscriptions.schemas import ConsumedMessage, Polled
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
