"""One chaos run: a daemon, its clients, the steps of a plan; then everything is read and checked.

While the clients run, ``keeper.py`` compacts and collects, and one topic has a cap. So readers read
from rings, objects and Parquet files, and objects are deleted while they read. In the end a
compaction and a collection run undisturbed, and most of what is checked is in the lake.

``folder`` gets ``history.jsonl`` for the checker, ``daemon.log`` and the daemon's data. All stay if
something is found.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
from msgspec import Struct
from msgspec.structs import replace

from shards.clock import monotonic_ns, wall_ms
from tests.chaos import history, plan, pressure, routers
from tests.chaos.checker import check
from tests.chaos.clients import Client, Numbers, Producer, Reader, Rereader, read_whole
from tests.chaos.history import Capped, Did, History, Lossy, Place
from tests.chaos.keeper import HANG_S as KEEPER_HANG_S
from tests.chaos.keeper import Keeper
from tests.chaos.known import COLD
from tests.chaos.plan import Act, Step
from tests.chaos.watchers import CLICKS, WANTED, Watcher, wait_until_seen
from tests.e2e.daemon import HANG_S, Daemon, wait_until

SPEC = (
    "latency=1ms..300ms@0.05,busy=1s/15s,reset_before=0.01,reset_after=0.02,timeout_after=0.002,"
    "torn=0.01"
)
CAPPED: Place = ("short", 0)
CAP_RECORDS = 50
LOSSY = "news"
PLACES: list[Place] = [("orders", 0), *CLICKS, CAPPED, (LOSSY, 0)]
ALL_PLACES = [*PLACES, *routers.COPIES]
SETTINGS: dict[str, object] = {"gc_grace_ms": 0, "retention_interval_ms": 500}
FIRST_RECORDS = 200  # of each partition before the first compaction
START_TRIES = 60  # a collection without a daemon has the directory until its end
RETRY_S = 1.0


class Options(Struct, frozen=True):
    """Options of a run. It ends at either limit; ``kills`` 0 means no limit."""

    folder: Path
    seed: int
    seconds: float
    kills: int = 0
    shards: int = 3
    spec: str = SPEC
    steps: bool = True
    lake: bool = True
    producers: int = 6
    pause_s: float = 0.005
    pad_bytes: int = 0
    waits: tuple[str, ...] = ("",)
    settings: dict[str, object] = {}
    say: Callable[[str], None] = lambda _: None


class Report(Struct):
    """What a run did and found."""

    seed: int
    acts: Counter[str]
    kills: int = 0
    requests: int = 0
    acknowledged: int = 0
    refused: dict[int, int] = {}
    unknown: int = 0
    records_kept: int = 0
    wait_ms_max: float = 0.0
    commands: Counter[str] = Counter()
    rows_compacted: int = 0
    objects_collected: int = 0
    records_evicted: int = 0
    whole_readings: int = 0
    streams: int = 0
    records_watched: int = 0
    rungs: Counter[str] = Counter()
    windows_ms: set[float] = set()
    contradictions: list[str] = []


def under_pressure(options: Options) -> Options:
    """The same run, under pressure."""
    return replace(
        options, spec=pressure.SPEC, producers=pressure.PRODUCERS, pause_s=pressure.PAUSE_S,
        pad_bytes=pressure.PAD_BYTES, waits=pressure.WAITS,
        settings=pressure.SETTINGS | (pressure.BUDGET if options.seed % 2 else {}),
    )  # fmt: skip


class World:
    """The daemon and what is done to it."""

    def __init__(self, options: Options, written: History) -> None:
        self._settings = SETTINGS | options.settings
        self.keeper = Keeper(options.folder / "data", self._settings) if options.lake else None
        self._config = options.folder / "headgate.toml"
        self._config.touch()
        self._options = options
        self._written = written
        self._spec = options.spec
        self._pause = threading.Event()  # only its timeouts are used
        self.daemon: Daemon | None = None
        self.acts: Counter[str] = Counter()
        self.kills = 0

    def port(self) -> int:
        """Where the daemon listens, 0 while it does not."""
        daemon = self.daemon
        return daemon.port if daemon is not None else 0

    def start(self) -> None:
        """Starts the daemon on the run's data and waits until it serves."""
        chaos = ("--chaos", self._spec) if self._spec else ()
        for _ in range(START_TRIES):
            daemon = Daemon(
                self._options.folder / "data", shards=self._options.shards,
                settings=self._settings, config_file=self._config,
                command=(sys.executable, "-m", "cli", "serve", *chaos),
            )  # fmt: skip
            daemon.start()
            _wait_for_start(daemon)
            if daemon.port or "is in use by the headgate with pid" not in daemon.text:
                break
            daemon.stop()
            self._pause.wait(RETRY_S)
        self.daemon = daemon
        daemon.wait_ready()

    def calm(self) -> None:
        """Switches faults off from the next start on."""
        self._spec = ""

    def end(self, number: int = 0, *, group: bool = False) -> None:
        """Ends the daemon by a signal, in good order with 0, and keeps its log."""
        daemon, self.daemon = self.daemon, None
        if daemon is None:
            return
        if number:
            with contextlib.suppress(ProcessLookupError):
                (os.killpg if group else os.kill)(daemon.process.pid, number)
            daemon.process.wait(HANG_S)
        code = daemon.stop()
        with (self._options.folder / "daemon.log").open("a") as log:
            log.write(daemon.text)
        if not number and code != 0:
            raise AssertionError(f"the daemon stopped with exit code {code}, not 0")

    def restart(self, number: int = 0, *, group: bool = False) -> None:
        """Stops the daemon and starts it again."""
        self.end(number, group=group)
        self.start()

    def shard_pids(self) -> list[int]:
        """The pids of the shard processes."""
        assert self.daemon is not None
        found = psutil.Process(self.daemon.process.pid).children()
        return sorted(child.pid for child in found)

    def do(self, step: Step, ended: threading.Event) -> None:
        """Carries out a step. If its target has just died, nothing is done."""
        assert self.daemon is not None
        pids = self.shard_pids()
        supervisor = self.daemon.process.pid
        self._written.add(Did(f"{step.act.value}: {step.shard}, {step.stop_ms} ms", wall_ms()))
        self.acts[step.act.value] += 1
        if step.act is Act.KILL_SHARD:
            if pids:
                self._kill(pids[step.shard % len(pids)])
        elif step.act is Act.KILL_SHARDS:
            for pid in pids:
                self._kill(pid)
        elif step.act is Act.KILL_SUPERVISOR:
            self.kills += 1
            self.restart(signal.SIGKILL)
        elif step.act is Act.KILL_EVERYTHING:
            self.kills += 1
            self.restart(signal.SIGKILL, group=True)
        elif step.act is Act.RESTART:
            self.restart()
        elif step.act is Act.RELOAD:
            pressure.configure(self._config, step.stop_ms)
            self.daemon.process.send_signal(signal.SIGHUP)
        elif step.act is Act.KILL_COMMAND:
            if self.keeper is not None and self.keeper.harm(signal.SIGKILL):
                self.kills += 1
        elif step.act is Act.STOP_COMMAND:
            if self.keeper is not None and self.keeper.harm(signal.SIGSTOP):
                ended.wait(step.stop_ms / 1000)
                self.keeper.harm(signal.SIGCONT)
        else:
            stopped = supervisor
            if step.act is Act.STOP_SHARD:
                if not pids:
                    return
                stopped = pids[step.shard % len(pids)]
            with contextlib.suppress(ProcessLookupError):
                os.kill(stopped, signal.SIGSTOP)
                ended.wait(step.stop_ms / 1000)
                os.kill(stopped, signal.SIGCONT)

    def _kill(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self.kills += 1


def run(options: Options) -> Report:
    """Runs and checks. Raises the error of a client or of a start of the daemon."""
    path = options.folder / "history.jsonl"
    with History(path) as written:
        world = World(options, written)
        try:
            report = _live(options, world, written)
        finally:
            world.end(signal.SIGKILL, group=True)
    lines = history.load(path)
    report.contradictions += check(lines)
    pages = [line for line in lines if isinstance(line, history.Page)]
    report.records_evicted = max(
        (page.gap[1] for page in pages if page.gap is not None and page.reason == "cap"), default=0
    )
    cold = [line for line in lines if isinstance(line, history.Page) and line.reader == COLD]
    report.records_kept = sum(len(page.records) for page in cold)
    answered = sum(isinstance(line, history.Answered) for line in lines)
    report.unknown = sum(isinstance(line, history.Sent) for line in lines) - answered
    return report


def _live(options: Options, world: World, written: History) -> Report:
    world.start()
    assert world.daemon is not None
    partitions = {topic: 1 + max(p for t, p in ALL_PLACES if t == topic) for topic, _ in ALL_PLACES}
    topic_ids: dict[str, int] = {}
    for topic, count in partitions.items():
        wanted: dict[str, object] = {"partitions": count}
        if topic == CAPPED[0]:
            wanted["cap_records"] = CAP_RECORDS
        wanted["lossy"] = topic == LOSSY
        answer = world.daemon.json("PUT", f"/v0/topics/{topic}", wanted)
        assert answer.status == 201, answer.body
        topic_ids[topic] = answer.json["topic_id"]
    written.add(Capped(CAPPED, CAP_RECORDS))
    written.add(Lossy(LOSSY))
    numbers = Numbers()
    producers = [
        Producer(number, world.port, written, numbers, PLACES, keyed=bool(number % 2),
                 pause_s=options.pause_s, pad_bytes=options.pad_bytes,
                 waits=options.waits[number % len(options.waits)])
        for number in range(options.producers)
    ]  # fmt: skip
    for routed in routers.ROUTERS.values():
        written.add(routed)
    routers.create(world.daemon)
    readers = [Reader(place, world.port, written) for place in ALL_PLACES]
    rereaders = [Rereader(place, world.port, written) for place in ALL_PLACES]
    watchers = [Watcher(wanted, world.port, written, topic_ids, options.seed) for wanted in WANTED]
    governor = pressure.GovernorWatch(world.port)
    keeper = world.keeper
    with _running([*producers, *readers, *rereaders, *watchers, governor]):
        if keeper is not None:
            _wait_for_records(world)
            keeper.once()
        with _running([keeper] if keeper else []):
            _steps(options, world)
            if keeper is not None:
                _stop([keeper], KEEPER_HANG_S)
        # Producers with keys go on until the answer; the others read what is outstanding.
        _stop(producers)
        routers.wait_until_copied(world.port)
        wait_until_seen(watchers, world.port)
        _stop([*watchers, *readers, *rereaders, governor])
    for place in ALL_PLACES:
        for page in read_whole(world.port, place, "hot"):
            written.add(page)
    world.calm()
    world.restart()
    if keeper is not None:
        keeper.once()
        world.restart()  # and no cache has what is in the lake now
    for place in ALL_PLACES:
        for page in read_whole(world.port, place, COLD):
            written.add(page)
    world.end()
    refused: Counter[int] = Counter()
    for producer in producers:
        refused.update(producer.refused)
    return Report(
        seed=options.seed,
        acts=world.acts,
        kills=world.kills,
        requests=sum(producer.answered for producer in producers),
        acknowledged=sum(producer.acknowledged for producer in producers),
        refused=dict(refused),
        wait_ms_max=max(producer.wait_ms_max for producer in producers),
        commands=keeper.done if keeper else Counter(),
        rows_compacted=keeper.rows if keeper else 0,
        objects_collected=keeper.deleted if keeper else 0,
        whole_readings=sum(reader.times for reader in rereaders),
        streams=sum(watcher.connections for watcher in watchers),
        records_watched=sum(watcher.taking.records for watcher in watchers),
        rungs=governor.rungs,
        windows_ms=governor.windows_ms,
        contradictions=keeper.contradictions if keeper else [],
    )


def _wait_for_start(daemon: Daemon) -> None:
    """Waits until the daemon serves or has ended."""
    wait_until(lambda: daemon.port or daemon.process.poll() is not None, "the daemon to start")


def _wait_for_records(world: World) -> None:
    """Waits until each partition has records outside the rings."""

    def there() -> bool:
        assert world.daemon is not None
        heads = [
            state["head_seq"]
            for topic in {topic for topic, _ in PLACES}
            for state in world.daemon.get(f"/v0/topics/{topic}").json["partitions"]
        ]
        return bool(min(heads) >= FIRST_RECORDS)

    wait_until(there, f"{FIRST_RECORDS} records in each partition", 10 * HANG_S)


def _steps(options: Options, world: World) -> None:
    ended = threading.Event()  # only its timeouts are used: the run's own pace
    end_ns = monotonic_ns() + int(options.seconds * 1e9)
    said_ns = monotonic_ns()
    for step in plan.steps(options.seed, options.shards):
        if monotonic_ns() >= end_ns or (options.kills and world.kills >= options.kills):
            return
        ended.wait(step.pause_ms / 1000)
        if options.steps:
            world.do(step, ended)
        if monotonic_ns() - said_ns > 10e9:
            said_ns = monotonic_ns()
            options.say(f"{world.kills} kills, {(end_ns - said_ns) / 1e9:.0f} s left")


@contextlib.contextmanager
def _running(clients: Sequence[Client]) -> Iterator[None]:
    for client in clients:
        client.daemon = True  # one that hangs must not keep the report from being made
        client.start()
    try:
        yield
    finally:
        for client in clients:
            client.stopping.set()


def _stop(clients: Sequence[Client], hang_s: float = 2 * HANG_S) -> None:
    for client in clients:
        client.stopping.set()
    for client in clients:
        client.join(hang_s)
        assert not client.is_alive(), f"{client.name} hangs"
        if client.failure is not None:
            raise client.failure
