"""Readers that ask for much and take nothing: memory stays bounded, and others read on."""

from __future__ import annotations

import contextlib
import json
import socket
from pathlib import Path

import psutil
import pytest

from daemon.http.limits import HttpLimits
from delivery.schemas import BYTES_MAX
from tests.e2e.daemon import running, wait_until
from tests.e2e.processes import shard_pids

MIB = 1 << 20
RECORD = "x" * (MIB // 2)
LIMIT = HttpLimits().answers_unsent_bytes_max


@pytest.mark.slow
def test_readers_that_take_no_answers_are_limited_and_others_get_shorter_ones(
    tmp_path: Path,
) -> None:
    with running(tmp_path, shards=1) as daemon, contextlib.ExitStack() as stack:
        for _ in range(24):
            assert daemon.produce("t", RECORD).status == 200
        whole = daemon.diff("t", from_seq=0)
        assert len(whole["records"]) == 15  # one more would be over max_bytes
        (pid,) = shard_pids(daemon)
        before = psutil.Process(pid).memory_full_info().uss
        body = json.dumps({"from_seq": 0}).encode()
        head = [
            "POST /v0/topics/t/diff HTTP/1.1", "Host: localhost", "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        ]  # fmt: skip
        request = "\r\n".join(head).encode() + b"\r\n\r\n" + body

        def ask_and_take_nothing(connections: int, requests: int) -> None:
            for _ in range(connections):
                greedy = stack.enter_context(socket.create_connection(("127.0.0.1", daemon.port)))
                greedy.sendall(request * requests)

        def is_short() -> bool:
            found = daemon.diff("t", from_seq=0)
            assert found["records"][0]["seq"] == 1
            return len(found["records"]) == 1 and not found["caught_up"]

        ask_and_take_nothing(8, 1)  # more than half of what may be held, and nobody is closed
        wait_until(is_short, "shorter answers")
        ask_and_take_nothing(40, 20)
        wait_until(lambda: "took nothing" in daemon.text, "connections that were closed")
        used = psutil.Process(pid).memory_full_info().uss - before
        assert used < LIMIT + 8 * BYTES_MAX, "what waits, and what is being made"
        assert daemon.produce("t", "after").status == 200
        stack.close()
        wait_until(lambda: len(daemon.diff("t", from_seq=0)["records"]) == 15, "whole answers")
        assert [shard["restarts"] for shard in daemon.status()["shards"]] == [0]
