"""``headgate watch``, against streams in the shapes of the HTTP API.

That the daemon sends them is tested with the daemon (tests/cli/test_e2e.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from commands.records import watch as watch_
from delivery.streams.formats import SSE, Item, Origin
from tests.scripted import Answer, Call, Lasting, refusal, run, scripted
from uploader.l0.records import Record


def items(*numbers: int, key: str | None = None) -> list[Item]:
    return [(n, 1_700, Record(f'{{"n": {n}}}', key=key)) for n in numbers]


def sends(*writes: bytes) -> Answer:
    """A stream that breaks off after these."""
    left = list(writes)
    return Answer(200, Lasting(lambda: left.pop(0) if left else None))


def streams(*answers: Answer) -> Callable[[Call], Answer]:
    """The connections of one watch, one after the other."""
    left = list(answers)
    return lambda call: left.pop(0) if left else Answer(0)


HERE = Origin("t", 7, 0)
BEGIN = SSE.opening() + SSE.position("7:0=0")


def test_watch_prints_the_data_of_records_and_ends_after_n() -> None:
    with scripted(streams(sends(BEGIN, SSE.records(items(1, 2, 3), HERE)))) as server:
        result = run(server, "watch", "t", "-n", "2")
    assert (result.exit_code, result.stdout) == (0, '{"n": 1}\n{"n": 2}\n')
    assert server.calls[0].path == "/v0/topics/t/watch"
    assert "Last-Event-ID" not in server.calls[0].headers


def test_watch_asks_for_what_its_options_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_, "wall_ms", lambda: 3_600_000)
    answer = refusal(404, "unknown_topic")
    with scripted(lambda call: answer) as server:
        run(server, "watch", "a/b", "--from-seq", "5", "--partition", "3", "--tag", "x y*")
        run(server, "watch", "t", "--since", "30m", "--node", "n?", "--key", "k&")
    assert [call.path for call in server.calls] == [
        "/v0/topics/a%2Fb/watch?partition=3&from_seq=5&tag=x+y%2A",
        "/v0/topics/t/watch?from_ts=1800000&node=n%3F&key=k%26",
    ]


def test_json_has_whole_records_and_events() -> None:
    told = (
        SSE.tombstone(HERE, 1, 4, "cap") + SSE.records(items(5, key="k"), HERE)
        + SSE.caught_up([("t", 0, 5)]) + SSE.topic_deleted("t", 7)
    )  # fmt: skip
    with scripted(streams(sends(BEGIN, told), refusal(404, "unknown_topic"))) as server:
        result = run(server, "watch", "t", "-o", "json")
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {"event": "tombstone", "topic": "t", "topic_id": 7, "partition": 0, "gap_from": 1,
         "gap_to": 4, "reason": "cap"},
        {"topic": "t", "partition": 0, "seq": 5, "ts": 1_700, "data": {"n": 5}, "key": "k"},
        {"event": "caught-up", "positions": [{"topic": "t", "partition": 0, "head_seq": 5}]},
        {"event": "topic-deleted", "topic": "t", "topic_id": 7},
    ]  # fmt: skip
    assert result.exit_code == 1 and "unknown_topic" in result.stderr


def test_gaps_and_deleted_topics_are_named_on_stderr() -> None:
    told = SSE.tombstone(HERE, 1, 4, "ttl") + SSE.caught_up([]) + SSE.topic_deleted("t", 7)
    with scripted(streams(sends(BEGIN, told), refusal(404, "unknown_topic"))) as server:
        result = run(server, "watch", "t")
    assert result.stdout == ""
    assert "records 1 to 4 of partition 0 of t are gone: ttl" in result.stderr
    assert "t was deleted" in result.stderr


def test_several_topics_are_one_stream() -> None:
    wid = {
        "wid": "W", "stream_url": "/v0/watch/W",
        "topics": [{"topic": "a", "topic_id": 7}, {"topic": "b", "topic_id": 9}],
    }  # fmt: skip
    a, b = (Origin(name, id_, 0, True, True) for name, id_ in (("a", 7), ("b", 9)))
    first = sends(
        SSE.opening() + SSE.position("7:0=0;9:0=0"),
        SSE.records(items(1), a) + SSE.records(items(1), b) + SSE.position("7:0=1;9:0=1"),
        SSE.records(items(2), b),
    )
    second = sends(SSE.position("7:0=1;9:0=2") + SSE.records(items(2), a))
    with scripted(streams(Answer(200, wid), first, second)) as server:
        result = run(server, "watch", "a", "b", "a", "--key", "*", "-n", "4", "-o", "json")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(line["topic"], line["seq"]) for line in lines] == [
        ("a", 1), ("b", 1), ("b", 2), ("a", 2),
    ]  # fmt: skip
    described, *connections = server.calls
    assert (described.method, described.path) == ("POST", "/v0/watch")
    assert [topic["topic"] for topic in described.body["topics"]] == ["a", "b"]
    assert described.body["key"] == "*"
    assert [call.path for call in connections] == ["/v0/watch/W"] * 2
    assert connections[1].headers["Last-Event-ID"] == "7:0=1;9:0=2"


def test_a_watch_that_ends_early_names_a_position_and_resumes_there() -> None:
    with scripted(streams(sends(BEGIN, SSE.records(items(1, 2), HERE)))) as server:
        result = run(server, "watch", "t", "--wait", "0")
    assert result.exit_code == 3 and result.stdout == '{"n": 1}\n{"n": 2}\n'
    assert "the same command with --resume '7:0=2' continues there" in result.stderr
    with scripted(streams(sends(SSE.position("7:0=2") + SSE.records(items(3), HERE)))) as server:
        result = run(server, "watch", "t", "--resume", "7:0=2", "-n", "1")
    assert result.stdout == '{"n": 3}\n'
    assert server.calls[0].headers["Last-Event-ID"] == "7:0=2"


def test_options_that_cannot_be_are_refused_before_anything_is_asked() -> None:
    with scripted(lambda call: Answer(0)) as server:
        both = run(server, "watch", "t", "--since", "1h", "--from-seq", "1")
        point = run(server, "watch", "t", "--resume", "here")
        time = run(server, "watch", "t", "--since", "yesterday")
        none = run(server, "watch")
    assert [each.exit_code for each in (both, point, time, none)] == [2, 2, 2, 2]
    assert "use only one of --since and --from-seq" in both.stderr
    assert "'here' is not an event id of a stream" in point.stderr
    assert server.calls == []
