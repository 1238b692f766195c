"""Streams that break anywhere: a follower gets each record once, in order."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from commands.client.http import Client
from commands.client.reader import data_line
from commands.client.stream import WatchStream
from tests.e2e.cutter import cut_connections
from tests.e2e.daemon import Daemon

RECORDS = 120
PATIENCE_MS = 120_000


def check(numbers: Sequence[int]) -> None:
    assert sorted(numbers) == list(range(RECORDS)), "each record is printed once"
    for partition in range(3):
        of_partition = [number for number in numbers if number % 3 == partition]
        assert of_partition == sorted(of_partition), "a partition's records keep their order"


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3))])
def test_a_stream_that_is_cut_anywhere_tells_each_record_once(
    shared_daemon: Daemon, seed: int
) -> None:
    topic = f"cut-{seed}"
    assert shared_daemon.json("PUT", f"/v0/topics/{topic}", {"partitions": 3}).status == 201
    with (
        cut_connections(shared_daemon.port, random.Random(seed), 3_000) as cutter,
        Client(cutter.url) as client,
    ):
        stream = WatchStream(
            client, f"/v0/topics/{topic}/watch", {"from_seq": "0"}, {topic: None}, {},
            patience_ms=PATIENCE_MS, reach_ms=PATIENCE_MS,
        )  # fmt: skip
        told = stream.told()
        numbers: list[int] = []
        produced = 0
        while len(numbers) < RECORDS:
            # The first half is there before anybody listens; then one after the other.
            while produced < RECORDS // 2 or produced == len(numbers):
                answer = shared_daemon.produce(topic, produced, partition=produced % 3)
                assert answer.status == 200
                produced += 1
            step = next(told)
            if isinstance(step, list):
                numbers += [int(data_line(each.record)) for each in step]
        assert cutter.cuts > 2
    check(numbers)
