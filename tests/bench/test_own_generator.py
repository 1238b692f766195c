"""Our own generator against the null responder, both as the processes they are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.load import Load, Pace, Request
from bench.own_generator import OwnGenerator
from bench.processes import Server, start_null

REQUEST = Request("/", (("Content-Type", "application/x-ndjson"),), b'{"a":1}\n')


@pytest.fixture
def null(tmp_path: Path) -> Iterator[Server]:
    server = start_null(tmp_path / "null", os.sched_getaffinity(0))
    yield server
    server.stop()


def answered(null: Server, pace: Pace) -> tuple[Load, float]:
    """A load that has at least an answer for each connection, and for how long it was to last: a
    server that stood still for all of it had no chance."""
    for seconds in (pace.seconds, 10 * pace.seconds, 100 * pace.seconds):
        asked = pace._replace(seconds=seconds)
        load = OwnGenerator().run(null.port, REQUEST, asked, os.sched_getaffinity(0))
        if load.requests >= pace.connections:
            break
    assert load.requests >= pace.connections
    return load, seconds


def test_every_request_is_answered_and_timed(null: Server) -> None:
    load, seconds = answered(null, Pace(4, 0.3))
    assert load.not_2xx == load.socket_errors == 0
    # Timers are coarse.
    assert load.seconds == pytest.approx(seconds, abs=0.01) or load.seconds > seconds
    assert 0 < load.p50_ms <= load.p99_ms
    assert load.generator_cpu_s > 0


def test_pauses_bound_the_rate(null: Server) -> None:
    load, seconds = answered(null, Pace(2, 0.5, pause_ms=50, pause_spread=0.0))
    assert load.requests <= 2 * (seconds / 0.05 + 1)


def test_a_stopped_server_leaves_no_folder(tmp_path: Path) -> None:
    server = start_null(tmp_path / "null", os.sched_getaffinity(0))
    assert (tmp_path / "null" / "log").exists()
    server.stop()
    assert not (tmp_path / "null").exists()
    assert server.process.returncode is not None
