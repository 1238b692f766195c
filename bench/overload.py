"""A daemon with a memory limit, ten times the load it can store, and what becomes of both.

The daemon runs in a cgroup (tools/cgroups.py) on a store that takes most of a second for each PUT
of 1 MiB, so that a shard stores 1.5 MiB/s, while producers send as fast as it reads
(overload_clients.py). So all that can fill does: rings, bodies under way, uploads, buffers of
sockets.

Afterwards everything is read back from a daemon without a limit: what was acknowledged is there, at
its offset; nothing is there twice, and nothing of what was refused.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bench.overload_clients import Acked, Crowd, Told
from bench.processes import ROOT, Daemon, ServerError, pinned, plain_environment, start_daemon
from tools.cgroups import MemoryGroup, MemoryWatch

TOPIC = "overloaded"
SLOW_STORE = "latency=500ms..900ms"
SETTINGS: dict[str, object] = {
    "object_bytes_target": "1MiB", "uploads_in_flight_max": 1, "ack_timeout_ms": 600_000,
}  # fmt: skip
# A slow store on a busy machine takes minutes for what the rings hold; no answer may say only that
# the outcome is unknown, so the patience of both ends is beyond that.
PATIENCE_S = 900
SHOWN_MAX = 5


class OverloadResult(msgspec.Struct, frozen=True):
    """One run. ``kept_peak_bytes`` is what the kernel could not drop at its highest, ``kills``
    how often the kernel killed a process of the group, ``deaths`` how often a shard died."""

    limit_bytes: int
    bound_bytes: int
    kept_peak_bytes: int
    shmem_peak_bytes: int
    kills: int
    deaths: int
    seconds: float
    offered_bytes: int
    acked_bytes: int
    bodies_acked: int
    statuses: dict[str, int]
    unknown: int
    wait_ms_max: float
    records_read: int
    contradictions: list[str]
    trouble: list[str]  # the errors in the daemon's log

    @property
    def overload(self) -> float:
        """What was offered over what was stored."""
        return self.offered_bytes / self.acked_bytes if self.acked_bytes else 0.0


class Found(NamedTuple):
    """A record as it was read: its offset, and its client, number and index."""

    seq: int
    id: tuple[int, int, int]


class _Data(msgspec.Struct):
    id: tuple[int, int, int]


class _Record(msgspec.Struct):
    seq: int
    data: _Data


class _Page(msgspec.Struct):
    records: list[_Record]
    next_from_seq: int
    caught_up: bool


_pages = msgspec.json.Decoder(_Page)


def measure(
    group: MemoryGroup, folder: Path, crowd: Crowd, shards: int, cpus: tuple[set[int], set[int]],
    settings: Mapping[str, object] | None = None,
) -> OverloadResult:  # fmt: skip
    """Runs the crowd against a daemon in the group. ``cpus`` are the daemon's and the clients'.

    Raises ServerError if the daemon cannot be started.
    """
    wanted = SETTINGS | dict(settings or {})
    data = folder / "daemon"
    with MemoryWatch(group) as watch:
        daemon = start_daemon(
            data, cpus[0], shards, None, wanted, chaos=SLOW_STORE, within=group.command
        )
        try:
            told, status = _overloaded(daemon, crowd, cpus[1])
        except ServerError as error:
            raise ServerError(f"{group.kills} killed by the kernel; {error}") from error
        finally:
            daemon.end()
        kills = group.kills
        log = (data / "log").read_text(errors="replace")
    judge = Judge(told)
    daemon = start_daemon(data, cpus[0], shards, None, wanted)
    try:
        for partition in range(len(crowd.kinds())):
            judge.check(partition, _records(daemon, partition))
    finally:
        daemon.stop()
    return OverloadResult(
        group.limit_bytes, status["memory_bound_bytes"], watch.kept_peak_bytes,
        watch.shmem_peak_bytes, kills, sum(shard["restarts"] for shard in status["shards"]),
        told.seconds, told.offered_bytes, told.acked_bytes, len(told.acked), told.statuses,
        len(told.unknown), told.wait_ms_max, judge.records, judge.contradictions,
        [line for line in log.splitlines() if " ERROR " in line or " CRITICAL " in line],
    )  # fmt: skip


def _overloaded(daemon: Daemon, crowd: Crowd, cpus: set[int]) -> tuple[Told, Any]:
    topic = {"partitions": len(crowd.kinds())}
    daemon.ask("PUT", f"/v0/topics/{TOPIC}", msgspec.json.encode(topic))
    crowd = msgspec.structs.replace(crowd, port=daemon.port, topic=TOPIC)
    with pinned(cpus):
        done = subprocess.run(
            [sys.executable, "-m", "bench.overload_clients"], check=False, capture_output=True,
            cwd=ROOT, env=plain_environment(), input=msgspec.msgpack.encode(crowd),
            timeout=crowd.seconds + PATIENCE_S,
        )  # fmt: skip
    if done.returncode:
        raise ServerError(f"the clients failed: {done.stderr.decode()[-1000:]}")
    return msgspec.msgpack.decode(done.stdout, type=Told), daemon.ask("GET", "/v0/status")


class Judge:
    """Compares what is read with what the clients were told."""

    def __init__(self, told: Told) -> None:
        self.contradictions: list[str] = []
        self.records = 0
        self._refused = set(told.refused)
        self._sent = self._refused | set(told.unknown) | {(a.client, a.number) for a in told.acked}
        self._acked: dict[int, list[Acked]] = {}
        for acked in told.acked:
            self._acked.setdefault(acked.client, []).append(acked)

    def check(self, client: int, records: Iterable[Found]) -> None:
        """Takes in all records of a client's partition, in order."""
        at: dict[int, tuple[int, int]] = {}
        last = (0, -1)
        for expected, found in enumerate(records, 1):
            self.records += 1
            sender, number, index = found.id
            if found.seq != expected:
                self._say(f"hole: {expected} of {client} is {found}")
            if sender != client or (client, number) not in self._sent:
                self._say(f"foreign: {found} was never sent to {client}")
            if (client, number) in self._refused:
                self._say(f"refused: {found} of {client} is stored")
            if (number, index) <= last:
                self._say(f"order: {found} of {client} comes after {last}")
            last = number, index
            at[found.seq] = last
        for acked in self._acked.get(client, ()):
            for index in range(acked.records):
                if at.get(acked.first_seq + index) != (acked.number, index):
                    self._say(f"lost: record {index} of {acked}")

    def _say(self, sentence: str) -> None:
        if len(self.contradictions) < SHOWN_MAX:
            self.contradictions.append(sentence)


def _records(daemon: Daemon, partition: int) -> Iterator[Found]:
    from_seq = 0
    while True:
        asked = msgspec.json.encode({"partition": partition, "from_seq": from_seq, "limit": 1000})
        content = daemon.ask_bytes("POST", f"/v0/topics/{TOPIC}/diff", asked)
        page = _pages.decode(content)
        for record in page.records:
            yield Found(record.seq, record.data.id)
        if page.caught_up:
            return
        if page.next_from_seq <= from_seq:
            raise ServerError(f"a diff of partition {partition} stays at {from_seq}")
        from_seq = page.next_from_seq
