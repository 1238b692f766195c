"""What a client sees, by pressure level: each row of docs/pressure.md in a real daemon.

The level is exact: bodies that are announced and never end take ring space, so a part of the ring
is taken for as long as the test wants: they come as slowly as the daemon allows, for minutes.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from daemon.http.limits import HttpLimits
from shards.clock import monotonic_ns
from tests.e2e.daemon import (
    HANG_S,
    UNANSWERED,
    Daemon,
    running,
    stream,
    wait_for_heartbeats,
    wait_until,
)
from tests.e2e.load import load
from tests.e2e.processes import alive, shard_pids, stopped

RING = 16 << 20
BODY_MAX = 4 << 20
FRAME = 4096  # what is promised in addition to a body
SETTINGS: dict[str, object] = {
    "ring_bytes": RING,
    "body_bytes_max": BODY_MAX,
    "retention_interval_ms": 1000,
    # The machine of a test may be busy: the ring alone makes the pressure here.
    "pressure_weights": "ready=0,scheduling=0,busy=0,uploads=0,store=0,ledger=0",
}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running(tmp_path_factory.mktemp("pressed"), settings=SETTINGS) as made:
        yield made


@contextlib.contextmanager
def announced(daemon: Daemon, ring_bytes: int) -> Iterator[None]:
    """Requests whose bodies do not end take this much of the ring."""
    over = threading.Event()
    with contextlib.ExitStack() as stack:
        clients = []
        count = -(-ring_bytes // BODY_MAX)
        for number in range(count):
            body_bytes = ring_bytes * (number + 1) // count - ring_bytes * number // count - FRAME
            client = socket.create_connection(("127.0.0.1", daemon.port))
            stack.enter_context(contextlib.closing(client))
            client.sendall(
                "POST /v0/topics/never HTTP/1.1\r\nHost: localhost\r\n"
                f"Content-Length: {body_bytes}\r\n"
                "Content-Type: application/json\r\n\r\n".encode()
            )
            client.setblocking(False)
            clients.append((client, body_bytes))
        trickle = threading.Thread(target=send_slowly, args=(clients, over), name="trickle")
        trickle.start()
        try:
            yield
        finally:
            over.set()
            trickle.join()


def send_slowly(clients: list[tuple[socket.socket, int]], over: threading.Event) -> None:
    """Sends what keeps a body from being too slow, and never its end."""
    step = HttpLimits().body_bytes_per_s_min // 4
    left = [body_bytes - 1 for _, body_bytes in clients]
    while not over.wait(0.2):
        for number, (client, _) in enumerate(clients):
            with contextlib.suppress(OSError):  # it was refused, or the daemon was killed
                left[number] -= client.send(b" " * min(step, left[number]))


def pressure(daemon: Daemon) -> Any:
    return daemon.status()["pressure"]


@contextlib.contextmanager
def pressed(daemon: Daemon, level: float) -> Iterator[None]:
    """The daemon at a level; afterwards at none."""
    with announced(daemon, round((0.25 + 0.75 * level) * RING)):
        wait_until(lambda: abs(pressure(daemon)["level"] - level) < 0.01, f"level {level}")
        yield
    calm(daemon)


def calm(daemon: Daemon) -> None:
    wait_until(lambda: pressure(daemon)["level"] < 0.05, "the level to be low")
    wait_until(lambda: not pressure(daemon)["deferring"], "nothing to be deferred")
    wait_until(lambda: pressure(daemon)["coalesce_ms"] == 0, "pushes to go immediately")
    wait_until(lambda: daemon.status()["window_ms"] == 0.5, "the shortest window")
    wait_for_heartbeats(daemon)


class Frames:
    """A stream of server-sent events; each is a frame."""

    def __init__(self, daemon: Daemon, topic: str) -> None:
        self._opened = contextlib.ExitStack()
        path = f"/v0/topics/{topic}/watch"
        self._answer = self._opened.enter_context(stream(daemon.port, path))
        while self._next()[0] != "caught-up":
            continue

    def sizes(self, records: int) -> list[int]:
        """How many records each of the next frames has, until these many have come."""
        found: list[int] = []
        while sum(found) < records:
            event, data = self._next()
            if event == "record":
                found.append(1)
            elif event == "records":
                found.append(len(json.loads(data)["records"]))
        return found

    def _next(self) -> tuple[str, str]:
        fields = {"event": "message", "data": ""}
        while line := self._answer.readline().decode().rstrip("\n"):
            name, _, value = line.partition(": ")
            fields[name] = value
        return fields["event"], fields["data"]

    def close(self) -> None:
        self._opened.close()


@contextlib.contextmanager
def watching(daemon: Daemon, topic: str, **settings: object) -> Iterator[Frames]:
    daemon.json("PUT", f"/v0/topics/{topic}", settings)
    with contextlib.closing(Frames(daemon, topic)) as frames:
        yield frames


def test_healthy_each_record_is_a_frame_of_its_own(daemon: Daemon) -> None:
    calm(daemon)
    with watching(daemon, "healthy") as frames:
        assert daemon.produce("healthy", *range(5)).status == 200
        assert frames.sizes(5) == [1, 1, 1, 1, 1]
    assert daemon.status()["window_ms"] == 0.5


def test_mild_pressure_puts_several_records_into_a_frame(daemon: Daemon) -> None:
    with pressed(daemon, 0.35), watching(daemon, "mild") as frames:

        def coalesced() -> bool:
            assert daemon.produce("mild", *range(5)).status == 200
            return frames.sizes(5) == [5]

        wait_until(coalesced, "the shard to follow at its next heartbeat")
        assert "coalesce" in pressure(daemon)["rungs"]
        assert daemon.status()["window_ms"] == 0.5, "acknowledgments are as fast as ever"


@pytest.mark.slow
def test_heavy_pressure_slows_acknowledgments_and_pauses_the_least_urgent_pushes(
    daemon: Daemon,
) -> None:
    with (
        watching(daemon, "urgent", priority=0) as urgent,
        watching(daemon, "least", priority=-1) as least,
    ):
        with pressed(daemon, 0.9):
            wait_until(lambda: pressure(daemon)["deferring"], "the least urgent to be deferred")
            wait_until(lambda: daemon.status()["window_ms"] > 7, "the window to widen")
            wait_for_heartbeats(daemon)
            assert daemon.produce("least", 1, 2).status == 200
            assert daemon.produce("urgent", 1, 2).status == 200
            assert sum(urgent.sizes(2)) == 2
            assert [r["data"] for r in daemon.read_all("least")] == [1, 2], "it can be read"
            wait_until(lambda: daemon.status()["scheduler"]["deferred"] == 1, "one push to wait")
        assert sum(least.sizes(2)) == 2, "and comes when the pressure is gone"
        wait_until(lambda: daemon.status()["window_ms"] == 0.5, "the window to be narrow again")


def test_saturation_refuses_a_write_before_its_body_and_stores_nothing(daemon: Daemon) -> None:
    stored: list[str] = []
    daemon.produce("saturated", "before")
    with announced(daemon, RING):

        def refused() -> Any:
            answer = daemon.produce("saturated", "refused")
            if answer.status == 200:
                stored.append("refused")  # the bodies were not announced yet
            return answer if answer.status == 429 else None

        answer = wait_until(refused, "a refusal")
        assert answer.code == "throttled"
        wait_ms = answer.json["error"]["detail"]["retry_after_ms"]
        assert 0 < wait_ms <= 1000 * int(answer.headers["retry-after"])

        def shown() -> bool:
            assert daemon.produce("saturated", "refused").status == 429
            found = pressure(daemon)
            return found["level"] == found["hard_level"] == 1 and "refuse" in found["rungs"]

        wait_until(shown, "level 1")
    calm(daemon)
    assert daemon.produce("saturated", "after").status == 200
    assert [r["data"] for r in daemon.read_all("saturated")] == ["before", *stored, "after"]
    log = [line for line in daemon.log if ": refuse " in line]
    assert " begins: 429 before the body" in log[0] and "ring 1.00" in log[0]


@pytest.mark.parametrize("level", [0.0, 0.35])
def test_a_cap_that_passes_a_cursor_leaves_a_tombstone_at_any_pressure(
    daemon: Daemon, level: float
) -> None:
    topic = f"capped-{level}"
    daemon.json("PUT", f"/v0/topics/{topic}", {"cap_records": 2, "discard": "old"})
    with pressed(daemon, level) if level else contextlib.nullcontext():
        for number in range(5):
            assert daemon.produce(topic, number).status == 200
        gap = wait_until(
            lambda: daemon.diff(topic, from_seq=0).get("tombstone"), "the first to be evicted"
        )
    assert gap["gap_from"] == 1 and gap["gap_to"] >= 1


@pytest.mark.slow
def test_an_edge_is_one_line_with_the_level_and_its_cause(daemon: Daemon) -> None:
    calm(daemon)
    wait_until(lambda: not pressure(daemon)["rungs"], "all rungs to be left")

    def edges() -> list[str]:
        return [line for line in daemon.log if "pressure " in line and "coalesce" in line]

    wait_until(lambda: len(edges()) % 2 == 0, "the log to have the end of what began")
    before = len(edges())
    with pressed(daemon, 0.3):
        wait_until(lambda: pressure(daemon)["rungs"] == ["coalesce"], "the rung")
    wait_until(lambda: not pressure(daemon)["rungs"], "the rung to be left")
    wait_until(lambda: len(edges()) >= before + 2, "the log of both")
    lines = edges()[before:]
    assert len(lines) == 2
    assert "pressure 0.30 (ring 0.30 of shard 0): coalesce begins: pushes wait" in lines[0]
    assert "coalesce ends" in lines[1]


def test_the_scaling_signal_ignores_a_ring_that_waits(daemon: Daemon) -> None:
    with pressed(daemon, 0.3):
        answer = daemon.get("/v0/scaling").json
    assert 0 <= answer["value"] <= 100 and answer["shards"] == 1
    assert set(answer["inputs"]) == {"ready", "scheduling", "busy"}
    assert answer["left_out"]["ring"] == pytest.approx(0.3, abs=0.02)


def silenced(daemon: Daemon) -> bool:
    """Stops a shard until it is missed, and lets it go on. Whether it was not killed before that:
    a slow test lets it wait too long."""
    pid, told = shard_pids(daemon)[1], len(daemon.log)

    def says(text: str) -> bool:
        return text in "".join(daemon.log[told:])

    def says_or_is_over(text: str) -> bool:
        return says(text) or not alive(pid)

    with stopped(pid):
        for text in ("no report for 5 samples from shards 1;", "of shard 1): coalesce begins"):
            wait_until(partial(says_or_is_over, text), f"the log to say: {text}")
    wait_until(partial(says_or_is_over, "sensor_stale is over"), "the end of the alarm")
    return shard_pids(daemon)[1] == pid and says("coalesce begins")


@pytest.mark.slow
def test_a_shard_that_is_silent_raises_an_alarm_and_the_ladder_and_refuses_nothing(
    tmp_path: Path,
) -> None:
    # Of an idle daemon nothing waits, however busy its machine is.
    weights = "scheduling=0,busy=0,uploads=0,store=0,ledger=0"
    with running(tmp_path, shards=2, settings={"pressure_weights": weights}) as daemon:
        wait_until(lambda: silenced(daemon), "a shard to go on before it is killed for its silence")
        assert "refuse begins" not in daemon.text
        assert daemon.produce("after", 1).status == 200


@pytest.mark.slow
def test_puts_per_second_fall_as_the_window_grows(tmp_path: Path) -> None:
    """Row T10: no more of them than there are windows, however fast or slow the machine is."""
    settings = SETTINGS | {"commit_window_min_ms": 20, "commit_window_max_ms": 400}
    with (
        running(tmp_path / "data", shards=1, settings=settings) as daemon,
        load(daemon, [("t", 0)], connections=8, depth=1, pause_s=0.002) as run,
    ):
        for level in (0.0, 0.5, 0.9):
            with announced(daemon, round((0.25 + 0.75 * level) * RING) if level else 0):
                window_ms = 20 + 380 * max(0.0, level - 0.4) / 0.6

                def grown(window_ms: float = window_ms) -> bool:
                    return abs(float(daemon.status()["window_ms"]) - window_ms) < 0.05 * window_ms

                wait_until(grown, f"a window of {window_ms:.0f} ms")
                began_ns = monotonic_ns()
                wait_for_heartbeats(daemon)  # what was put before counts as before
                before = store_puts(daemon)

                def enough(before: int = before) -> int:
                    count = store_puts(daemon) - before
                    return count if count > 30 else 0

                puts = wait_until(enough, "PUTs")
                windows = (monotonic_ns() - began_ns) / 1e6 / window_ms
                assert puts <= 1.25 * windows + 1, f"in {windows:.1f} windows of {window_ms} ms"
        run.stop()
        assert not run.unknown and not run.refused


def store_puts(daemon: Daemon) -> int:
    return int(daemon.status()["store"]["puts"])


@pytest.mark.slow
def test_no_acknowledged_write_is_lost_when_everything_is_killed_while_the_window_moves(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    acked: list[list[int]] = [[] for _ in range(4)]
    killed = threading.Event()

    def write(writer: int, daemon: Daemon) -> None:
        number = 0
        with contextlib.suppress(*UNANSWERED):
            while not killed.is_set():
                answer = daemon.produce(f"w{writer}", number)
                if answer.status == 200:
                    acked[writer].append(number)
                number += 1

    with running(data, settings=SETTINGS) as daemon:
        writers = [threading.Thread(target=write, args=(n, daemon)) for n in range(4)]
        for thread in writers:
            thread.start()
        for level in (0.5, 0.9, 0.0, 0.9):
            with announced(daemon, round((0.25 + 0.75 * level) * RING) if level else 0):
                written = len(acked[0])

                def moved(level: float = level, written: int = written) -> bool:
                    steady = pressure(daemon)["steady_level"]
                    return abs(steady - level) < 0.1 and len(acked[0]) > written

                wait_until(moved, f"level {level}, and writes at it")
        # The level falls from 0.9 while it is killed.
        daemon.kill_everything()
        killed.set()
        for thread in writers:
            thread.join(HANG_S)
    with running(data, settings=SETTINGS) as daemon:
        for writer, numbers in enumerate(acked):
            stored = [record["data"] for record in daemon.read_all(f"w{writer}")]
            assert numbers == stored[: len(numbers)], "all of them, once, in order"
            assert len(stored) <= len(numbers) + 1, "and at most one whose answer was lost"
