"""Consumers at any shard: what the owner of their subscription does reaches them through pipes,
also when the owner, or the shard that has the connection, is killed or stopped."""

from __future__ import annotations

import os
import signal
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
from tests.e2e.daemon import Daemon, running
from tests.e2e.processes import succession


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
        poll = f"{path}/consume?consumer=poller&max=10"
        assert far.ask("POST", f"{path}/leave", {"consumer": "far"}).json["returned"] == 1
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
