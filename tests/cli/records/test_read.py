"""``headgate read``, against answers in the shapes of the HTTP API.

That the daemon answers so is tested with the daemon (tests/cli/test_e2e.py).
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from commands.client import reader
from commands.client.http import Client
from commands.records import read as read_
from delivery.streams.formats import SSE, Origin
from delivery.watch.positions import format_position, parse_position
from tests.e2e.daemon import HANG_S
from tests.scripted import (
    Answer,
    Call,
    Lasting,
    Script,
    Scripted,
    refusal,
    run,
    says,
    scripted,
    state,
)
from uploader.l0.records import Record

CHECKOUT = Path(__file__).resolve().parents[3]


class Log:
    """Partitions in memory, with the answers to diff and watch of docs/http-api.md."""

    def __init__(self, *partitions: list[dict[str, Any]]) -> None:
        self.partitions = partitions
        self.page = 1_000

    def watch(self, call: Call) -> Answer:
        """A stream that continues after the position that was sent."""
        position = parse_position(call.headers["Last-Event-ID"])
        told = False

        def more() -> bytes:
            nonlocal told
            found = b"" if told else SSE.opening() + SSE.position(format_position(position))
            told = True
            for (topic_id, partition), seq in list(position.items()):
                for record in self.partitions[partition][seq:]:
                    names = {"partition": partition} if len(position) > 1 else {}
                    found += b"event: record\ndata: %b\n\n" % json.dumps(names | record).encode()
                    position[topic_id, partition] = record["seq"]
            return found

        return Answer(200, Lasting(more))

    def __call__(self, call: Call) -> Answer:
        if "/watch" in call.path:
            return self.watch(call)
        if call.method == "GET":
            topic = state("t", len(self.partitions))
            for row, records in zip(topic["partitions"], self.partitions, strict=True):
                row["head_seq"] = len(records)
            return Answer(200, topic)
        records = self.partitions[call.body["partition"]]
        if "from_ts" in call.body:
            left = [each for each in records if each["ts"] >= call.body["from_ts"]]
        else:
            left = [each for each in records if each["seq"] > call.body["from_seq"]]
        shown = left[: min(call.body["limit"], self.page)]
        head = records[-1]["seq"] if records else 0
        after = shown[-1]["seq"] if shown else max(head, call.body.get("from_seq", 0))
        return Answer(
            200,
            {
                "records": shown, "next_from_seq": after, "head_seq": head, "earliest_seq": 1,
                "caught_up": after >= head, "lag": head - after, "topic_id": 7,
                "tombstone": None,
            },
        )  # fmt: skip


def log_of(count: int, ts: int = 0, step: int = 1) -> list[dict[str, Any]]:
    return [{"seq": n, "ts": ts + n * step, "data": {"n": n}} for n in range(1, count + 1)]


def numbers(result: Result) -> list[int]:
    return [json.loads(line)["n"] for line in result.stdout.splitlines()]


def test_read_prints_the_data_of_all_records_page_by_page() -> None:
    log = Log(log_of(7))
    log.page = 3
    with scripted(log) as server:
        result = run(server, "read", "t")
    assert result.exit_code == 0 and numbers(result) == [1, 2, 3, 4, 5, 6, 7]
    assert [call.body["from_seq"] for call in server.calls[1:]] == [0, 3, 6]
    assert all(call.body["limit"] == 1_000 for call in server.calls[1:])


def test_read_prints_whole_records_with_their_partition() -> None:
    record = {"seq": 1, "ts": 5, "data": [1], "key": "k", "meta": {"a": "b"}}
    with scripted(Log([record])) as server:
        result = run(server, "read", "t", "--with-meta")
    assert json.loads(result.stdout) == {"partition": 0, **record}


def test_read_keeps_the_spelling_of_data_and_makes_it_one_line() -> None:
    answers = {
        "records": "@", "next_from_seq": 3, "head_seq": 3, "earliest_seq": 1, "caught_up": True,
        "lag": 0, "topic_id": 7, "tombstone": None,
    }  # fmt: skip
    records = (
        b'[{"seq":1,"ts":1,"data":{"a": 1.50}},{"seq":2,"ts":1,"data":{"b":\n 2}},'
        b'{"seq":3,"ts":1,"data_b64":"AAE="}]'
    )
    body = json.dumps(answers).encode().replace(b'"@"', records)
    with says(Answer(200, body)) as server:
        result = run(server, "read", "t", "--partition", "0")
    assert result.stdout.splitlines() == ['{"a": 1.50}', '{"b":2}', '{"data_b64":"AAE="}']


def test_read_ends_after_n_records() -> None:
    with scripted(Log(log_of(5), log_of(5))) as server:
        assert numbers(run(server, "read", "t", "-n", "7")) == [1, 1, 2, 2, 3, 3, 4]
        assert numbers(run(server, "read", "t", "-n", "2", "--follow")) == [1, 1]
    assert [call.body["limit"] for call in server.calls if call.body] == [7, 7, 2, 2]


def test_partitions_are_merged_by_time_and_each_keeps_its_order() -> None:
    backwards = [{"seq": n, "ts": 100 - n, "data": {"n": n}} for n in range(1, 4)]  # 99, 98, 97
    log = Log(log_of(5, step=25), backwards, [], log_of(2, ts=96))  # 25, 50, ...; ...; 97, 98
    log.page = 2
    with scripted(log) as server:
        result = run(server, "read", "t", "--with-meta")
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(each["partition"], each["ts"]) for each in found] == [
        (0, 25), (0, 50), (0, 75), (3, 97), (3, 98), (1, 99), (1, 98), (1, 97), (0, 100), (0, 125),
    ]  # fmt: skip
    sizes = [call.body["max_bytes"] for call in server.calls if call.body]
    assert set(sizes) == {8 << 20}, "the four pages have 64 MiB at most"


def test_of_many_partitions_small_pages_are_in_memory() -> None:
    with scripted(Log(*[log_of(1)] * 100)) as server:
        assert numbers(run(server, "read", "t")) == [1] * 100
    assert {c.body["max_bytes"] for c in server.calls if c.body} == {(64 << 20) // 100}


def test_a_merge_that_ends_early_continues_where_each_partition_was() -> None:
    log = Log(log_of(6, step=10), log_of(6, ts=5, step=10))
    log.page = 2
    asked = 0

    def script(call: Call) -> Answer:
        nonlocal asked
        asked += "/diff" in call.path
        return refusal(500, "internal") if asked == 5 else log(call)

    with scripted(script) as server:
        first = run(server, "read", "t", "--with-meta")
        assert first.exit_code == 1
        point = re.search(r"--resume (\S+) continues", first.stderr)
        assert point is not None
        second = run(server, "read", "t", "--with-meta", "--resume", point[1])
    found = [json.loads(line)["ts"] for line in (first.stdout + second.stdout).splitlines()]
    assert found == sorted([*range(10, 70, 10), *range(15, 75, 10)])


def test_read_from_an_offset_is_exclusive_and_one_partition_is_enough() -> None:
    with scripted(Log(log_of(5), log_of(3))) as server:
        result = run(server, "read", "t", "--from-seq", "2", "--partition", "1")
    assert numbers(result) == [3]
    assert len(server.calls) == 1


def test_read_since_asks_for_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_, "wall_ms", lambda: 3_600_000 + 4)
    with scripted(Log(log_of(5))) as server:
        assert numbers(run(server, "read", "t", "--since", "1h")) == [4, 5]
        for time in ("1970-01-01T00:00:00.003Z", "1970-01-01T00:00:00.003"):
            assert numbers(run(server, "read", "t", "--since", time)) == [3, 4, 5]


def test_the_tail_of_several_partitions_is_the_newest_of_all() -> None:
    with scripted(Log(log_of(9, ts=0, step=10), log_of(9, ts=50, step=1))) as server:
        result = run(server, "read", "t", "--tail", "4", "--with-meta")
    found = [
        (line["partition"], line["seq"]) for line in map(json.loads, result.stdout.split("\n")[:-1])
    ]
    assert found == [(0, 6), (0, 7), (0, 8), (0, 9)]


def test_the_tail_of_one_partition_may_be_longer_than_a_page() -> None:
    log = Log(log_of(20))
    log.page = 3
    with scripted(log) as server:
        assert numbers(run(server, "read", "t", "--tail", "8")) == list(range(13, 21))


def test_reading_ends_at_the_head_that_it_met_though_a_writer_is_faster() -> None:
    log = Log(log_of(4))
    log.page = 2

    def script(call: Call) -> Answer:
        answer = log(call)
        log.partitions[0].extend(
            {"seq": len(log.partitions[0]) + n, "ts": 9, "data": {"n": 0}} for n in (1, 2)
        )
        return answer

    with scripted(script) as server:
        result = run(server, "read", "t", "--partition", "0")
    assert numbers(result) == [1, 2, 3, 4]


def test_a_gap_is_named_on_stderr() -> None:
    gap = {"gap_from": 1, "gap_to": 4, "reason": "cap_records"}

    def script(call: Call) -> Answer:
        answer = Log(log_of(1))(call)
        return answer._replace(body=answer.body | {"tombstone": gap})

    with scripted(script) as server:
        result = run(server, "read", "t", "--partition", "0")
    assert result.exit_code == 0
    assert "records 1 to 4 of partition 0 of t are gone: cap_records" in result.stderr


def test_following_continues_with_a_stream_of_all_partitions() -> None:
    log = Log(log_of(2), log_of(1))

    def script(call: Call) -> Answer:
        if "/watch" in call.path:
            log.partitions[1].append({"seq": 2, "ts": 9, "data": {"n": 99}})
        return log(call)

    with scripted(script) as server:
        result = run(server, "read", "t", "--follow", "-n", "4")
    assert numbers(result) == [1, 1, 2, 99]
    asked = server.calls[-1]
    assert asked.path == "/v0/topics/t/watch"
    assert asked.headers["Last-Event-ID"] == "7:0=2,1=1"
    assert asked.headers["Accept"] == "text/event-stream"


def test_a_single_partition_is_followed_alone_and_with_whole_records() -> None:
    log = Log(log_of(1), log_of(1))

    def script(call: Call) -> Answer:
        if "/watch" in call.path:
            log.partitions[1].append({"seq": 2, "ts": 9, "data": "x"})
        return log(call)

    with scripted(script) as server:
        result = run(server, "read", "t", "-f", "-n", "2", "--partition", "1", "--with-meta")
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {"partition": 1, "seq": 1, "ts": 1, "data": {"n": 1}},
        {"partition": 1, "seq": 2, "ts": 9, "data": "x"},
    ]
    assert server.calls[-1].path == "/v0/topics/t/watch?partition=1"
    assert server.calls[-1].headers["Last-Event-ID"] == "7:1=1"


def test_more_partitions_than_a_stream_can_have_are_polled_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader, "PLACES_MAX", 1)
    log = Log(log_of(2), log_of(1))

    def script(call: Call) -> Answer:
        if call.body and call.body["wait_ms"] and call.body["partition"] == 1:
            log.partitions[1].append({"seq": 2, "ts": 9, "data": {"n": 99}})
        return log(call)

    with scripted(script) as server:
        result = run(server, "read", "t", "--follow", "-n", "4")
    assert numbers(result) == [1, 1, 2, 99]
    assert {call.body["wait_ms"] for call in server.calls[1:]} == {0, 250}


def started(server: Scripted, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """The command as a process of its own, its stdout buffered as a user's is."""
    environ = {name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.Popen(
        [sys.executable, str(CHECKOUT / "cli.py"), *arguments],
        env=environ | {"HEADGATE_URL": server.url, "PYTHONPATH": str(CHECKOUT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def said(process: subprocess.Popen[bytes]) -> list[bytes]:
    """What an ended command has said, except of long waits: each is one if the server stands still
    for two seconds."""
    assert process.stderr is not None
    waits = rb"headgate: (waiting up to .*: no answer so far|\S+ answers again)\n"
    return [line for line in process.stderr if not re.fullmatch(waits, line)]


def test_ctrl_c_ends_a_follow_with_0() -> None:
    with scripted(Log(log_of(1))) as server, started(server, "read", "t", "-f") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b'{"n": 1}\n'
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG_S) == 0
        assert said(process) == []


def test_a_reader_of_the_pipe_that_closes_it_is_not_a_failure() -> None:
    log = Log(log_of(1))
    with scripted(log) as server, started(server, "read", "t", "-f") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        log.partitions[0].append({"seq": 2, "ts": 2, "data": {"n": 2}})
        assert process.wait(HANG_S) == 0
        assert said(process) == []


def recreated(*after: bytes) -> bytes:
    """A stream that resumes at 7:0=3, and by now the topic has another id and two partitions."""
    gap = SSE.tombstone(Origin("t", 7, 0), 4, 5, "recreated")
    return SSE.opening() + gap + SSE.position("8:0=0,1=0") + b"".join(after)


def test_follow_continues_a_recreated_topic_at_its_start_and_says_so() -> None:
    """The new topic has a second partition, which is followed too."""
    first, second = (Origin("t", 8, n, shows_partition=True) for n in (0, 1))
    sent = [
        recreated(
            SSE.records([(1, 5, Record('{"n":1}')), (2, 5, Record('{"n":2}'))], first, True),
            SSE.records([(1, 5, Record('{"n":77}'))], second),
            SSE.position("8:0=2,1=1"),
        )
    ]
    log = Log(log_of(3))

    def script(call: Call) -> Answer:
        if "/watch" not in call.path:
            return log(call)
        return Answer(200, Lasting(lambda: sent.pop() if sent else None)) if sent else Answer(0)

    with scripted(script) as server:
        result = run(server, "read", "t", "--follow", "--wait", "0")
    assert numbers(result) == [1, 2, 3, 1, 2, 77]
    assert "t was deleted and created again; partition 0 continues at the start" in result.stderr
    assert "records 4 to 5 of it are gone" in result.stderr
    assert "--resume 8:0=2,1=1 " in result.stderr


def test_read_continues_a_recreated_topic_at_its_start() -> None:
    log = Log(log_of(3))

    def script(call: Call) -> Answer:
        if call.method == "GET" or call.body.get("topic_id") != 6:
            return log(call)
        call.body["from_seq"] = 0
        answer = log(call)
        answer.body["tombstone"] = {"gap_from": 10, "gap_to": 9, "reason": "recreated"}
        return answer

    with scripted(script) as server:
        result = run(server, "read", "t", "--resume", "6:0=9")
    assert numbers(result) == [1, 2, 3]
    assert "no record of it was missed" in result.stderr


def test_read_ends_with_the_last_offset_when_it_is_to_begin_past_it() -> None:
    refused = refusal(416, "offset_out_of_range", "from_seq is 9, ... is 3", head_seq=3)
    with says(refused) as server:
        result = run(server, "read", "t", "--partition", "0", "--from-seq", "9")
    assert result.exit_code == 1
    assert "from_seq is 9, ... is 3 (offset_out_of_range, status 416)" in result.stderr


def test_read_outlives_lost_connections_and_gives_each_record_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A machine that stands still for two seconds makes no wait of these a long one.
    defaults = Client.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "notice_ms", 60_000)
    log = Log(log_of(3))
    watches = 0

    def script(call: Call) -> Answer:
        nonlocal watches
        if len(server.calls) in (2, 3):
            return Answer(0)
        if "/watch" in call.path:
            watches += 1
            if watches == 1:  # breaks off in the middle of a record
                sent = [SSE.opening() + SSE.position("7:0=3"), b'event: record\ndata: {"seq":']
                return Answer(200, Lasting(lambda: sent.pop(0) if sent else None))
            if watches == 2:
                return Answer(0)
            log.partitions[0].extend(log_of(5)[3:])
        return log(call)

    with scripted(script) as server:
        result = run(server, "read", "t", "--follow", "-n", "5")
    assert result.exit_code == 0 and numbers(result) == [1, 2, 3, 4, 5]
    assert watches == 3
    assert result.stderr == "", "a short wait is not mentioned"


def test_a_topic_that_is_deleted_while_it_is_followed_ends_the_read() -> None:
    log = Log(log_of(1))
    sent = [SSE.position("7:0=1") + SSE.topic_deleted("t", 7)]

    def script(call: Call) -> Answer:
        if "/watch" not in call.path:
            return log(call)
        if not sent:
            return refusal(404, "unknown_topic", "there is no topic 't'")
        return Answer(200, Lasting(lambda: sent.pop() if sent else None))

    with scripted(script) as server:
        result = run(server, "read", "t", "--follow")
    assert result.exit_code == 1 and numbers(result) == [1]
    assert "there is no topic 't' (unknown_topic, status 404)" in result.stderr
    assert "--resume 7:0=1 continues there" in result.stderr


def test_read_ends_with_a_resume_point_for_every_partition() -> None:
    log = Log(log_of(3), log_of(2))

    def script(call: Call) -> Answer:
        return log(call) if len(server.calls) <= 3 else Answer(0)

    with scripted(script) as server:
        result = run(server, "read", "t", "--follow", "--wait", "0")
    assert result.exit_code == 3 and numbers(result) == [1, 1, 2, 2, 3]
    assert "the same command with --resume 7:0=3,1=2 continues there" in result.stderr
    log.partitions[1].append({"seq": 3, "ts": 9, "data": {"n": 33}})
    with scripted(log) as server:
        result = run(server, "read", "t", "--follow", "-n", "1", "--resume", "7:0=3,1=2")
    assert numbers(result) == [33]
    assert all(call.body["topic_id"] == 7 for call in server.calls)


def test_a_resume_point_keeps_the_time_of_partitions_that_were_not_begun() -> None:
    log = Log(log_of(3), log_of(3))
    script: Script = lambda call: log(call) if len(server.calls) <= 2 else Answer(0)  # noqa: E731
    with scripted(script) as server:
        result = run(server, "read", "t", "--since", "1970-01-01T00:00:00.002", "--wait", "0")
    assert numbers(result) == [] and "--resume 7:0=1,1@2 " in result.stderr
    with scripted(log) as server:
        assert numbers(run(server, "read", "t", "--resume", "7:0=3,1@2")) == [2, 3]
