"""Streams that break anywhere, and whatever is killed: followers get each record once, in order."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from commands.client.http import Client
from commands.client.reader import data_line
from commands.client.stream import WatchStream
from tests.e2e.cutter import cut_connections
from tests.e2e.daemon import ROOT, Daemon, running
from tests.e2e.processes import succession

RECORDS = 120
PATIENCE_MS = 120_000


def started(daemon: Daemon, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "cli", *arguments, "-n", str(RECORDS), "--wait", "120"],
        env=os.environ | {"HEADGATE_URL": daemon.url, "PYTHONPATH": str(ROOT)},
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def produce(client: Client, topic: str, number: int) -> None:
    body = {
        "records": [{"data": number}], "partition": number % 3, "idempotency_key": f"n{number}",
    }  # fmt: skip
    path = f"/v0/topics/{topic}"
    client.call("POST", path, json.dumps(body).encode(), patience_ms=PATIENCE_MS)


def lines_of(process: subprocess.Popen[bytes]) -> list[bytes]:
    out, said = process.communicate(timeout=500)
    assert process.returncode == 0, said.decode()
    return out.splitlines()


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


@pytest.mark.slow
def test_followers_print_each_record_once_whatever_is_killed(data: Path, listen: str) -> None:
    followers: list[subprocess.Popen[bytes]] = []
    try:
        with running(data, shards=2, listen=listen) as daemon, Client(daemon.url) as client:
            for topic in ("one", "other"):
                assert daemon.json("PUT", f"/v0/topics/{topic}", {"partitions": 3}).status == 201
            followers.append(started(daemon, "read", "one", "--follow"))
            followers.append(
                started(daemon, "watch", "one", "other", "--from-seq", "0", "-o", "json")
            )
            followers.append(started(daemon, "watch", "other", "--from-seq", "0", "-o", "json"))
            for number in range(RECORDS // 2):
                if number % 15 == 7:
                    with succession(daemon, number % 2) as (pid,):
                        os.kill(pid, signal.SIGKILL)
                        produce(client, "one", number)
                else:
                    produce(client, "one", number)
            daemon.kill_everything()
        with running(data, shards=1, listen=listen) as daemon:
            with Client(daemon.url) as client:
                for number in range(RECORDS // 2, RECORDS):
                    produce(client, "one", number)
                for number in range(RECORDS):
                    produce(client, "other", number)
            read, both, other = followers
            check([int(line) for line in lines_of(read)])
            records = [json.loads(line) for line in lines_of(both)]
            seqs = [
                (each["topic"], each["partition"], each["seq"]) for each in records if "seq" in each
            ]
            assert len(seqs) == len(set(seqs)) == RECORDS
            check([each["data"] for each in map(json.loads, lines_of(other)) if "seq" in each])
    finally:
        for process in followers:
            process.kill()
            process.wait()
