"""The daemon of a chaos run, and what is done to it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
from msgspec import Struct

from shards.clock import monotonic_ns, wall_ms
from tests.chaos import plan, pressure
from tests.chaos.clients import SERVED_S
from tests.chaos.history import Did, Harmed, History
from tests.chaos.keeper import Keeper
from tests.chaos.plan import Act, Step
from tests.e2e.daemon import HANG_S, UNANSWERED, Daemon, wait_until
from tests.minio import Bucket

SPEC = (
    "latency=1ms..300ms@0.05,busy=1s/15s,reset_before=0.01,reset_after=0.02,timeout_after=0.002,"
    "torn=0.01"
)
SETTINGS: dict[str, object] = {"gc_grace_ms": 0, "retention_interval_ms": 500}
START_TRIES = 60  # a collection without a daemon has the directory until its end
RETRY_S = 1.0
# The supervisor gives up a shard that dies five times before it is ready, and so it should.
KILLS_BEFORE_READY_MAX = 3


class Options(Struct, frozen=True):
    """Options of a run. It ends after ``seconds``, and not before each act of ``least`` was done so
    often; or after this many ``kills`` (0: no limit) if it has met by then what it is about: all
    ``rungs``, and each kind of answer to a push. ``read``: there are readers, watchers and routers;
    ``subscribe``: subscriptions; ``kafka``: Kafka's clients; ``library``: the Python client, which
    needs an address that stays (``listen``); ``push``: push subscriptions; ``renew``: names are
    deleted and created again; ``soak``: see soak.py; ``bucket``: there is a pair on it, see
    pair.py."""

    folder: Path
    seed: int
    seconds: float
    kills: int = 0
    shards: int = 3
    spec: str = SPEC
    steps: bool = True
    lake: bool = True
    read: bool = True
    subscribe: bool = False
    kafka: bool = False
    library: bool = False
    listen: str = "127.0.0.1:0"
    push: bool = False
    renew: bool = False
    soak: bool = False
    bucket: Bucket | None = None
    producers: int = 6
    pause_s: float = 0.005
    pad_bytes: int = 0
    waits: tuple[str, ...] = ("",)
    rungs: tuple[str, ...] = ()
    least: dict[str, int] = {}
    settings: dict[str, object] = {}
    say: Callable[[str], None] = lambda _: None


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
        self._era = 0
        self._unready_kills = 0

    def era(self) -> int:
        """How often all processes were killed. While it is the same, so is who has the port."""
        return self._era

    def port(self) -> int:
        """Where the daemon listens, 0 while it does not."""
        daemon = self.daemon
        return daemon.port if daemon is not None else 0

    def steps(self) -> Iterator[Step]:
        """What is to be done, one after the other."""
        return plan.steps(self._options.seed, self._options.shards)

    def is_met(self) -> bool:
        """Whether all is done that a run is about."""
        return True

    def start(self) -> None:
        """Starts the daemon on the run's data and waits until it serves."""
        chaos = ("--chaos", self._spec) if self._spec else ()
        for _ in range(START_TRIES):
            daemon = Daemon(
                self._options.folder / "data", shards=self._options.shards,
                settings=self._settings, config_file=self._config, listen=self._options.listen,
                command=(sys.executable, "-m", "cli", "serve", *chaos),
            )  # fmt: skip
            daemon.heard = self._hear
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
            self._era += 1
        code = daemon.stop()
        with (self._options.folder / "daemon.log").open("a") as log:
            log.write(daemon.text)
        if not number and code != 0:
            raise AssertionError(f"the daemon stopped with exit code {code}, not 0")

    def restart(
        self, number: int = 0, *, group: bool = False, between: Callable[[], object] = bool
    ) -> None:
        """Stops the daemon and starts it again; nothing runs while ``between`` does."""
        self._harm(whole=bool(number))
        self.end(number, group=group)
        self._harm()
        between()
        self.start()

    def _harm(self, *, whole: bool = False) -> None:
        self._written.add(Harmed(monotonic_ns() // 1_000_000, whole))

    def _hear(self, line: str) -> None:
        """The supervisor kills a shard that does not turn, as on a machine that stands still."""
        if "has not turned for" in line:
            self._harm()

    def shard_pids(self) -> list[int]:
        """The pids of the shard processes."""
        assert self.daemon is not None
        found = psutil.Process(self.daemon.process.pid).children()
        return sorted(child.pid for child in found)

    def do(self, step: Step, ended: threading.Event) -> None:
        """Carries out a step. If its target has just died, nothing is done."""
        assert self.daemon is not None
        if step.act in (Act.KILL_SHARD, Act.KILL_SHARDS):
            self._let_shards_start()
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
            self._harm()
            with contextlib.suppress(ProcessLookupError):
                os.kill(stopped, signal.SIGSTOP)
                ended.wait(step.stop_ms / 1000)
                os.kill(stopped, signal.SIGCONT)
            self._harm()

    def _let_shards_start(self) -> None:
        """Before each few kills waits until all shards are ready. Raises AssertionError if the
        daemon has ended by itself."""
        if self._unready_kills >= KILLS_BEFORE_READY_MAX:
            wait_until(self._is_ready, "all shards to be ready", SERVED_S)
            self._unready_kills = 0
        self._unready_kills += 1

    def _is_ready(self) -> bool:
        daemon = self.daemon
        assert daemon is not None and daemon.process.poll() is None, "the daemon ended by itself"
        with contextlib.suppress(*UNANSWERED):
            return daemon.get("/readyz").status == 200
        return False

    def _kill(self, pid: int) -> None:
        self._harm()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self.kills += 1


def _wait_for_start(daemon: Daemon) -> None:
    """Waits until the daemon serves or has ended."""
    wait_until(
        lambda: daemon.port or daemon.process.poll() is not None, "the daemon to start", SERVED_S
    )
