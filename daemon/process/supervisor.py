"""The supervisor: owns the segment, and starts, watches, restarts and drains the pinned shards.

Segment, bells, pipes, listeners -> first entry of the owner's log -> shards -> a tick every 100 ms
until it is told to stop -> drain -> release -> exit 0. ``serve.py`` has what comes before.

It serves no requests and uploads nothing. It writes the global words of the segment (governor,
epoch, draining), the shards' pid words, the grants of push senders, and, after ``waitpid``, the
state of a dead shard's leases and shares. Signal handlers only note the signal; the tick acts on
it.

Exit codes: 0 after a drain, 1 if shards keep dying, 5 if another daemon has taken the prefix over.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import select
import signal
import socket
import subprocess
from pathlib import Path
from types import FrameType

from daemon import memory
from daemon.access.audit import AuditLog
from daemon.alarms.alarms import AlarmLog, active
from daemon.alarms.standing import StandingLog, StateLog, standing
from daemon.config import Config, ConfigError, load_again, reload
from daemon.governor.board import pressure_of, store_gate
from daemon.governor.costs.billing import Billing
from daemon.governor.gate import Gate, gate_band
from daemon.governor.producers_gate import ProducersGate, disks_of
from daemon.governor.tick import GovernorTick
from daemon.process import logs
from daemon.process.heartbeat import HeartbeatVerdict, Pulse, Starvation
from daemon.process.inherit import Ground
from daemon.process.listeners import address_of
from daemon.process.notify import Notifier
from daemon.process.push_balance import PushBalance, balancer_settings
from daemon.tls.certificate import Certificate, CertificateError
from daemon.upkeep.group_lags import GroupLags
from daemon.upkeep.image import ImageThread
from daemon.upkeep.owner import OwnerThread
from daemon.upkeep.upkeep import UpkeepThread, clocks
from delivery.push.secrets import SecretsFile
from delivery.subscriptions.journaled import add, replay_last
from ledger import ages, commits, epochs, topics
from ledger.ledger import Ledger
from shards import layout as at
from shards import locks
from shards.alarms import AlarmBoard, AlarmKind
from shards.boards.pushrules import PushRules
from shards.clock import monotonic_ns, wall_ms
from shards.commitlog import CommitLog
from shards.journal import FinishedJournal
from shards.leases import LeaseTable
from shards.locks import LockFile
from uploader.groups.adopt import Orphans
from uploader.groups.puller import GroupTable
from uploader.ownership.ownerlog import OwnerLog, SealedLog
from uploader.stores.counted import CountedPartedStore

log = logging.getLogger("headgate.supervisor")

TICK_S = 0.1
STOP_S = 20.0  # how long a stop may take, for the service manager
DRAIN_TICKS = 170  # how much of that is for the drain
IMAGE_STOP_S = 1.0  # a part that is being sent ends with the process
START_FAILURES_MAX = 5  # deaths in a row of a shard that was never ready
SUPERSEDED_TICKS = 5  # for half a second, producers are answered 503
EXIT_SUPERSEDED = 5
STARVED_TICKS_TOLD = 15
_STOPS = {signal.SIGTERM, signal.SIGINT}
BACKOFF_TICKS = 10  # after an exit that was not by a signal


class Child:
    """The process of one shard."""

    def __init__(self, shard: int, cpu: int) -> None:
        self.shard = shard
        self.cpu = cpu
        self.process: subprocess.Popen[bytes] | None = None
        self.pulse = Pulse()
        self.starvation = Starvation()
        self.start_failures = 0
        self.wait_ticks = 0


class Supervisor:
    """One run of the daemon."""

    def __init__(
        self, config: Config, lock_file: LockFile, owner_log: OwnerLog, store: CountedPartedStore,
        told: Ledger, kept: Ledger, copied: Ledger, ground: Ground,
        certificate: Certificate | None = None, *,
        notify: Notifier | None = None, standby: bool = False,
    ) -> None:  # fmt: skip
        self.config = config
        self._standby = standby
        self.goes_on = False  # as a standby
        self._kept = kept
        self._ground = ground
        self.layout, self.segment, self.bells = ground.layout, ground.segment, ground.bells
        self._words = self.segment.words
        self._owner = OwnerThread(self.segment, self.bells, owner_log, told)
        self._upkeep = UpkeepThread(
            self.segment, kept, lambda: self.config.retention_interval_ms, clocks,
            SecretsFile(Path(config.data_dir)), lambda: self._owner.told,
            None if config.kafka_listen is None else GroupLags(self.segment, kept),
        )  # fmt: skip
        self._alarms = AlarmBoard(self.segment, config.shards)
        self._images = ImageThread(
            self.segment, self._owner, owner_log, store, copied, self._alarms
        )
        self._leases = LeaseTable(self._words, self.layout)
        self._orphans = Orphans(self.segment)
        self._push_rules = PushRules(self.segment)
        self._push_balance = PushBalance(self.segment, balancer_settings(config))
        self._groups = GroupTable(self.segment)
        self._governor = GovernorTick(self.segment, config, self._alarms, memory.bodies_bytes)
        self._billing = Billing(self.segment, config, store.requests, self._alarms, monotonic_ns())
        self._lock_file = lock_file
        self._alarm_log = AlarmLog()
        self._standing_log = StandingLog()
        self._state_log = StateLog(self.segment)
        self._gate = ProducersGate(
            disks_of(config),
            Gate(gate_band(config), self._memory_short, self._memory_suffices),
            self._accept_memory,
        )
        self._notify = notify or Notifier.take(os.environ, os.getpid())
        self.audit = AuditLog(None, "supervisor", 0, [0], 0)
        self._listeners = ground.listeners
        self._certificate = certificate
        cpus = sorted(os.sched_getaffinity(0))
        self.children = [Child(s, cpus[s % len(cpus)]) for s in range(config.shards)]
        self._signals: set[int] = set()
        self._drain_ticks = 0
        self._said_ready = False
        self._in_trouble = False
        self._failed = False
        self._killed = False
        self._superseded_ticks = 0
        self._stops = False  # by a signal, or because shards keep dying

    def prepare(self, taken: SealedLog) -> None:
        """Begins the incarnation and fills the global words, before any shard runs.

        Raises LedgerError, StoreError, OtherHistory.
        """
        incarnation, epoch = self._kept.write(
            epochs.begin_incarnation, wall_ms(), taken.incarnation
        )
        self._owner.own(incarnation, taken)
        words = self._words
        now = clocks()
        words[at.G_AGE_OFFSET_MS] = max(0, self._kept.read(ages.now_ms, now) - now.boot_ms)
        words[at.G_INCARNATION] = incarnation
        self.audit = AuditLog(self.config.audit_log, "supervisor", incarnation, [0], 0)
        words[at.G_EPOCH] = epoch
        words[at.G_STARTED_NS] = monotonic_ns()
        words[at.G_WINDOW_NS] = int(self.config.commit_window_min_ms * 1e6)
        words[at.G_TARGET_BYTES] = self.config.object_bytes_target
        words[at.G_TOPICS] = self._kept.read(topics.catalog_version)
        words[at.G_LOG_LEVEL] = logs.LEVELS.index(self.config.log_level)
        CommitLog(self.segment).start(self._kept.read(commits.latest_number))
        self._groups.start()

    def run(self) -> int:
        """Runs until stopped; returns the exit code."""
        faulthandler.enable()  # a service manager's watchdog ends us with SIGABRT
        waker, wakee = socket.socketpair()
        waker.setblocking(False)
        wakee.setblocking(False)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, self._note)
        self._owner.start()
        self._upkeep.start()
        self._images.start()
        for child in self.children:
            self._start(child)
        poller = select.poll()
        poller.register(wakee, select.POLLIN)
        next_tick_ns = monotonic_ns()
        while not self._done():
            now_ns = monotonic_ns()
            if now_ns >= next_tick_ns:
                # Missed ticks (of a machine that was suspended) are skipped.
                next_tick_ns = max(next_tick_ns + int(TICK_S * 1e9), now_ns)
                self._tick()
            if poller.poll(max(0.0, (next_tick_ns - monotonic_ns()) / 1e6)):
                with contextlib.suppress(BlockingIOError):
                    wakee.recv(4096)
            self._handle_signals()
            self._reap()
        # A later signal would be written to a descriptor that is closed or reused.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        waker.close()
        wakee.close()
        self._images.stop(IMAGE_STOP_S)
        self._let_go()
        self.goes_on = self._goes_on()
        if self._owner.superseded:
            return EXIT_SUPERSEDED
        return 1 if self._failed else 0

    def _goes_on(self) -> bool:
        """Whether this run ends only for a standby; a stop that came since the drain counts.

        What goes on has nothing left to finish, so a later signal kills it. Otherwise it would kill
        while the interpreter ends, when its handler is gone.
        """
        may_go_on = self._standby and not self._stops
        for number in _STOPS:
            signal.signal(number, signal.SIG_DFL if may_go_on else signal.SIG_IGN)
        if not may_go_on or not self._signals & _STOPS:
            return may_go_on
        self._stops = True
        return self._goes_on()

    def _let_go(self) -> None:
        """Releases the prefix, after the upkeep: the last entry has all of its work, and what was
        acknowledged by shards that died and have no successor."""
        self._upkeep.stop()
        if not self._owner.superseded:
            for child in self.children:
                journal = FinishedJournal(self.segment, child.shard)
                replay_last(journal, lambda lot: self._kept.write(add, lot))
        self._owner.release()

    def _note(self, number: int, _: FrameType | None) -> None:
        self._signals.add(number)

    def _handle_signals(self) -> None:
        signals, self._signals = self._signals, set()
        if signals & _STOPS:
            self._stops = True
            if not self._words[at.G_DRAINING]:
                log.info("stopping: no new requests; what was accepted is finished first")
                self._drain()
        if signal.SIGHUP in signals and not self._words[at.G_DRAINING]:
            self._notify.reloading(monotonic_ns())
            self._reload()
            if self._said_ready:
                self._notify.ready(self._serving())

    def _drain(self) -> None:
        if self._standby and not self._stops:
            self._notify.starting("draining, to go on as a standby")
        else:
            self._notify.stopping("draining", STOP_S)
        # Upload immediately: a commit window may be longer than a stop may take.
        self._words[at.G_WINDOW_NS] = 0
        self._words[at.G_DRAINING] = 1
        self.bells.ring_all(range(self.config.shards))
        for listener in (*self._listeners.tcp, self._listeners.admin):
            listener.close()

    def _follow_certificate(self, *, now: bool = False) -> None:
        """Shards look at the files too, and decide the same."""
        if self._certificate is None:
            return
        try:
            if self._certificate.look(now=now):
                log.info("the certificate was read again: %s", self._certificate.in_force)
            if self._certificate.is_current:
                self._alarms.clear(AlarmKind.CERTIFICATE_UNUSABLE)
        except CertificateError as error:
            log.error("the certificate that was read before stays in force: %s", error)
            self._alarms.raise_(AlarmKind.CERTIFICATE_UNUSABLE, str(error), monotonic_ns())

    def _reload(self) -> None:
        self._follow_certificate(now=True)
        try:
            wanted = load_again(self.config, os.environ)
        except ConfigError as error:
            for problem in error.problems:
                log.error("configuration is not reloaded: %s", problem)
            return
        result = reload(self.config, wanted)
        levels = (self.config.log_level, result.config.log_level)
        if {"push_allow", "push_deny"} & set(result.applied):
            self._push_rules.publish((result.config.push_allow, result.config.push_deny))
        self.config = result.config
        self._billing.follow(self.config, monotonic_ns())
        self._words[at.G_LOG_LEVEL] = logs.LEVELS.index(self.config.log_level)
        # Also with a level that is higher now, the reload is logged.
        logs.set_level(min(levels, key=logs.LEVELS.index))
        log.info("configuration reloaded, changed: %s", ", ".join(result.applied) or "nothing")
        self.audit.note("reloaded", changed=result.applied)
        if result.needs_restart:
            log.warning("these keys need a restart: %s", ", ".join(result.needs_restart))
        logs.set_level(self.config.log_level)

    def _done(self) -> bool:
        stopping = self._failed or self._words[at.G_DRAINING]
        return bool(stopping) and all(child.process is None for child in self.children)

    def _start(self, child: Child) -> None:
        base = self.layout.shard(child.shard)
        self._words[base + at.S_READY] = 0
        child.pulse = Pulse()
        child.starvation.begins()
        child.process = self._ground.start(child.shard, child.cpu, self.config, self._certificate)
        self._words[base + at.S_CPU] = child.cpu
        self._words[base + at.S_PID] = child.process.pid

    def _reap(self) -> None:
        for child in self.children:
            if child.process is not None and child.process.poll() is not None:
                self._died(child, child.process.returncode)

    def _died(self, child: Child, code: int) -> None:
        base = self.layout.shard(child.shard)
        was_ready = bool(self._words[base + at.S_READY])
        child.process = None
        self._words[base + at.S_PID] = 0
        self._words[base + at.S_READY] = 0
        self._push_balance.died(child.shard)
        orphans = self._orphans.died(child.shard, monotonic_ns())
        self._words[at.G_DEATHS] += 1
        if self._killed or (self._words[at.G_DRAINING] and code == 0):
            return
        self.bells.ring_all(range(self.config.shards))
        child.start_failures = 0 if was_ready else child.start_failures + 1
        by_signal = code < 0
        how = f"killed by {signal.Signals(-code).name}" if by_signal else f"exit code {code}"
        log.error("shard %d died (%s), %d leases to take over", child.shard, how, len(orphans))
        self._tell_trouble(f"shard {child.shard} died ({how})")
        if child.start_failures >= START_FAILURES_MAX:
            log.critical("shard %d died %d times before it was ready; giving up", child.shard,
                         child.start_failures)  # fmt: skip
            self._failed = self._stops = True
            self._drain()
            return
        child.wait_ticks = 0 if by_signal and was_ready else BACKOFF_TICKS

    def _tick(self) -> None:
        self._words[at.G_TICKED_NS] = monotonic_ns()
        self._look_for_trouble(monotonic_ns())
        self._follow_certificate()
        if not self._owner.alive and not self._failed:
            self._lose_ownership()
            return
        if self._words[at.G_HANDED_OVER_NS] and not self._words[at.G_DRAINING]:
            log.info("a standby waits: no new requests; what was accepted is finished first")
            self._drain()
        if self._orphans.tick(monotonic_ns()):
            self.bells.ring_all(range(self.config.shards))
        self._push_balance.tick(monotonic_ns())
        if self._words[at.G_DRAINING]:
            self._drain_ticks += 1
            self._notify.alive(monotonic_ns())  # DRAIN_TICKS limits a drain
            if self._drain_ticks == DRAIN_TICKS:
                log.error(
                    "the drain takes too long: %d bytes were accepted and are not durable yet; the"
                    " shards are killed, and producers without an answer must send them again",
                    self._pending_bytes(),
                )
                self._kill_all()
            return
        # Once for all shards: per shard it would take most of the tick with a hundred of them.
        holding = self._leases.holders() | self._groups.inside() | self._owners()
        writing = self._lock_file.holder(locks.LEDGER)  # all commits wait for it
        for child in self.children:
            if child.process is None:
                child.wait_ticks -= 1
                if child.wait_ticks < 0:
                    base = self.layout.shard(child.shard)
                    self._words[base + at.S_RESTARTS] += 1
                    self._start(child)
            else:
                writes = child.process.pid == writing
                self._watch(child, holding=writes or child.shard in holding, writes=writes)
        self._governor.tick(self.config, monotonic_ns(), self._billing.tick)
        if not self._said_ready and self._all_ready():
            self._said_ready = True
            log.info("%s", self._serving())
            self._notify.ready(self._serving())
        # The manager watches a daemon that is ready.
        if self._said_ready and all(
            child.process is not None and child.pulse.moving for child in self.children
        ):
            if self._in_trouble:
                self._in_trouble = False
                self._notify.status(self._serving())
            self._notify.alive(monotonic_ns())

    def _owners(self) -> set[int]:
        """The shards that own routers, which nobody else runs while they live."""
        first, words = self.layout.shard(0), self._words
        owns = words[first + at.S_OWNS : self.layout.shard(self.config.shards) : at.SHARD_WORDS]
        return {shard for shard, count in enumerate(owns) if count}

    def _look_for_trouble(self, now_ns: int) -> None:
        """Logs alarms that begin and end, and opens or closes the gate."""
        found = active(self.segment, self.config, now_ns)
        still = standing(self.segment, self.config, now_ns)
        lines = [
            *self._alarm_log.lines(found, now_ns), *self._standing_log.lines(still, now_ns),
            *self._state_log.lines(now_ns),
        ]  # fmt: skip
        for level, line in lines:
            log.log(level, "%s", line)
        closed_by = self._gate.look(
            found, self._pending_bytes(), pressure_of(self._words, "memory"), now_ns
        )
        if closed_by == self._words[at.G_GATE]:
            return
        if self._gate.short:
            self._alarms.raise_(AlarmKind.DISK_SHORT, self._gate.short, now_ns)
        else:
            self._alarms.clear(AlarmKind.DISK_SHORT)
        store_gate(self._words, at.G_GATE, closed_by, now_ns)
        self.bells.ring_all(range(self.config.shards))

    def _memory_short(self) -> None:
        band = gate_band(self.config)
        pressure = pressure_of(self._words, "memory")
        self._alarms.raise_(
            AlarmKind.MEMORY_SHORT,
            f"its pressure is {pressure:.2f} and must fall below {band.resume_below:g}"
            " (gate_resume_below)",
            monotonic_ns(),
        )

    def _accept_memory(self, now_ns: int) -> None:
        if more := self._governor.memory.grant(now_ns):
            log.warning(
                "%d MiB more stay in use though nothing waits to be stored: the daemon takes"
                " requests with what its limit of memory leaves; give it more memory, or fewer"
                " shards",
                more >> 20,
            )

    def _memory_suffices(self) -> None:
        self._alarms.clear(AlarmKind.MEMORY_SHORT)

    def _pending_bytes(self) -> int:
        """What was accepted and is not durable yet."""
        bases = [self.layout.shard(child.shard) for child in self.children]
        words = self._words
        return sum(int(words[base + at.S_HEAD] - words[base + at.S_COMMITTED]) for base in bases)

    def _tell_trouble(self, what: str) -> None:
        self._in_trouble = True
        self._notify.status(what)

    def _serving(self) -> str:
        return f"ready on http://{self.address()} with {self.config.shards} shards"

    def _lose_ownership(self) -> None:
        """Nothing can be committed any more: producers are told for a moment, then it ends."""
        self._superseded_ticks += 1
        if self._superseded_ticks == SUPERSEDED_TICKS:
            log.critical("stopping: the outcome of requests without an answer is unknown")
            self._failed = True
            self._drain()
            self._kill_all()

    def _all_ready(self) -> bool:
        return all(self._words[self.layout.shard(c.shard) + at.S_READY] for c in self.children)

    def address(self) -> str:
        """HOST:PORT of the listeners (for port 0, what the kernel chose)."""
        return address_of(self._listeners.http[0])

    def _watch(self, child: Child, *, holding: bool, writes: bool) -> None:
        """Kills a shard whose loop does not turn, after its stacks are written.

        A shard that is starting has no heartbeat yet; it is killed if it ``writes`` the ledger and
        does not end, for all commits wait for it.
        """
        if child.process is None:
            return
        base = self.layout.shard(child.shard)
        ready = bool(self._words[base + at.S_READY])
        heartbeat, pulse, pid = self._words[base + at.S_HEARTBEAT], child.pulse, child.process.pid
        verdict = pulse.tick(
            heartbeat, ready=ready or writes, holding=holding,
            starves=lambda: child.starvation.look(pid, monotonic_ns()),
        )  # fmt: skip
        if not pulse.stalled_ticks + pulse.starved_ticks:
            child.starvation.begins()
        if pulse.starved_ticks == STARVED_TICKS_TOLD:
            log.warning(
                "shard %d waits for the machine: for %d ticks it got no CPU, or no answer from the"
                " kernel; it is left alone", child.shard, pulse.starved_ticks,
            )  # fmt: skip
        if verdict is HeartbeatVerdict.ABORT:
            log.error("shard %d has not turned for %d ticks: aborted, with its stacks",
                      child.shard, pulse.stalled_ticks)  # fmt: skip
            self._tell_trouble(f"shard {child.shard} is stuck")
            child.process.send_signal(signal.SIGABRT)
        elif verdict is HeartbeatVerdict.KILL:
            log.error(
                "shard %d has not turned for %d ticks: killed", child.shard, pulse.stalled_ticks
            )
            child.process.kill()

    def _kill_all(self) -> None:
        self._killed = True
        for child in self.children:
            if child.process is not None:
                child.process.kill()

    def close(self) -> None:
        """Kills what is left."""
        self._kill_all()
        for child in self.children:
            if child.process is not None:
                child.process.wait()
