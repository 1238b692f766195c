"""Reading with diff: where it begins and ends, what it waits for; answers from the rings and from
objects are the same."""

from __future__ import annotations

import itertools
import json
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.e2e.daemon import Daemon, running
from tests.e2e.wire import Wire, request, wire_of_each_shard
from tests.long import examples

_numbers = itertools.count()


def data_of(page: dict[str, Any]) -> list[Any]:
    return [record["data"] for record in page["records"]]


def pages(daemon: Daemon, topic: str, **asked: Any) -> list[dict[str, Any]]:
    """Diffs from the beginning, or from_ts, until one has caught up."""
    found: list[dict[str, Any]] = []
    begin = {"from_seq": 0}
    if "from_ts" in asked:
        begin = {"from_ts": asked.pop("from_ts")}
    while True:
        page = daemon.diff(topic, **begin, **asked)
        found.append(page)
        if page["caught_up"]:
            return found
        assert page["next_from_seq"] > begin.get("from_seq", -1), "a page must move on"
        begin = {"from_seq": page["next_from_seq"]}


def records_of(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [record for page in found for record in page["records"]]


def test_from_seq_is_exclusive_and_next_from_seq_goes_on(shared_daemon: Daemon) -> None:
    shared_daemon.produce("steps", *"abcde")

    page = shared_daemon.diff("steps", from_seq=2, limit=2)
    assert [(r["seq"], r["data"]) for r in page["records"]] == [(3, "c"), (4, "d")]
    page.pop("records")
    state = shared_daemon.get("/v0/topics/steps").json
    assert page.pop("topic_id") == state["topic_id"]
    assert page == {
        "next_from_seq": 4, "head_seq": 5, "earliest_seq": 1, "caught_up": False, "lag": 1,
        "tombstone": None,
    }  # fmt: skip
    last = shared_daemon.diff("steps", from_seq=4)
    assert (data_of(last), last["next_from_seq"]) == (["e"], 5)
    assert (last["caught_up"], last["lag"]) == (True, 0)


def test_by_default_a_diff_begins_at_the_start(shared_daemon: Daemon) -> None:
    shared_daemon.produce("silent", *range(300))

    page = shared_daemon.ask("POST", "/v0/topics/silent/diff").json
    assert data_of(page) == list(range(256)), "256 is the default limit"
    assert shared_daemon.diff("silent") == page


def test_at_the_end_there_is_nothing(shared_daemon: Daemon) -> None:
    shared_daemon.produce("ended", 1, 2)

    for asked in ({"from_seq": 2}, {"tail": True}, {"from_seq": 2, "wait_ms": 1}):
        page = shared_daemon.diff("ended", **asked)
        assert (page["records"], page["next_from_seq"]) == ([], 2)
        assert (page["head_seq"], page["caught_up"], page["lag"]) == (2, True, 0)


def test_an_empty_partition_has_no_head(shared_daemon: Daemon) -> None:
    shared_daemon.json("PUT", "/v0/topics/empty", {"partitions": 2})

    for asked in ({}, {"tail": True}, {"from_ts": 0}, {"partition": 1, "wait_ms": 1}):
        page = shared_daemon.diff("empty", **asked)
        assert (page["records"], page["next_from_seq"], page["head_seq"]) == ([], 0, 0)
        assert page["caught_up"] is True


def test_max_bytes_bounds_an_answer_and_a_larger_record_comes_alone(shared_daemon: Daemon) -> None:
    sizes = [10, 10, 50, 10, 10, 10, 10, 10]
    shared_daemon.produce("bytes", *["x" * (size - 2) for size in sizes])  # and two quotes

    found = pages(shared_daemon, "bytes", max_bytes=40)
    assert [len(page["records"]) for page in found] == [2, 1, 4, 1]


def test_max_bytes_counts_every_field_in_bytes(shared_daemon: Daemon) -> None:
    record = {"data": "é" * 4, "key": "é" * 5, "tag": "t" * 10, "node": "n" * 10, "meta": {"m": 1}}
    # 10 + 10 + 10 + 10 + 7 (or 8 with the blank): two fit into 100, three do not.
    body = {"records": [record] * 3}
    answer = shared_daemon.ask(
        "POST", "/v0/topics/every-byte", json.dumps(body, ensure_ascii=False).encode(),
        content_type="application/json",
    )  # fmt: skip
    assert answer.status == 200

    assert [len(p["records"]) for p in pages(shared_daemon, "every-byte", max_bytes=100)] == [2, 1]
    assert len(pages(shared_daemon, "every-byte", max_bytes=1)) == 3


def test_filters_keep_what_is_equal_and_move_past_the_rest(shared_daemon: Daemon) -> None:
    records = [
        {"data": n, "tag": "ab"[n % 2], "node": "xyz"[n % 3]} if n % 5 else {"data": n}
        for n in range(60)
    ]
    shared_daemon.json("POST", "/v0/topics/filters", {"records": records})

    for tag, node in (("a", None), (None, "z"), ("b", "x"), ("nobody", None), ("", None)):
        asked = {"tag": tag, "node": node}
        expected = [
            r["data"]
            for r in records
            if tag in (None, r.get("tag")) and node in (None, r.get("node"))
        ]
        assert [r["data"] for r in records_of(pages(shared_daemon, "filters", **asked))] == expected
        found = pages(shared_daemon, "filters", limit=3, **asked)
        assert [r["data"] for r in records_of(found)] == expected
        assert found[-1]["next_from_seq"] == 60, "filtered records are passed too"


@pytest.mark.parametrize(
    "path",
    ["/v0/topics/filters/records", "/v0/topics/filters/watch", "/v0/topics", "/v0/cursors",
     "/v0/routers"],
)  # fmt: skip
def test_a_parameter_of_a_read_that_does_not_exist_is_refused(
    shared_daemon: Daemon, path: str
) -> None:
    answer = shared_daemon.get(f"{path}?where=a%3Db")
    assert answer.status == 400 and answer.json["error"]["detail"] == {"field": "where"}
    assert "there is no query parameter 'where'; this takes " in answer.json["error"]["message"]


TIMES = [100, 50, 200, 150, 150, 300, 10, 400, 390, 500]


def test_from_ts_with_a_filter_begins_at_the_same_place(shared_daemon: Daemon) -> None:
    records = [{"data": n, "ts": ts, "tag": "ab"[n % 2]} for n, ts in enumerate(TIMES)]
    shared_daemon.json("POST", "/v0/topics/late", {"records": records})

    # 300 at index 5 begins; of what follows, the earlier 10 at index 6 belongs to it.
    page = shared_daemon.diff("late", from_ts=201, tag="a")
    assert data_of(page) == [6, 8]


def test_a_late_timestamp_that_was_never_stored_misleads_no_reader(shared_daemon: Daemon) -> None:
    """The ledger knows an extent's last timestamp, void records included."""
    path = "/v0/topics/misled"
    with wire_of_each_shard(shared_daemon, "warm") as wires:
        void = {"records": [{"data": "void", "ts": 900}], "expected_seq": 77}
        kept = {"records": [{"data": 0, "ts": 5}, {"data": 1, "ts": 6}]}
        wires[0].send(
            b"".join(request("POST", path, json.dumps(d).encode()) for d in (kept, void, kept))
        )
        assert [a.status for _ in range(3) if (a := wires[0].answer())] == [200, 412, 200]
    assert shared_daemon.diff("misled", from_ts=800)["records"] == []
    late = {"records": [{"data": 2, "ts": 850}, {"data": 3, "ts": 5}]}
    shared_daemon.json("POST", path, late)
    assert data_of(shared_daemon.diff("misled", from_ts=800)) == [2, 3]


def test_a_long_poll_wakes_on_a_write_through_any_shard(shared_daemon: Daemon) -> None:
    with (
        wire_of_each_shard(shared_daemon, "polled") as readers,
        wire_of_each_shard(shared_daemon, "polled") as writers,
    ):
        head = shared_daemon.diff("polled", tail=True)["head_seq"]
        for number, (reader, writer) in enumerate(itertools.product(readers, writers)):
            asked = {"from_seq": head + number, "wait_ms": 30_000}
            reader.send(request("POST", "/v0/topics/polled/diff", json.dumps(asked).encode()))
            writer.json("POST", "/v0/topics/polled", {"records": [{"data": f"news {number}"}]})
            answer = reader.answer()
            assert answer is not None
            assert data_of(answer.json) == [f"news {number}"]
            assert answer.json["next_from_seq"] == head + number + 1


def test_a_long_poll_at_the_tail_gets_what_comes_next(shared_daemon: Daemon) -> None:
    shared_daemon.produce("next", "before")
    with ThreadPoolExecutor(1) as threads:
        poll = threads.submit(shared_daemon.diff, "next", tail=True, wait_ms=30_000)
        count = 0
        while not poll.done():  # the poll may begin after any of these
            count += 1
            shared_daemon.produce("next", count)
        page = poll.result()
    assert len(page["records"]) >= 1
    assert all(1 <= n <= count for n in data_of(page))


def test_polls_that_come_with_the_signal_do_not_keep_the_daemon_from_stopping(data: Path) -> None:
    with running(data) as daemon:
        daemon.produce("last", 1)
        asked = json.dumps({"tail": True, "wait_ms": 30_000}).encode()
        with ExitStack() as stack:
            wires = [stack.enter_context(Wire(daemon.port)) for _ in range(8)]
            for number, wire in enumerate(wires):
                wire.send(request("POST", "/v0/topics/last/diff", asked))
                if number == 4:
                    daemon.process.send_signal(signal.SIGTERM)
            for wire in wires:
                assert all(answer.status == 200 for answer in wire.answers())
        assert daemon.stop() == 0
        assert "takes too long" not in daemon.text


def test_an_offset_past_the_end_is_refused_with_the_last_one(shared_daemon: Daemon) -> None:
    shared_daemon.produce("short", 1, 2)
    for asked in ({"from_seq": 3}, {"from_seq": 3, "wait_ms": 30_000}):
        answer = shared_daemon.json("POST", "/v0/topics/short/diff", asked)
        assert (answer.status, answer.code) == (416, "offset_out_of_range")
        detail = answer.json["error"]["detail"]
        assert (detail["from_seq"], detail["head_seq"], detail["partition"]) == (3, 2, 0)
        assert "from_seq is 3" in answer.json["error"]["message"]


def test_every_shard_reports_that_a_topic_was_recreated(
    shared_daemon: Daemon,
) -> None:
    """A shard may learn of names late, but never takes the new topic for the old one."""
    with wire_of_each_shard(shared_daemon, "anyone") as wires:
        shared_daemon.produce("phoenix", "a", "b", "c")
        read = shared_daemon.diff("phoenix", from_seq=0, limit=2)
        asked = {"from_seq": read["next_from_seq"], "topic_id": read["topic_id"]}
        for wire in wires:
            assert wire.json("POST", "/v0/topics/phoenix/diff", asked).json["lag"] == 0
        assert shared_daemon.json("DELETE", "/v0/topics/phoenix").status == 200
        shared_daemon.produce("phoenix", *"ABCD")
        for wire in wires:
            page = wire.json("POST", "/v0/topics/phoenix/diff", asked).json
            assert data_of(page) == list("ABCD")
            assert page["topic_id"] > read["topic_id"]
            assert page["tombstone"] == {"gap_from": 3, "gap_to": 3, "reason": "recreated"}


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"from_seq": -1}, "from_seq"),
        ({"from_seq": 2**63}, "from_seq"),
        ({"from_ts": -1}, "from_ts"),
        ({"partition": -1}, "partition"),
        ({"partition": 1}, "partition"),
        ({"limit": 0}, "limit"),
        ({"limit": 1001}, "limit"),
        ({"max_bytes": 0}, "max_bytes"),
        ({"max_bytes": 2**40}, "max_bytes"),
        ({"wait_ms": -1}, "wait_ms"),
        ({"wait_ms": 30_001}, "wait_ms"),
        ({"from_seq": 0, "topic_id": 0}, "topic_id"),
        ({"tail": True, "topic_id": 1}, "topic_id"),
        ({"from_seq": 0, "tail": True}, "from_seq"),
        ({"from_seq": 0, "from_ts": 0}, "from_seq"),
        ({"from_ts": 0, "tail": True}, "from_seq"),
        ({"from_seq": None}, None),
        ({"from_seq": "0"}, None),
        ({"from_seq": 10**40}, None),
        ({"limit": 1.5}, None),
        ({"tail": "yes"}, None),
        ({"seq": 1}, None),
        ([], None),
        (5, None),
    ],
)
def test_questions_that_are_out_of_range_are_refused(
    shared_daemon: Daemon, asked: object, field: str | None
) -> None:
    shared_daemon.json("PUT", "/v0/topics/asked", {})
    answer = shared_daemon.json("POST", "/v0/topics/asked/diff", asked)

    assert (answer.status, answer.code) == (400, "invalid")
    if field is not None:
        assert answer.json["error"]["detail"] == {"field": field}


# How batches and questions vary; data is JSON text, so that its bytes can be counted.
texts = st.one_of(
    st.integers(-5, 10**6).map(str),
    st.text(max_size=30).map(lambda text: json.dumps(text, ensure_ascii=False)),
)
batches = st.lists(st.lists(texts, min_size=1, max_size=12), min_size=1, max_size=6)


@settings(max_examples=examples(25))
@given(batches, st.integers(1, 20), st.integers(1, 200))
def test_whatever_is_written_is_read_whatever_the_pages(
    shared_daemon: Daemon, written: list[list[str]], limit: int, max_bytes: int
) -> None:
    topic = f"property.{next(_numbers)}"
    for batch in written:
        body = "\n".join(batch).encode("utf-8", "surrogatepass")
        answer = shared_daemon.ask(
            "POST", f"/v0/topics/{topic}", body, content_type="application/x-ndjson"
        )
        assert answer.status == 200, answer.body
    expected = [text for batch in written for text in batch]

    found = pages(shared_daemon, topic, limit=limit, max_bytes=max_bytes)
    records = records_of(found)
    assert [r["seq"] for r in records] == list(range(1, len(expected) + 1))
    assert [r["data"] for r in records] == [json.loads(text) for text in expected]
    at = 0
    for page in found:
        sizes = [len(text.encode()) for text in expected[at : at + len(page["records"])]]
        at += len(sizes)
        assert page["next_from_seq"] == at
        assert (page["head_seq"], page["lag"]) == (len(expected), len(expected) - at)
        assert len(sizes) <= limit
        assert sum(sizes) <= max_bytes or len(sizes) == 1
        if at < len(expected) and len(sizes) < limit:
            assert sum(sizes) + len(expected[at].encode()) > max_bytes, (
                "a page is as full as may be"
            )


def fill(daemon: Daemon) -> None:
    """Two topics with every kind of record, written through all shards."""
    daemon.json("PUT", "/v0/topics/spread", {"partitions": 3})
    with wire_of_each_shard(daemon, "warm") as wires:
        for turn in range(10):
            for shard, wire in enumerate(wires):
                name = f"{turn}.{shard}"
                keyed = [{"data": [name, n], "key": str(n), "ts": 1000 - turn} for n in range(8)]
                plain = [{"data": name, "tag": str(turn % 3), "node": str(shard)}] * 3
                documents = [
                    ("spread", {"records": keyed, "idempotency_key": f"{turn}"}),
                    ("single", {"records": plain}),
                    ("single", {"records": plain, "idempotency_key": f"{turn}"}),
                    ("single", {"records": plain, "expected_seq": 3 * turn + 9}),
                    ("spread", {"records": keyed, "partition": 1, "expected_seq": 10_000}),
                    ("single", {"records": [{"data": name}]}),
                ]
                wire.send(
                    b"".join(
                        request("POST", f"/v0/topics/{topic}", json.dumps(document).encode())
                        for topic, document in documents
                    )
                )
            for wire in wires:
                answers = [wire.answer() for _ in range(6)]
                assert all(a is not None and a.status in (200, 412, 422) for a in answers)


def everything(daemon: Daemon) -> list[Any]:
    """Answers to many diffs; if they are equal, a reader cannot tell two states apart."""
    questions: list[dict[str, Any]] = [
        {}, {"limit": 7}, {"max_bytes": 500}, {"tag": "1"}, {"node": "0", "limit": 2},
        *({"from_ts": ts} for ts in (0, 991, 995, 1000, 10**13)),
    ]  # fmt: skip
    partitions = (("spread", 0), ("spread", 1), ("spread", 2), ("single", 0))
    return [
        pages(daemon, topic, partition=partition, **asked)
        for topic, partition in partitions
        for asked in questions
    ]


def test_rings_and_objects_give_the_same(data: Path) -> None:
    with running(data, shards=2) as daemon:
        fill(daemon)
        hot = everything(daemon)
        assert daemon.status()["store"]["gets"] == 0, "all of it came from the rings"
    with running(data, shards=2) as daemon:
        assert everything(daemon) == hot
        assert daemon.status()["store"]["gets"] > 0
        # Void records were written in between; they are invisible, and no offset is skipped.
        for records in (records_of(each) for each in (hot[0], hot[10], hot[20], hot[30])):
            assert [r["seq"] for r in records] == list(range(1, len(records) + 1))
        assert daemon.get("/v0/topics/single").json["partitions"][0]["count"] == len(
            records_of(hot[30])
        )
        singles = [r["data"] for r in records_of(hot[30])]
        for turn in range(10):
            mine = [name for name in singles if name.startswith(f"{turn}.")]
            # 2 x 3 without conditions, 2 x 1 likewise, 3 under the key, 0 to 2 x 3 as expected.
            assert len(mine) in (11, 14, 17)
