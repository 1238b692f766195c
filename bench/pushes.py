"""Push: how many POSTs a core sends, how much of its rate a subscription uses, and how fast a
sender follows a receiver.

The daemon has the last CPU and the receiver the others, except where senders are on four shards.
The limiter's times are shortened, and given with the results; nothing else of it is different.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil

from bench.others import Others
from bench.processes import (
    ROOT,
    Daemon,
    ServerError,
    cpu_s,
    pinned,
    plain_environment,
    post,
    start_daemon,
)
from bench.push_results import AllowedResult, FollowResult, PostingResult, PushResults
from shards.clock import monotonic_ns
from tools.receiver import series as push_series
from tools.receiver.behavior import SERIES_MS, Behavior, Counts
from tools.receiver.process import ReceiverProcess

TOPIC = "pushed"
PATH = f"/v0/topics/{TOPIC}/subscriptions"
DATA_BYTES = 200
KEYS = 1_000
BODY_RECORDS = 1_000
CONNECTIONS = 64
BATCH = 100
PERIOD_S = 1.0
TIMES: dict[str, object] = {
    "push_allow": "127.0.0.1", "push_limiter_period_s": PERIOD_S, "push_slow_delay_s": 2 * PERIOD_S,
    "push_balance_interval_s": PERIOD_S,
}  # fmt: skip
RATE_MAX = 100_000.0
POSTING_S = 8.0
WARM_UP_S = 4.0
ALLOWED_PER_S = 400.0
ALLOWED_WARM_UP_S = 25.0  # periods, each of which covers a fifth of what is left
ALLOWED_S = 20.0
CAPACITY = 400.0
FOLLOWED_MAX = 5_000.0  # its first rate is more than twice the capacity
FOLLOW_S = 30.0
HOLD_S = 5.0
PATIENCE_S = 60.0


class PushBench:
    """One daemon per measurement; fills ``results``."""

    def __init__(
        self, work: Path, daemon_cpus: set[int], results: PushResults, cpus: set[int]
    ) -> None:
        self._work = work
        self._daemon_cpus = daemon_cpus
        self._all_cpus = cpus
        self._other_cpus = cpus - daemon_cpus or cpus
        self._results = results
        self._pause = threading.Event()  # only its timeouts are used

    def run(self, kind: str) -> None:
        """Measures one of ``plan.PUSHED``."""
        kinds: dict[str, Callable[[], None]] = {
            "posts": self._posts,
            "allowed": self._allowed,
            "follow": self._follow,
        }
        kinds[kind.removeprefix("push/")]()

    def _posts(self) -> None:
        with ReceiverProcess(cpus=self._other_cpus) as receiver:
            self._results.postings.append(self._bare(receiver))
            self._results.postings.append(
                self._posting(receiver, "binary", 150_000, {"format": "binary"})
            )
            self._results.postings.append(
                self._posting(
                    receiver, f"batch of {BATCH}", 1_500_000,
                    {"format": "batch", "batch_max": BATCH, "batch_wait_ms": 50},
                )
            )  # fmt: skip

    def _bare(self, receiver: ReceiverProcess) -> PostingResult:
        command = [sys.executable, "-P", "-m", "bench.bare_posts", receiver.url("bare")]
        command += [str(DATA_BYTES), str(CONNECTIONS), str(POSTING_S)]
        process = psutil.Process(receiver.pid)
        before_s = cpu_s([process])
        began_ns = monotonic_ns()
        with pinned(self._daemon_cpus):
            done = subprocess.run(
                command, capture_output=True, cwd=ROOT, env=plain_environment(), check=False,
                timeout=PATIENCE_S,
            )  # fmt: skip
        if done.returncode:
            raise ServerError(f"{command!r} ended with {done.returncode}: {done.stderr[-500:]!r}")
        seconds = (monotonic_ns() - began_ns) / 1e9
        share = (cpu_s([process]) - before_s) / seconds
        posts, passed_s, used_s = (float(each) for each in done.stdout.split())
        return PostingResult("the client alone", posts / passed_s, posts / passed_s,
                             1e6 * used_s / posts, share)  # fmt: skip

    def _posting(
        self, receiver: ReceiverProcess, what: str, records: int, push: dict[str, object]
    ) -> PostingResult:
        name = what.split()[0]
        process = psutil.Process(receiver.pid)
        with self._daemon(name) as daemon:
            self._fill(daemon, records)
            self._subscribe(daemon, receiver, name, rate_max=RATE_MAX, **push)
            self._wait_for_posts(receiver, name)
            self._pause.wait(WARM_UP_S)
            with self._alone_here(daemon, process):
                before, began_ns = receiver.counts(name), monotonic_ns()
                ours_s, its_s = daemon.cpu_s(), cpu_s([process])
                self._pause.wait(POSTING_S)
                after, seconds = receiver.counts(name), (monotonic_ns() - began_ns) / 1e9
                ours_s, its_s = daemon.cpu_s() - ours_s, cpu_s([process]) - its_s
            lag = int(daemon.ask("GET", f"{PATH}/{name}")["lag"])
        if not lag:
            raise ServerError(f"{records} records were not enough for {seconds:.0f} s of {what}")
        posts, events = after.posts - before.posts, after.events - before.events
        return PostingResult(what, posts / seconds, events / seconds, 1e6 * ours_s / max(posts, 1),
                             its_s / seconds)  # fmt: skip

    def _allowed(self) -> None:
        for shards, cpus in ((1, self._daemon_cpus), (4, self._all_cpus)):
            with (
                ReceiverProcess(cpus=self._other_cpus) as receiver,
                self._daemon(f"allowed-{shards}", shards, cpus) as daemon,
            ):
                self._fill(daemon, int(1.2 * ALLOWED_PER_S * (ALLOWED_WARM_UP_S + ALLOWED_S)))
                name = "allowed"
                self._subscribe(daemon, receiver, name, rate_max=ALLOWED_PER_S, senders=shards,
                                connections_max=16)  # fmt: skip
                self._wait_for_posts(receiver, name)
                first = _step()
                with self._alone_here(daemon, psutil.Process(receiver.pid)):
                    self._pause.wait(ALLOWED_WARM_UP_S)
                    began = _step()
                    self._pause.wait(ALLOWED_S)
                    end = _step()
                series = receiver.counts(name).series
                seconds = (end - began) / push_series.STEPS_PER_S
                posts = sum(push_series.counted(series, began, end))
                peak = push_series.peak(series, first, end - push_series.STEPS_PER_S)
                self._results.allowed.append(
                    AllowedResult(ALLOWED_PER_S, shards, seconds,
                                  posts / (seconds * ALLOWED_PER_S), peak / ALLOWED_PER_S)
                )  # fmt: skip

    def _follow(self) -> None:
        with (
            ReceiverProcess(cpus=self._other_cpus) as receiver,
            self._daemon("follow") as daemon,
        ):
            self._fill(daemon, int(4 * FOLLOW_S * CAPACITY))
            name = "follow"
            receiver.behave(name, Behavior(capacity_per_s=CAPACITY))
            self._subscribe(daemon, receiver, name, rate_max=FOLLOWED_MAX, connections_max=32,
                            timeout_ms=2_000)  # fmt: skip
            self._wait_for_posts(receiver, name)
            with self._alone_here(daemon, psutil.Process(receiver.pid)):
                for what, capacity in (
                    ("found", CAPACITY), ("halved", CAPACITY / 2), ("doubled", CAPACITY),
                ):  # fmt: skip
                    receiver.behave(name, Behavior(capacity_per_s=capacity))
                    began = _step()
                    self._pause.wait(FOLLOW_S)
                    series = receiver.counts(name).series
                    self._results.follows.append(_followed(what, series, began, _step(), capacity))

    @contextmanager
    def _daemon(self, name: str, shards: int = 1, cpus: set[int] | None = None) -> Iterator[Daemon]:
        folder, cpus = self._work / name, cpus or self._daemon_cpus
        daemon = start_daemon(folder, cpus, shards, None, {"governor": "off", **TIMES})
        try:
            daemon.ask("PUT", f"/v0/topics/{TOPIC}", b"{}")
            yield daemon
        finally:
            daemon.stop()

    @contextmanager
    def _alone_here(self, daemon: Daemon, receiver: psutil.Process) -> Iterator[None]:
        """Notes how much other programs use meanwhile."""
        with Others(lambda: daemon.cpu_s() + cpu_s([receiver])) as others:
            yield
        self._results.others_share = max(self._results.others_share, others.share(0))

    def _fill(self, daemon: Daemon, records: int) -> None:
        data = "x" * DATA_BYTES
        made = [f'{{"key":"key-{number}","data":"{data}"}}' for number in range(KEYS)]
        body = f'{{"records":[{",".join(made[:BODY_RECORDS])}]}}'.encode()
        connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=PATIENCE_S)
        with closing(connection):
            for _ in range(-(-records // BODY_RECORDS)):
                post(connection, TOPIC, body)
        daemon.wait_until_quiet()

    def _subscribe(
        self, daemon: Daemon, receiver: ReceiverProcess, name: str, **push: object
    ) -> None:
        wanted = {"endpoint": receiver.url(name), "connections_max": CONNECTIONS, **push}
        settings = {"start": "earliest", "push": wanted}
        daemon.ask("PUT", f"{PATH}/{name}", json.dumps(settings).encode())

    def _wait_for_posts(self, receiver: ReceiverProcess, name: str) -> Counts:
        deadline_ns = monotonic_ns() + int(PATIENCE_S * 1e9)
        while not (counts := receiver.counts(name)).posts:
            if monotonic_ns() > deadline_ns:
                raise ServerError(f"nothing was POSTed within {PATIENCE_S} s")
            self._pause.wait(0.02)
        return counts


def _step() -> int:
    return monotonic_ns() // (SERIES_MS * 1_000_000)


def _followed(
    what: str, series: push_series.Series, began: int, end: int, capacity: float
) -> FollowResult:
    found_s = push_series.settled_after_s(series, began, end, capacity, HOLD_S)
    first = began + int((found_s or 0) * push_series.STEPS_PER_S)
    served, others = push_series.counted(series, first, end)
    seconds = (end - first) / push_series.STEPS_PER_S
    return FollowResult(
        what, capacity, FOLLOWED_MAX, PERIOD_S, None if found_s is None else found_s / PERIOD_S,
        served / (seconds * capacity), others / max(served + others, 1),
    )  # fmt: skip
