"""``headgate consume``, against streams and polls in the shapes of the HTTP API.

That the daemon sends them is tested with the daemon (tests/e2e/test_consumers.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from delivery.watch.formats import NDJSON
from tests.scripted import Answer, Call, Lasting, refusal, run, scripted

AT = "/v0/topics/orders/subscriptions/s"
DONE = Answer(200, {"accepted": 1, "refused": 0, "refused_messages": []})


def message(seq: int, **more: Any) -> dict[str, Any]:
    return {
        "partition": 0, "epoch": 9, "attempt": 1, "seq": seq, "ts": 5, "data": {"n": seq}, **more,
    }  # fmt: skip


def line(seq: int, **more: Any) -> bytes:
    return json.dumps(message(seq, **more)).encode() + b"\n"


def named(*seqs: int) -> list[dict[str, int]]:
    return [{"partition": 0, "seq": seq, "epoch": 9} for seq in seqs]


class Consumed:
    """A subscription: the connections and polls of a consumer, one after the other, and what it is
    told about messages."""

    def __init__(self, *answers: Answer, told: Answer = DONE) -> None:
        self.left = list(answers)
        self.told_answer = told
        self.told: list[tuple[str, Any]] = []
        self.queries: list[dict[str, list[str]]] = []

    def __call__(self, call: Call) -> Answer:
        if call.method == "GET":
            self.queries.append(parse_qs(urlsplit(call.path).query))
            return self.left.pop(0) if self.left else refusal(404, "unknown_subscription")
        action = call.path.rpartition("/")[2]
        assert call.path == f"{AT}/{action}"
        self.told.append((action, {k: v for k, v in call.body.items() if k != "consumer"}))
        return self.told_answer


def sends(*writes: bytes) -> Answer:
    """A stream that breaks off after these."""
    left = list(writes)
    return Answer(200, Lasting(lambda: left.pop(0) if left else None))


def polls(*messages: dict[str, Any], gaps: tuple[Any, ...] = ()) -> Answer:
    return Answer(200, {"epoch": 9, "messages": list(messages), "gaps": list(gaps)})


def consume(script: Consumed, *options: str) -> Any:
    with scripted(script) as server:
        return run(server, "consume", "orders", "s", *options)


def test_messages_of_a_stream_are_acknowledged_after_they_were_printed() -> None:
    script = Consumed(sends(line(1) + line(2)[:9], line(2)[9:] + line(3)))
    result = consume(script, "--name", "w 1")
    assert result.stdout == '{"n": 1}\n{"n": 2}\n{"n": 3}\n'
    assert script.queries[0] == {"consumer": ["w 1"]}
    assert script.told == [
        ("ack", {"messages": named(1)}), ("ack", {"messages": named(2, 3)}), ("leave", {}),
    ]  # fmt: skip


def test_a_stream_that_breaks_off_is_opened_again_until_the_subscription_is_gone() -> None:
    script = Consumed(sends(line(1)), sends(line(2)))
    result = consume(script)
    assert (result.exit_code, result.stdout) == (1, '{"n": 1}\n{"n": 2}\n')
    assert len(script.queries) == 3
    assert script.queries[0] == script.queries[2]
    assert "`headgate subscriptions ls` lists" in result.stderr


def test_a_consumer_that_another_one_has_replaced_ends() -> None:
    script = Consumed(sends(NDJSON.error("replaced", "another consumer w has come")), sends())
    result = consume(script)
    assert result.exit_code == 1
    assert "another consumer w has come" in result.stderr
    assert len(script.queries) == 1


def test_a_consumer_that_was_taken_for_gone_comes_back() -> None:
    script = Consumed(sends(NDJSON.error("evicted", "nothing was acknowledged")), sends(line(1)))
    assert consume(script).stdout == '{"n": 1}\n'


def test_gaps_are_named_and_other_events_are_not_messages() -> None:
    gap = {"topic": "orders", "topic_id": 1, "partition": 0, "gap_from": 1, "gap_to": 4,
           "reason": "ttl"}  # fmt: skip
    told = json.dumps({"event": "tombstone", **gap}, separators=(",", ":")).encode() + b"\n"
    result = consume(Consumed(sends(NDJSON.heartbeat() + told + line(5))))
    assert result.stdout == '{"n": 5}\n'
    assert "records 1 to 4 of partition 0 are gone: ttl" in result.stderr
    missed = {"partition": 0, "gap_from": 1, "gap_to": 4, "reason": "cap"}
    result = consume(Consumed(polls(message(5), gaps=(missed,))), "-n", "1")
    assert "records 1 to 4 of partition 0 are gone: cap" in result.stderr


def test_n_messages_are_polled_so_that_others_get_the_rest() -> None:
    script = Consumed(polls(message(1), message(2)), polls(), polls(message(3)))
    result = consume(script, "-n", "3", "-o", "json")
    assert result.exit_code == 0
    lines = [json.loads(each) for each in result.stdout.splitlines()]
    assert lines == [message(1), message(2), message(3)]
    assert [query["max"] for query in script.queries] == [["3"], ["1"], ["1"]]


def test_without_acknowledgments_nothing_is_told_but_the_end() -> None:
    script = Consumed(polls(message(1)))
    assert consume(script, "-n", "1", "--ack", "none").stdout == '{"n": 1}\n'
    assert script.told == [("leave", {})]


def test_filters_are_joined_and_their_commas_are_escaped() -> None:
    script = Consumed()
    consume(script, "--filter", "a,b", "--filter", r"c\,d*", "--filter", r"e\\,")
    assert script.queries[0]["filter"] == [r"a\,b,c\,d*,e\\\,"]


def test_a_command_reads_the_message_and_its_exit_code_decides(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    command = f'cat >> {seen}; echo "$HEADGATE_KEY $HEADGATE_SEQ" >> {seen}; exit $HEADGATE_SEQ'
    script = Consumed(
        polls(message(3, key="k y")), polls(message(0)), polls(message(4, data_b64="AAE="))
    )
    result = consume(script, "--exec", command, "-n", "3")
    assert seen.read_bytes() == b'{"n": 3}\nk y 3\n{"n": 0}\n 0\n\x00\x01 4\n'
    assert [query["max"] for query in script.queries] == [["1"]] * 3
    why = {"reason": f"{command[:200]}: exit code 3"}
    assert script.told[:2] == [
        ("nack", {"messages": named(3)} | why), ("ack", {"messages": named(0)}),
    ]  # fmt: skip
    assert "message 3 of partition 0: exit code 3" in result.stderr


def test_a_command_that_a_signal_ends_has_failed() -> None:
    script = Consumed(polls(message(1)))
    consume(script, "--exec", "kill -9 $$", "-n", "1")
    assert script.told[0][0] == "nack"
    assert script.told[0][1]["reason"] == "kill -9 $$: ended by signal 9"


@pytest.mark.parametrize(
    "told",
    [
        refusal(409, "stale_epoch", "it does not have them", refused=1),
        Answer(200, {"accepted": 0, "refused": 1, "refused_messages": []}),
    ],
)
def test_an_acknowledgment_that_comes_too_late_is_told_and_does_not_end_the_work(
    told: Answer,
) -> None:
    script = Consumed(polls(message(1)), polls(message(2)), told=told)
    result = consume(script, "-n", "2")
    assert result.exit_code == 0
    assert "1 of 1 messages were taken back" in result.stderr


def test_a_command_acknowledges_by_its_exit_code_only() -> None:
    assert consume(Consumed(), "--exec", "true", "--ack", "none").exit_code == 2
