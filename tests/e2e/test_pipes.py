"""Consumers at any shard: what the owner of their subscription does reaches them through pipes,
also when the owner, or the shard that has the connection, is killed or stopped."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.consuming import (
    ConsumerStream,
    ShardLine,
    acknowledgment,
    owner_of,
    subscribe,
)
from tests.e2e.daemon import UNANSWERED, Daemon, running, wait_until
from tests.e2e.processes import alive, locked_ledger, stopped, succession, unlisted


def seqs(messages: list[dict[str, Any]]) -> list[int]:
    return [each["seq"] for each in messages]


def test_a_consumer_at_any_shard_gets_messages_and_acknowledges_at_any_shard(
    shared_daemon: Daemon,
) -> None:
    daemon = shared_daemon
    path = subscribe(daemon, "t", "s", mode="shared")
    owner = owner_of(daemon, path)
    other = 1 - owner
    with ShardLine(daemon, other) as far, ShardLine(daemon, owner) as near:
        with ConsumerStream(daemon, other, path, "far") as stream:
            daemon.produce("t", *range(4))
            got = stream.messages(4)
            assert seqs(got) == [1, 2, 3, 4]
            for line, part in ((far, got[:2]), (near, got[2:])):
                answer = line.ask("POST", f"{path}/ack", acknowledgment("far", part))
                assert (answer.status, answer.json["accepted"]) == (200, 2)
            daemon.produce("t", 5)
            kept = stream.messages(1)
            # The stream ends with what the owner says when the consumer comes a second time.
            with ConsumerStream(daemon, owner, path, "far") as newer:
                assert [each["event"] for each in stream.rest()] == ["error"]
                assert seqs(newer.messages(1)) == seqs(kept)
                left = far.ask("POST", f"{path}/leave", {"consumer": "far"})
                assert left.json["returned"] == 1
        poll = f"{path}/consume?consumer=poller&max=10"
        polled = far.ask("GET", poll).json
        assert seqs(polled["messages"]) == seqs(kept)
        refused = far.ask("POST", f"{path}/retry", {"key": "none"})
        assert (refused.status, refused.code) == (404, "not_blocked")


@pytest.mark.slow
def test_a_consumer_does_not_notice_that_the_owner_is_killed(data: Path) -> None:
    """What it has not acknowledged comes again, in its order and in another batch; nothing that was
    acknowledged does."""
    with running(data, shards=2) as daemon:
        path = subscribe(daemon, "t", "s", mode="key_shared")
        owner = owner_of(daemon, path)
        other = 1 - owner
        with ShardLine(daemon, other) as line, ConsumerStream(daemon, other, path, "c") as stream:
            daemon.produce("t", *range(6))
            first = stream.messages(6)
            answer = line.ask("POST", f"{path}/ack", acknowledgment("c", first[:3]))
            assert answer.json["accepted"] == 3
            epochs = {first[0]["epoch"]}
            for _ in range(2):
                with succession(daemon, owner) as (pid,):
                    os.kill(pid, signal.SIGKILL)
                    again = stream.messages(3)
                assert seqs(again) == [4, 5, 6]
                assert again[0]["epoch"] not in epochs
                epochs.add(again[0]["epoch"])
            assert daemon.produce("t", "new").status == 200
            newest = stream.messages(1)
            assert seqs(newest) == [7]
            answer = line.ask("POST", f"{path}/ack", acknowledgment("c", again + newest))
            assert answer.json["accepted"] == 4
            assert daemon.get(path).json["lag"] == 0


@pytest.mark.slow
def test_a_stopped_owner_is_killed_and_what_was_asked_meanwhile_is_told_so(data: Path) -> None:
    with running(data, shards=2) as daemon:
        path = subscribe(daemon, "t", "s", mode="shared")
        owner = owner_of(daemon, path)
        other = 1 - owner
        with ShardLine(daemon, other) as line, ConsumerStream(daemon, other, path, "c") as stream:
            daemon.produce("t", *range(3))
            messages = stream.messages(3)
            with succession(daemon, owner) as (pid,):
                # The supervisor is stopped too, so that it kills nobody before the owner is asked.
                with stopped(daemon.process.pid):
                    os.kill(pid, signal.SIGSTOP)
                    line.begin("POST", f"{path}/ack", acknowledgment("c", messages))
                wait_until(lambda: not alive(pid), "the supervisor to kill the owner")
                answer = line.response()
                assert answer.status == 503
                assert b"owner_restarted" in answer.read()
                assert answer.getheader("Retry-After") is not None
            assert seqs(stream.messages(3)) == [1, 2, 3]


@pytest.mark.slow
def test_a_killed_shard_loses_its_consumers_only(data: Path) -> None:
    """Their messages go to others once they are no longer present."""
    with running(data, shards=2) as daemon:
        path = subscribe(daemon, "t", "s", mode="shared")
        owner = owner_of(daemon, path)
        other = 1 - owner
        with ConsumerStream(daemon, other, path, "far") as far:
            daemon.produce("t", *range(4))
            assert seqs(far.messages(4)) == [1, 2, 3, 4]
            with (
                ConsumerStream(daemon, owner, path, "near") as near,
                succession(daemon, other) as (pid,),
            ):
                os.kill(pid, signal.SIGKILL)
                assert sorted(seqs(near.messages(4))) == [1, 2, 3, 4]


@pytest.mark.slow
def test_a_poll_whose_answer_dies_with_its_shard_is_answered_again(data: Path) -> None:
    """The lost messages come before those that follow, and none of them has failed."""
    with running(data, shards=2) as daemon:
        path = subscribe(daemon, "t", "s", mode="exclusive")
        owner = owner_of(daemon, path)
        poll = f"{path}/consume?consumer=c&max=2"
        with ShardLine(daemon, owner) as near, ShardLine(daemon, 1 - owner) as far:
            assert near.ask("GET", poll).json["messages"] == []
            far.begin("GET", f"{poll}&wait_ms=30000")
            wait_until(lambda: near.ask("GET", path).json["consumers"][0]["connected"], "the poll")
            # The supervisor is stopped too, so that it kills nobody before the owner answers.
            with succession(daemon, 1 - owner) as (pid,), unlisted(daemon), ExitStack() as stack:
                with locked_ledger(daemon):  # not within its own transaction
                    stack.enter_context(stopped(pid))
                records = {"records": [{"data": number} for number in range(4)]}
                assert near.ask("POST", "/v0/topics/t", records).status == 200
                wait_until(lambda: near.ask("GET", path).json["in_flight"] == 2, "its answer")
                os.kill(pid, signal.SIGKILL)
                with pytest.raises(UNANSWERED):
                    far.response()
            again = near.ask("GET", poll).json
            assert seqs(again["messages"]) == [1, 2]
            assert [each["attempt"] for each in again["messages"]] == [1, 1]
            answer = near.ask("POST", f"{path}/ack", {"consumer": "c", "batch": again["epoch"]})
            assert answer.json["accepted"] == 2
            assert seqs(near.ask("GET", poll).json["messages"]) == [3, 4]


@pytest.mark.slow
def test_a_drain_ends_streams_of_consumers_at_all_shards(data: Path) -> None:
    with running(data, shards=3) as daemon:
        path = subscribe(daemon, "t", "s", mode="shared")
        streams = [ConsumerStream(daemon, shard, path, f"c{shard}") for shard in range(3)]
        daemon.process.send_signal(signal.SIGTERM)
        told = [stream.rest() for stream in streams]
        for stream in streams:
            stream.close()
        assert [events[-1]["event"] for events in told] == ["error"] * 3
        assert daemon.process.wait(60) == 0
