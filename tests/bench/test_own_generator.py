"""Our own generator against the null responder, both as the processes they are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.load import Pace, Request
from bench.own_generator import OwnGenerator
from bench.processes import Server, start_null

REQUEST = Request("/", (("Content-Type", "application/x-ndjson"),), b'{"a":1}\n')


@pytest.fixture
def null(tmp_path: Path) -> Iterator[Server]:
    server = start_null(tmp_path / "null", os.sched_getaffinity(0))
    yield server
    server.stop()


def test_every_request_is_answered_and_timed(null: Server) -> None:
    load = OwnGenerator().run(null.port, REQUEST, Pace(4, 0.3), os.sched_getaffinity(0))
    assert load.requests >= 4, "one of each connection, on a machine that stood still"
    assert load.not_2xx == load.socket_errors == 0
    assert load.seconds == pytest.approx(0.3, abs=0.01) or load.seconds > 0.3  # timers are coarse
    assert 0 < load.p50_ms <= load.p99_ms
    assert load.generator_cpu_s > 0


def test_pauses_bound_the_rate(null: Server) -> None:
    pace = Pace(2, 0.5, pause_ms=50, pause_spread=0.0)
    load = OwnGenerator().run(null.port, REQUEST, pace, os.sched_getaffinity(0))
    assert 1 <= load.requests <= 2 * (0.5 / 0.05 + 1)


def test_a_stopped_server_leaves_no_folder(tmp_path: Path) -> None:
    server = start_null(tmp_path / "null", os.sched_getaffinity(0))
    assert (tmp_path / "null" / "log").exists()
    server.stop()
    assert not (tmp_path / "null").exists()
    assert server.process.returncode is not None
