"""What was acknowledged is not delivered again: not after the death of its owner, whatever was in
the ledger by then, and not after that of the daemon, once it was."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.consuming import ConsumerStream, ShardLine, acknowledgment, owner_of, subscribe
from tests.e2e.daemon import Daemon, running, wait_until
from tests.e2e.processes import succession

Message = dict[str, Any]


def produce(daemon: Daemon, count: int, keys: int) -> None:
    """Records with keys of which no two follow each other."""
    records = [{"data": number, "key": f"k{number % keys}"} for number in range(count)]
    assert daemon.json("POST", "/v0/topics/t", {"records": records}).status == 200


def seqs(messages: list[Message]) -> set[int]:
    return {each["seq"] for each in messages}


def acknowledge(line: ShardLine, path: str, messages: list[Message]) -> None:
    answer = line.ask("POST", f"{path}/ack", acknowledgment("c", messages))
    assert (answer.status, answer.json["refused"]) == (200, 0), answer.body
    assert answer.json["accepted"] == len(messages)


def used_bytes(daemon: Daemon) -> int:
    return sum(int(shard["journal_used_bytes"]) for shard in daemon.status()["shards"])


def is_flushed(daemon: Daemon) -> bool:
    return not used_bytes(daemon)


def check_end(daemon: Daemon, path: str) -> None:
    """Everything is finished, and soon in the ledger."""
    state = daemon.get(path).json
    assert (state["lag"], state["in_flight"]) == (0, 0)
    wait_until(lambda: is_flushed(daemon), "the flush")


@pytest.mark.slow
def test_an_owner_that_is_killed_delivers_nothing_again_that_was_acknowledged(data: Path) -> None:
    """It is killed right after an answer: most of what it answered is only in its journal."""
    with running(data, shards=2) as daemon:
        path = subscribe(daemon, "t", "s", mode="key_shared")
        owner = owner_of(daemon, path)
        with (
            ShardLine(daemon, 1 - owner) as line,
            ConsumerStream(daemon, 1 - owner, path, "c") as stream,
        ):
            produce(daemon, 600, 600)
            first = stream.messages(600)
            done, left = first[1::2], first[::2]
            acknowledge(line, path, done[:250])
            acknowledge(line, path, done[250:])
            with succession(daemon, owner) as (pid,):
                os.kill(pid, signal.SIGKILL)
                again = stream.messages(len(left))
            assert seqs(again) == seqs(left)
            assert min(each["epoch"] for each in again) > max(each["epoch"] for each in first)
            # The numbers of its former owner mean nothing any more.
            late = line.ask("POST", f"{path}/ack", acknowledgment("c", first))
            assert (late.status, late.code) == (409, "stale_epoch")
            refused = late.json["error"]["detail"]["refused_messages"]
            assert {(each["seq"] in seqs(done), each["reason"]) for each in refused} == {
                (True, "finished"), (False, "epoch"),
            }  # fmt: skip
            acknowledge(line, path, again)
        check_end(daemon, path)
        assert "acknowledged messages of a former process" in daemon.text


def poll(line: ShardLine, path: str, count: int) -> list[Message]:
    answer = line.ask("GET", f"{path}/consume?consumer=c&max={count}&wait_ms=20000")
    assert answer.status == 200, answer.body
    epoch = answer.json["epoch"]
    return [{**each, "epoch": epoch} for each in answer.json["messages"]]


class Finishing:
    """A consumer that notes what it has acknowledged, and that none of it comes again."""

    def __init__(self, line: ShardLine, path: str) -> None:
        self._line = line
        self._path = path
        self.finished: set[int] = set()

    def some(self, count: int, *, but_one: bool) -> None:
        """Acknowledges the next messages, or all but the first of them."""
        messages = poll(self._line, self._path, count)
        assert messages and not self.finished & seqs(messages)
        messages = messages[1:] if but_one else messages
        if messages:
            acknowledge(self._line, self._path, messages)
            self.finished |= seqs(messages)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_after_a_flush_not_even_the_end_of_the_daemon_delivers_it_again(
    data: Path, end: str
) -> None:
    """A stop flushes by itself; a kill comes after a flush here."""
    with running(data, shards=2) as daemon:
        path = subscribe(daemon, "t", "s", mode="key_shared")
        produce(daemon, 500, 250)
        with ShardLine(daemon, 0) as line:
            consumer = Finishing(line, path)
            for _ in range(10):
                consumer.some(20, but_one=True)
        if end == "kill":
            wait_until(lambda: is_flushed(daemon), "the flush")
            daemon.kill_everything()
    with running(data, shards=3) as daemon, ShardLine(daemon, 0) as line:
        assert daemon.get(path).json["lag"] == 500 - len(consumer.finished)
        again = Finishing(line, path)
        again.finished = consumer.finished
        while len(again.finished) < 500:
            again.some(100, but_one=False)
        assert daemon.get(path).json["lag"] == 0
