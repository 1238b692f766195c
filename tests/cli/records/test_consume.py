"""``headgate consume``, against streams and polls in the shapes of the HTTP API.

That the daemon sends them is tested with the daemon (tests/e2e/test_consumers.py).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

import cli
from delivery.streams.formats import NDJSON
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

    def __init__(self, *answers: Answer, told: Answer = DONE, **config: str) -> None:
        self.left = list(answers)
        self.told_answer = told
        self.config = {"mode": "key_shared", **config}
        self.told: list[tuple[str, Any]] = []
        self.queries: list[dict[str, list[str]]] = []

    def __call__(self, call: Call) -> Answer:
        if call.path == AT:
            return Answer(200, {"config": self.config})
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


def test_a_command_gets_neither_the_token_nor_our_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_TOKEN", "hg_canary")
    seen = tmp_path / "seen"
    floors = str(Path(cli.__file__).parent)
    monkeypatch.setenv("PYTHONPATH", f"{floors}:of-others")
    consume(Consumed(polls(message(1))), "--exec", f"env > {seen}", "-n", "1")
    assert "PYTHONPATH=of-others" in seen.read_text().split("\n")
    text = seen.read_text()
    assert "HEADGATE_SEQ=1\n" in text and "hg_canary" not in text


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


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("a\0b", "the key cannot be handed to a command: embedded null byte"),
        ("k" * 200_000, "the key of 200,000 characters is too long for a command"),
    ],
    ids=["with NUL", "long"],
)
def test_a_key_that_no_command_can_be_told_is_a_failure_of_its_message_and_not_of_the_consumer(
    key: str, why: str
) -> None:
    script = Consumed(polls(message(1, key=key)), polls(message(2)))
    assert consume(script, "--exec", "true", "-n", "2").exit_code == 0
    assert script.told == [
        ("nack", {"messages": named(1), "reason": f"true: {why}"}),
        ("ack", {"messages": named(2)}), ("leave", {}),
    ]  # fmt: skip


def fifo(folder: Path, name: str = "fifo") -> Path:
    """What a command waits at until another one has come to the other end."""
    os.mkfifo(folder / name)
    return folder / name


def test_as_many_commands_run_at_a_time_as_asked_for(tmp_path: Path) -> None:
    met = fifo(tmp_path)
    command = f"case $HEADGATE_SEQ in 1) timeout 60 cat {met};; *) echo > {met};; esac"
    script = Consumed(polls(message(1, key="a"), message(2, key="b")))
    result = consume(script, "--exec", command, "--parallel", "2", "-n", "2")
    assert (result.exit_code, script.queries[0]["max"]) == (0, ["2"])
    assert sorted(seq for _, told in script.told[:2] for seq in seqs(told)) == [1, 2]
    assert {action for action, _ in script.told[:2]} == {"ack"}


def seqs(told: Any) -> list[int]:
    return [each["seq"] for each in told["messages"]]


@pytest.mark.parametrize(
    ("together", "settings"),
    [
        ([message(1, key="a"), message(2, key="a"), message(3, key="a")], {}),
        ([message(1, node="n"), message(2, key="n", node="m"), message(3, node="n")],
         {"key_fallback": "node"}),
    ],
    ids=["key", "node"],
)  # fmt: skip
def test_messages_of_a_key_or_a_node_that_counts_as_one_are_worked_on_one_after_the_other(
    tmp_path: Path, together: list[dict[str, Any]], settings: dict[str, Any]
) -> None:
    met, seen = fifo(tmp_path), tmp_path / "seen"
    command = (
        f"case $HEADGATE_SEQ in 1) timeout 60 cat {met};; 9) echo > {met};; esac;"
        f" echo $HEADGATE_SEQ >> {seen}"
    )
    script = Consumed(polls(*together, message(9)), **settings)
    assert consume(script, "--exec", command, "--parallel", "4", "-n", "4").exit_code == 0
    assert [each for each in seen.read_text().split() if each != "9"] == ["1", "2", "3"]


@pytest.mark.parametrize("config", [{}, {"key_fallback": "node", "mode": "shared"}])
def test_messages_of_a_node_are_worked_on_in_parallel_unless_it_counts_as_their_key(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    met = fifo(tmp_path)
    command = f"timeout 60 sh -c 'case $HEADGATE_SEQ in 1) cat {met};; *) echo > {met};; esac'"
    script = Consumed(polls(message(1, node="n"), message(2, node="n")), **config)
    assert consume(script, "--exec", command, "--parallel", "2", "-n", "2").exit_code == 0
    assert {action for action, _ in script.told[:2]} == {"ack"}


def test_a_message_that_is_sent_again_while_its_command_runs_is_not_run_twice(
    tmp_path: Path,
) -> None:
    met, seen = fifo(tmp_path), tmp_path / "seen"
    command = (
        f"echo $HEADGATE_SEQ >> {seen}; case $HEADGATE_SEQ in 1) timeout 60 cat {met};;"
        f" 9) echo > {met};; esac"
    )
    again = polls(message(1, epoch=11, attempt=2), message(9, epoch=11))
    script = Consumed(polls(message(1)), again)
    assert consume(script, "--exec", command, "--parallel", "3", "-n", "2").exit_code == 0
    assert sorted(seen.read_text().split()) == ["1", "9"]
    acked = {
        told["messages"][0]["seq"]: told["messages"][0]["epoch"] for _, told in script.told[:2]
    }
    assert acked == {1: 11, 9: 11}


def test_only_commands_of_messages_without_an_order_of_all_run_in_parallel() -> None:
    assert consume(Consumed(), "--parallel", "2").exit_code == 2
    exclusive = Consumed(polls(message(1)), mode="exclusive")
    result = consume(exclusive, "--exec", "true", "--parallel", "2")
    assert (result.exit_code, exclusive.told, exclusive.queries) == (1, [], [])
    assert "subscription s is exclusive" in result.stderr
    assert consume(exclusive, "--exec", "true", "-n", "1").exit_code == 0


@pytest.mark.parametrize("ends", ["its command ends", "a second Ctrl-C comes"])
def test_a_stop_waits_for_commands_unless_it_is_asked_for_twice(tmp_path: Path, ends: str) -> None:
    begun, may_end = fifo(tmp_path, "begun"), fifo(tmp_path, "may_end")
    script = Consumed(polls(message(1)), Answer(200, Lasting(lambda: b"")))
    command = f"echo > {begun}; timeout 60 cat {may_end}"
    with scripted(script) as server:
        arguments = ["consume", "orders", "s", "--exec", command, "--parallel", "2"]
        process = subprocess.Popen(
            [sys.executable, "-m", "cli", *arguments, "--url", server.url], text=True,
            stderr=subprocess.PIPE,
        )  # fmt: skip
        begun.read_bytes()
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        # On a busy machine the command first tells that its poll has no answer yet.
        assert any("waits for 1 command" in line for line in process.stderr)
        if ends == "its command ends":
            may_end.write_bytes(b"")
        else:
            process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, process.stderr.read()
        process.stderr.close()
    done = [("ack", {"messages": named(1)})] if ends == "its command ends" else []
    assert script.told == [*done, ("leave", {})]
