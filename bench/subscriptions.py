"""Subscriptions: how fast a backlog drains, what waiting costs, and how long messages are on their
way.

The daemon has the last CPU and our clients the others, except where an owner is killed: that takes
two shards. The embedded store is used throughout. A commit's publication is read from the daemon's
commit log (commit_times.py), the arrival in a socket from the kernel (stamps.py).
"""

from __future__ import annotations

import contextlib
import gc
import http.client
import json
import os
import random
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from bench import takeover
from bench.commit_times import CommitTimes
from bench.consumer_clients import ConsumerClients
from bench.delivery_results import Spread
from bench.others import Others
from bench.processes import Daemon, ServerError, pinned, plain_environment, post, start_daemon
from bench.stamps import StampedAsker
from bench.subscription_results import (
    ArrivalResult,
    DrainKind,
    DrainResult,
    HotKeyResult,
    RequestsResult,
    SubscriptionResults,
    WaitingResult,
)
from delivery.subscriptions.window.failures import WindowPolicy
from delivery.subscriptions.window.windows import window_for
from shards.clock import monotonic_ns, process_cpu_ns

TOPIC = "worked"
PATH = f"/v0/topics/{TOPIC}/subscriptions"
DRAINS = (
    DrainKind("key_shared", 1, 1),
    DrainKind("shared", 1, 1),
    DrainKind("key_shared", 64, 1),
    DrainKind("key_shared", 1, 8),
)
KEYS = 10_000
CONSUMERS = 8
DATA_BYTES = 100
BODY_RECORDS = 1_000
DRAINED = 600_000
ACK_MESSAGES = 256
WARM_UP_SHARE = 0.1  # of the messages, at each end
WAITING = 1_000_000
HOT = 1_000_000
ROUNDS = 400
HOT_ROUNDS = 300
ASKED_KEYS = 16
PAUSE_S = (0.004, 0.024)  # at random, so that no round is in step with a timer
POLLS = 300
POLL_MESSAGES = 1_000
CALLED = 100_000
PATIENCE_S = 120
POLL_S = 0.02
SEED = 13
OTHER_KEY = b'"key":"other-'


class Produced(msgspec.Struct):
    """What is needed of an answer to a producer."""

    first_seq: int


class SubscriptionsBench:
    """One daemon per measurement; fills ``results``."""

    def __init__(
        self, work: Path, daemon_cpus: set[int], results: SubscriptionResults, cpus: set[int]
    ) -> None:
        self._work = work
        self._daemon_cpus = daemon_cpus
        self._all_cpus = cpus
        self._results = results
        self._rng = random.Random(SEED)
        self._pause = threading.Event()  # only its timeouts are used

    def run(self, kind: str) -> None:
        """Measures one of ``plan.SUBSCRIBED``."""
        kinds: dict[str, Callable[[], None]] = {
            "drain": self._drain,
            "waiting": self._waiting,
            "arrival": self._arrival,
            "hot-key": self._hot_key,
            "takeover": self._takeover,
            "requests": self._requests,
        }
        kinds[kind.removeprefix("subscriptions/")]()

    def _drain(self) -> None:
        """Everything is there before the first consumer; all settings are the defaults."""
        for number, kind in enumerate(DRAINS):
            with self._daemon(f"drain-{number}", kind.partitions, governor="on") as daemon:
                self._fill(daemon, DRAINED // kind.subscriptions, KEYS)
                names = [f"drain-{each}" for each in range(kind.subscriptions)]
                for name in names:
                    _subscribe(daemon, name, mode=kind.mode)
                paths = [f"{PATH}/{name}" for name in names]
                with (
                    self._alone_here(daemon),
                    ConsumerClients(
                        daemon.port, paths, CONSUMERS, ack_messages=ACK_MESSAGES
                    ) as clients,
                ):
                    self._results.drains.append(_drained(daemon, clients, kind))

    def _waiting(self) -> None:
        """The window alone, in this process: what a daemon takes and gives back for reads is many
        times more than what waits, and does not depend on it."""
        order = list(range(KEYS))
        self._rng.shuffle(order)
        tracemalloc.start()
        try:
            window = window_for("key_shared", WindowPolicy())
            window.open(0, 0)
            window.join("consumer")
            for first in range(0, WAITING, BODY_RECORDS):
                numbers = [order[n % KEYS] for n in range(first, first + BODY_RECORDS)]
                window.admit(0, [f"key-{number}" for number in numbers])
            bytes_each = tracemalloc.get_traced_memory()[0] / WAITING
        finally:
            tracemalloc.stop()
        self._results.waiting = WaitingResult(WAITING, KEYS, bytes_each)

    def _arrival(self) -> None:
        """A message at a time, and nothing else."""
        with self._daemon("arrival") as daemon:
            _subscribe(daemon, "arrival")
            with (
                self._alone_here(daemon),
                ConsumerClients(daemon.port, [f"{PATH}/arrival"], CONSUMERS) as clients,
            ):
                spread = self._one_by_one(daemon, clients, ROUNDS)
        self._results.arrival = ArrivalResult(CONSUMERS, spread)

    def _hot_key(self) -> None:
        """The same consumers without and with a backlog of one key."""
        with self._daemon("hot-key") as daemon:
            _subscribe(daemon, "hot")
            path = f"{PATH}/hot"
            with (
                self._alone_here(daemon),
                ConsumerClients(daemon.port, [path], CONSUMERS) as clients,
            ):
                alone = self._one_by_one(daemon, clients, HOT_ROUNDS)
                with self._taking(clients):
                    self._fill(daemon, HOT, 1)
                    self._wait_for(
                        lambda: _count(daemon, path, "waiting", HOT // 2),
                        "the hot key to be read ahead",
                    )
                received, began_ns = clients.received, monotonic_ns()
                with_hot_key = self._one_by_one(daemon, clients, HOT_ROUNDS)
                seconds = (monotonic_ns() - began_ns) / 1e9
                hot_per_s = (clients.received - received - HOT_ROUNDS) / seconds
        self._results.hot_key = HotKeyResult(HOT, alone, with_hot_key, hot_per_s)

    def _takeover(self) -> None:
        """Kills the owner again and again, while a message comes every few milliseconds."""
        with self._daemon("takeover", shards=2) as daemon:
            _subscribe(daemon, "takeover")
            self._results.takeover = takeover.measure(daemon, TOPIC, f"{PATH}/takeover")

    def _requests(self) -> None:
        """Polls of many messages and of one, then the command."""
        with self._daemon("requests") as daemon:
            self._fill(daemon, 3 * CALLED, KEYS)
            _subscribe(daemon, "polled")
            _subscribe(daemon, "called")
            began_ns = monotonic_ns()
            polled = sum(_poll(daemon, POLL_MESSAGES) for _ in range(POLLS))
            many_s = (monotonic_ns() - began_ns) / 1e9
            began_ns = monotonic_ns()
            ones = sum(_poll(daemon, 1) for _ in range(POLLS))
            ones_s = (monotonic_ns() - began_ns) / 1e9
            command_per_s = _called(daemon)
        if not polled or ones != POLLS:
            raise ServerError(f"polls brought {polled} and {ones} messages")
        self._results.requests = RequestsResult(
            POLLS / many_s, polled / many_s, POLLS / ones_s, command_per_s
        )

    @contextlib.contextmanager
    def _daemon(
        self, name: str, partitions: int = 1, *, shards: int = 1, governor: str = "off"
    ) -> Iterator[Daemon]:
        cpus = self._daemon_cpus if shards == 1 else self._all_cpus
        daemon = start_daemon(self._work / name, cpus, shards, None, {"governor": governor})
        try:
            body = json.dumps({"partitions": partitions}).encode()
            daemon.ask("PUT", f"/v0/topics/{TOPIC}", body)
            yield daemon
        finally:
            daemon.stop()

    @contextlib.contextmanager
    def _alone_here(self, daemon: Daemon) -> Iterator[None]:
        """Notes how much other programs use meanwhile."""
        with Others(daemon.cpu_s) as others:
            yield
        self._results.others_share = max(self._results.others_share, others.share(0))

    def _fill(self, daemon: Daemon, messages: int, keys: int) -> None:
        """Stores messages whose keys are in a random order, each as often as any other."""
        order = [f"key-{number}" for number in range(keys)]
        self._rng.shuffle(order)
        records = [f'{{"key":"{key}","data":"{"x" * DATA_BYTES}"}}' for key in order]
        records *= -(-BODY_RECORDS // len(records))
        bodies = [
            f'{{"records":[{",".join(records[at : at + BODY_RECORDS])}]}}'.encode()
            for at in range(0, len(records), BODY_RECORDS)
        ]
        connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=PATIENCE_S)
        with contextlib.closing(connection):
            for number in range(messages // BODY_RECORDS):
                post(connection, TOPIC, bodies[number % len(bodies)])
        daemon.wait_until_quiet()

    def _one_by_one(self, daemon: Daemon, clients: ConsumerClients, rounds: int) -> Spread:
        topic_id = daemon.ask("GET", f"/v0/topics/{TOPIC}")["topic_id"]
        decoder = msgspec.json.Decoder(Produced)
        askers = [StampedAsker(daemon.port, _one(number)) for number in range(ASKED_KEYS)]
        found: list[int] = []
        gc.disable()
        try:
            with CommitTimes(daemon, 1) as times:
                for number in range(rounds):
                    self._go_on(clients, self._rng.uniform(*PAUSE_S))
                    asker = askers[number % ASKED_KEYS]
                    asker.send()
                    socket_ns = _arrival(clients)
                    seq = decoder.decode(asker.answer()[1]).first_seq
                    found.append(socket_ns - times.published_ns(topic_id, seq))
        finally:
            gc.enable()
            for asker in askers:
                asker.close()
        return Spread.of_ns(found)

    def _go_on(self, clients: ConsumerClients, seconds: float) -> None:
        """Takes what comes for a while."""
        end_ns = monotonic_ns() + int(seconds * 1e9)
        while (left_ns := end_ns - monotonic_ns()) > 0:
            clients.step(left_ns / 1e9)

    @contextlib.contextmanager
    def _taking(self, clients: ConsumerClients) -> Iterator[None]:
        """Consumers go on in a thread."""
        over = threading.Event()

        def take() -> None:
            while not over.is_set():
                clients.step(0.05)

        thread = threading.Thread(target=take, name="consumers")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _wait_for(self, look: Callable[[], int], what: str) -> int:
        deadline_ns = monotonic_ns() + PATIENCE_S * 1_000_000_000
        while not (found := look()):
            if monotonic_ns() > deadline_ns:
                raise ServerError(f"waited {PATIENCE_S} s for {what}")
            self._pause.wait(POLL_S)
        return found


def _drained(daemon: Daemon, clients: ConsumerClients, kind: DrainKind) -> DrainResult:
    clients.until(int(DRAINED * WARM_UP_SHARE))
    began, began_ns, batches = clients.accepted, monotonic_ns(), clients.batches
    cpu_before_s, ours_before_ns = daemon.cpu_s(), process_cpu_ns()
    clients.until(int(DRAINED * (1 - WARM_UP_SHARE)))
    passed_ns = monotonic_ns() - began_ns
    cpu_s, ours_ns = daemon.cpu_s() - cpu_before_s, process_cpu_ns() - ours_before_ns
    accepted = clients.accepted - began
    batches = clients.batches - batches
    clients.until(DRAINED)
    return DrainResult(
        kind, DRAINED, KEYS, CONSUMERS, passed_ns / 1e9, accepted / (passed_ns / 1e9),
        accepted / cpu_s, accepted / max(batches, 1), ours_ns / passed_ns,
    )  # fmt: skip


def _subscribe(daemon: Daemon, name: str, **settings: object) -> None:
    wanted = {"start": "earliest", **settings}
    daemon.ask("PUT", f"{PATH}/{name}", json.dumps(wanted).encode())


def _one(number: int) -> bytes:
    """The request that stores one message of a key of its own."""
    data = "x" * DATA_BYTES
    body = json.dumps({"records": [{"key": f"other-{number}", "data": data}]}).encode()
    return (
        f"POST /v0/topics/{TOPIC} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


def _arrival(clients: ConsumerClients) -> int:
    """When the message of another key came."""
    deadline_ns = monotonic_ns() + PATIENCE_S * 1_000_000_000
    while monotonic_ns() < deadline_ns:
        came = [each.socket_ns for each in clients.step() if OTHER_KEY in each.data]
        if came:
            return came[0]
    raise ServerError(f"a message did not come within {PATIENCE_S} s")


def _count(daemon: Daemon, path: str, name: str, least: int) -> int:
    """A figure of the subscription once it has reached ``least``, until then 0."""
    found = int(daemon.ask("GET", path)[name])
    return found if found >= least else 0


def _poll(daemon: Daemon, messages: int) -> int:
    """Takes and acknowledges; returns how many."""
    path = f"{PATH}/polled"
    answer = daemon.ask("GET", f"{path}/consume?consumer=poller&max={messages}&wait_ms=5000")
    if answer["epoch"] is not None:
        body = json.dumps({"consumer": "poller", "batch": answer["epoch"]}).encode()
        daemon.ask("POST", f"{path}/ack", body)
    return len(answer["messages"])


def _called(daemon: Daemon) -> float:
    """Messages a second that ``headgate consume`` writes to a file, with its start."""
    command = [sys.executable, "-m", "cli", "consume", TOPIC, "called", "-n", str(CALLED)]
    command += ["--url", f"http://127.0.0.1:{daemon.port}", "--ack", "auto", "-o", "json"]
    began_ns = monotonic_ns()
    with pinned(os.sched_getaffinity(0)), (daemon.folder / "consumed").open("wb") as out:
        done = subprocess.run(
            command, stdout=out, stderr=subprocess.PIPE, timeout=PATIENCE_S, check=False,
            env=plain_environment(),
        )  # fmt: skip
    seconds = (monotonic_ns() - began_ns) / 1e9
    if done.returncode:
        raise ServerError(f"{command!r} ended with {done.returncode}: {done.stderr[-500:]!r}")
    return CALLED / seconds
