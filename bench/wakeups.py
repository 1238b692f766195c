"""No lost wake-up: appends at random phases, each to a topic with one watcher.

Each *pair* is a topic, a producer and a watcher on connections of their own. A pair appends, waits
for the answer and for the record at the watcher, pauses for a random time and appends again. So no
append is in step with a timer of the daemon, with another append or with a delivery. What counts is
the time from the commit's publication to the watcher's socket; more than 50 ms is *late*. An append
that never arrives ends the run with an error.

``python -m bench.wakeups [--appends N]`` runs it alone, with 100,000 appends in 2 to 3 minutes.
"""

from __future__ import annotations

import argparse
import heapq
import os
import random
import select
import socket
import tempfile
from pathlib import Path

import msgspec

from bench.commit_times import CommitTimes
from bench.delivery_results import Spread, WakeupsResult
from bench.figures import number, share_cpus
from bench.load import Request
from bench.processes import Daemon, ServerError, pinned, start_daemon
from bench.stamps import ANCILLARY_BYTES, StampedAsker, connect, stamp_ns, wall_minus_monotonic_ns
from shards.clock import monotonic_ns

PAIRS = 8
PAUSE_MEAN_S = 0.008
LATE_NS = 50_000_000
LOST_NS = 10_000_000_000
SEED = 16
BODY = b'{"n":1}\n'


class Produced(msgspec.Struct):
    """What is needed of an answer to a producer."""

    first_seq: int


class _Pair:
    """``arrived_ns`` and ``answered`` are of the present append, 0 until then."""

    def __init__(self, daemon: Daemon, number: int) -> None:
        topic = f"wakeups-{number}"
        self.topic_id = int(daemon.ask("PUT", f"/v0/topics/{topic}", b"{}")["topic_id"])
        request = Request(f"/v0/topics/{topic}", (("Content-Type", "application/x-ndjson"),), BODY)
        self.asker = StampedAsker(daemon.port, request.encoded(f"127.0.0.1:{daemon.port}"))
        self.watcher = connect(daemon.port)
        path = f"/v0/topics/{topic}/watch?tail=true"
        self.watcher.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        data = b""
        while b"event: caught-up" not in data:
            piece = self.watcher.recv(65536)
            if not piece:
                raise ServerError(f"a watch was answered {data[:300]!r}")
            data += piece
        self.sent_ns = self.arrived_ns = self.seq = 0

    def take(self, number: int) -> None:
        """Something has come on the socket of this number."""
        if number == self.asker.socket.fileno():
            _, body = self.asker.answer()
            self.seq = msgspec.json.decode(body, type=Produced).first_seq
            return
        data, ancillary, _, _ = self.watcher.recvmsg(65536, ANCILLARY_BYTES)
        if not data:
            raise ServerError("a watcher was disconnected")
        if b"event: record" in data:
            self.arrived_ns = stamp_ns(ancillary) - wall_minus_monotonic_ns()

    def sockets(self) -> tuple[socket.socket, socket.socket]:
        return self.asker.socket, self.watcher


def measure(daemon: Daemon, shards: int, appends: int) -> WakeupsResult:
    """Raises ServerError if a record does not arrive within 10 s."""
    rng = random.Random(SEED)
    pairs = [_Pair(daemon, number) for number in range(PAIRS)]
    poll = select.epoll()
    by_socket = {}
    for pair in pairs:
        for each in pair.sockets():
            by_socket[each.fileno()] = pair
            poll.register(each.fileno(), select.EPOLLIN)
    due = [(monotonic_ns() + _pause_ns(rng), number) for number in range(PAIRS)]
    heapq.heapify(due)
    waiting: set[int] = set()
    took_ns: list[int] = []
    sent = 0
    try:
        with CommitTimes(daemon, shards) as times:
            while len(took_ns) < appends:
                now_ns = monotonic_ns()
                while due and due[0][0] <= now_ns and sent < appends:
                    _, number = heapq.heappop(due)
                    pairs[number].sent_ns = now_ns
                    pairs[number].asker.send()
                    waiting.add(number)
                    sent += 1
                wait_s = (due[0][0] - now_ns) / 1e9 if due and sent < appends else 1.0
                for number, _ in poll.poll(max(0.0, wait_s)):
                    by_socket[number].take(number)
                for number in list(waiting):
                    pair = pairs[number]
                    if pair.seq and pair.arrived_ns:
                        published_ns = times.published_ns(pair.topic_id, pair.seq)
                        took_ns.append(pair.arrived_ns - published_ns)
                        pair.seq = pair.arrived_ns = 0
                        waiting.discard(number)
                        heapq.heappush(due, (monotonic_ns() + _pause_ns(rng), number))
                    elif now_ns - pair.sent_ns > LOST_NS:
                        raise ServerError(
                            f"append {len(took_ns)}: answered {bool(pair.seq)}, delivered"
                            f" {bool(pair.arrived_ns)} after {LOST_NS / 1e9:g} s"
                        )
    finally:
        poll.close()
        for pair in pairs:
            for each in pair.sockets():
                each.close()
    late = sum(each > LATE_NS for each in took_ns)
    return WakeupsResult(appends, late, Spread.of_ns(took_ns))


def _pause_ns(rng: random.Random) -> int:
    return int(rng.expovariate(1 / PAUSE_MEAN_S) * 1e9)


def main() -> None:
    """The real run of the whole row."""
    parser = argparse.ArgumentParser(prog="python -m bench.wakeups")
    parser.add_argument("--appends", type=int, default=100_000)
    appends = parser.parse_args().appends
    daemon_cpus, client_cpus, _ = share_cpus(sorted(os.sched_getaffinity(0)), 1)
    with tempfile.TemporaryDirectory(prefix="headgate-wakeups-") as folder, pinned(client_cpus):
        daemon = start_daemon(Path(folder) / "daemon", daemon_cpus, 1, None)
        try:
            found = measure(daemon, 1, appends)
        finally:
            daemon.stop()
    spread = found.commit_to_socket
    print(
        f"{found.appends:,} appends at random phases: {found.late} after more than 50 ms; p50"
        f" {number(spread.p50_ms)}, p99 {number(spread.p99_ms)}, max {number(spread.max_ms)} ms"
    )


if __name__ == "__main__":
    main()
