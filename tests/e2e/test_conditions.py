"""Idempotency keys and expected_seq are decided once, in the commit, however often sent."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.daemon import Daemon, running
from tests.e2e.wire import request, wire_of_each_shard


def test_a_repeated_key_replays_the_first_answer(shared_daemon: Daemon) -> None:
    first = shared_daemon.produce("repeat", "a", "b", idempotency_key="k1")
    shared_daemon.produce("repeat", "c")
    again = shared_daemon.produce("repeat", "a", "b", idempotency_key="k1")

    assert first.json["deduped"] is False
    assert again.json == {**first.json, "deduped": True}
    assert [r["data"] for r in shared_daemon.read_all("repeat")] == ["a", "b", "c"]


def test_other_records_under_a_used_key_are_refused_and_not_taken_for_a_repeat(
    shared_daemon: Daemon,
) -> None:
    topic = "reused"
    path = f"/v0/topics/{topic}?idempotency_key=k"
    with wire_of_each_shard(shared_daemon, "warm") as wires:
        first = wires[0].json("POST", f"/v0/topics/{topic}", {"records": [{"data": {"a": 1}}],
                                                            "idempotency_key": "k"})  # fmt: skip
        assert first.json["deduped"] is False
        for wire in wires:
            for records in (
                [{"data": {"a": 2}}],
                [{"data": {"a": 1}, "key": "x"}],
                [{"data": 1}] * 2,
            ):
                answer = wire.json(
                    "POST", f"/v0/topics/{topic}", {"records": records, "idempotency_key": "k"}
                )
                assert (answer.status, answer.code) == (422, "idempotency_key_reused")
                assert answer.json["error"]["detail"] == {
                    "partition": 0, "first_seq": 1, "last_seq": 1,
                }  # fmt: skip
    # The records count, not what else a body says, nor whether it is an object or lines.
    patient = {"records": [{"data": {"a": 1}}], "idempotency_key": "k", "ack_timeout_ms": 9_000}
    again = [
        shared_daemon.json("POST", f"/v0/topics/{topic}", patient),
        shared_daemon.ask("POST", path, b'{"a": 1}\n', content_type="application/x-ndjson"),
        shared_daemon.ask("POST", path, b'[{"a": 1}]', content_type="application/json"),
    ]
    assert [(each.status, each.json.get("deduped")) for each in again] == [(200, True)] * 3
    # Not a byte of the data may differ: a proxy must not write JSON anew.
    tighter = shared_daemon.ask("POST", path, b'[{"a":1}]', content_type="application/json")
    assert tighter.status == 422
    assert [r["data"] for r in shared_daemon.read_all(topic)] == [{"a": 1}]


def test_a_key_may_be_in_the_query(shared_daemon: Daemon) -> None:
    path = "/v0/topics/query-key?idempotency_key=a%20key"
    for deduped in (False, True):
        answer = shared_daemon.ask("POST", path, b"1\n2\n", content_type="application/x-ndjson")
        assert (answer.json["last_seq"], answer.json["deduped"]) == (2, deduped)
    answer = shared_daemon.produce("query-key", 1, 2, idempotency_key="a key")
    assert answer.json["deduped"] is True


def test_repeats_in_one_commit_are_found(shared_daemon: Daemon) -> None:
    shared_daemon.produce("one-commit", 0)
    path = "/v0/topics/one-commit?idempotency_key=k&partition=0"
    with wire_of_each_shard(shared_daemon, "warm") as wires:
        for wire in wires:
            wire.send(request("POST", path, b"[1,2]") * 10)
        answers = [wire.answer() for _ in range(10) for wire in wires]
    seen = Counter(
        (a.json["first_seq"], a.json["last_seq"], a.json["deduped"]) for a in answers if a
    )
    assert seen == {(2, 3, False): 1, (2, 3, True): 19}
    assert [r["data"] for r in shared_daemon.read_all("one-commit")] == [0, 1, 2]


def test_a_request_over_several_partitions_is_replayed_whole(shared_daemon: Daemon) -> None:
    shared_daemon.json("PUT", "/v0/topics/spread", {"partitions": 4})
    records = [{"data": n, "key": str(n)} for n in range(20)]
    shared_daemon.json("POST", "/v0/topics/spread", {"records": records})
    document = {"records": records, "idempotency_key": "k"}
    first = shared_daemon.json("POST", "/v0/topics/spread", document)
    shared_daemon.json("POST", "/v0/topics/spread", {"records": records})
    again = shared_daemon.json("POST", "/v0/topics/spread", document)

    assert len(first.json["partitions"]) > 1
    assert again.json == {**first.json, "deduped": True}
    assert sum(len(shared_daemon.read_all("spread", p)) for p in range(4)) == 60
    # More partitions, so others of them would get the records: it is still a repeat.
    shared_daemon.json("PUT", "/v0/topics/spread", {"partitions": 7})
    grown = shared_daemon.json("POST", "/v0/topics/spread", document)
    assert grown.json == again.json
    other = shared_daemon.json("POST", "/v0/topics/spread", {**document, "records": records[1:]})
    assert other.code == "idempotency_key_reused"


@pytest.mark.slow
def test_keys_and_heads_outlive_a_restart(data: Path) -> None:
    with running(data, shards=2) as daemon:
        first = daemon.produce("durable", 1, idempotency_key="k").json
        daemon.kill_everything()
    with running(data, shards=1) as daemon:
        assert daemon.produce("durable", 1, idempotency_key="k").json == {**first, "deduped": True}
        late = daemon.produce("durable", 2, expected_seq=0)
        assert (late.status, late.json["error"]["detail"]["head_seq"]) == (412, 1)
        assert daemon.produce("durable", 2, expected_seq=1).json["first_seq"] == 2
        assert [r["data"] for r in daemon.read_all("durable")] == [1, 2]


def test_an_append_whose_expectation_does_not_hold_is_not_stored(shared_daemon: Daemon) -> None:
    assert shared_daemon.produce("expected_end", 1, expected_seq=0).json["first_seq"] == 1
    for expected in (0, 2, 2**53):
        answer = shared_daemon.produce("expected_end", 2, expected_seq=expected)
        assert (answer.status, answer.code) == (412, "sequence_mismatch")
        assert answer.json["error"]["detail"] == {"expected_seq": expected, "head_seq": 1}
    assert len(shared_daemon.read_all("expected_end")) == 1


def test_writers_that_read_the_head_and_retry_lose_no_update(shared_daemon: Daemon) -> None:
    """Optimistic locking: each writer increments a counter ten times."""
    shared_daemon.produce("counter", 0)

    def writer(_: int) -> None:
        for _ in range(10):
            while True:
                state = shared_daemon.diff("counter", from_seq=0, limit=1000)
                last = state["records"][-1]
                answer = shared_daemon.produce(
                    "counter", last["data"] + 1, expected_seq=last["seq"]
                )
                if answer.status == 200:
                    break
                assert answer.status == 412

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(writer, range(4)))
    assert [r["data"] for r in shared_daemon.read_all("counter")] == list(range(41))


def test_a_broken_link_breaks_only_the_chain_after_it(shared_daemon: Daemon) -> None:
    with wire_of_each_shard(shared_daemon, "warm") as wires:
        wire = wires[0]
        wire.send(
            b"".join(
                request("POST", f"/v0/topics/links?expected_seq={n}", b"[%d]" % n)
                for n in (0, 1, 5, 2, 2, 3)
            )
        )
        answers = [wire.answer() for _ in range(6)]
    assert [a.status for a in answers if a] == [200, 200, 412, 200, 412, 200]
    assert [r["data"] for r in shared_daemon.read_all("links")] == [0, 1, 2, 3]
