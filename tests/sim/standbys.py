"""An owner and its standbys in simulation: the shipped StandbyThread, Standby and WarmLedger.

The world is that of ``owners.py`` with its invariants. Each daemon is started with ``--standby``:
it follows, takes over, owns, and is a standby again when it is superseded or has handed over. In
addition, daemons are killed and started again, cut off from the store, and told to hand over.

In a *calm* world only standbys are stopped, cut off and given wrong clocks and a bad store; the
owner lives, and then nobody may take its prefix, not even after an outage of the store for all.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, nullcontext
from typing import cast

from msgspec import Struct

from daemon.upkeep.owner import OwnerThread
from daemon.upkeep.standby import StandbyThread, WarmLedger
from shards import layout as at
from tests.sim.images import ToldLedger
from tests.sim.owners import LAYOUT, Daemon, World, simulated_owners
from tests.sim.schedule import MS, S, Words, log_uniform, require
from uploader.ownership.ownerlog import OwnerLog, SealedLog

STANDBYS = 3
DAEMONS_MAX = 12
WORLD_STEPS = 4_000


class StandbyDaemon(Daemon):
    """One process that was started with ``--standby``."""

    handed_over = False

    def take(self, owner_log: OwnerLog) -> tuple[SealedLog, list[str] | None]:
        """Waits as a standby."""
        path = self.world.directory / f"warm-{self.number}"
        warm = WarmLedger(path, nullcontext(), owner_log)
        thread = StandbyThread(owner_log, warm, lambda: None)
        thread.follow()
        assert thread.taken is not None
        # The others' checks are about what is listed after this moment.
        return thread.taken, cast(ToldLedger, warm._ledger).commits

    def owns(self, thread: OwnerThread, words: Words) -> None:
        """Begins what the supervisor does in a handover."""
        schedule, memory = self.world.schedule, self.segment.words

        def supervise() -> None:
            schedule.wait(lambda: bool(memory[at.G_HANDED_OVER_NS]))
            self.drains = True
            schedule.wait(lambda: not self.uploading or bool(memory[at.G_SUPERSEDED]))
            thread.release()
            self.handed_over = True

        schedule.start(self.process, "supervisor", supervise)

    @property
    def is_over(self) -> bool:
        """Whether another process is to be started in its place."""
        superseded = self.incarnation is not None and self.segment.words[at.G_SUPERSEDED]
        return not self.process.tasks or bool(superseded) or self.handed_over


class StandbyWorld(World):
    """One prefix, and daemons that wait for it."""

    def __init__(self, seed: int | str, log: Callable[[str], None], *, calm: bool = False) -> None:
        super().__init__(seed, log)
        self.calm, self.is_over = calm, False
        self.kills = self.handovers = self.cuts = 0
        self._running: list[StandbyDaemon] = []
        if calm:
            self._begin()

    def _begin(self) -> None:
        daemon = StandbyDaemon(self, len(self.daemons))
        self.daemons.append(daemon)
        self._running.append(daemon)
        if self.calm and len(self.daemons) == 1:
            self.bucket.spared.add(daemon.process)
            daemon.pause_ms_max = 10_000_000  # often idle for minutes

    def step(self) -> None:
        """Runs one step, and sometimes what goes wrong. Raises Violation."""
        schedule, rng = self.schedule, self.schedule.rng
        alone = self.calm and self.daemons[0].incarnation is None
        self._running = [daemon for daemon in self._running if not daemon.is_over]
        if len(self._running) < STANDBYS and len(self.daemons) < DAEMONS_MAX and not alone:
            self._begin()
        task = schedule.choose()
        if task is None:  # all have been killed, and no more are started
            self.is_over = True
            return
        self.log(f"{task.process.name} {task.name}")
        schedule.run(task)
        victim = rng.choice(self.daemons)
        if not (self.calm and victim is self.daemons[0]):
            self._trouble(cast(StandbyDaemon, victim))
        self._outage()
        self.check()
        if self.calm:
            owners = [d.number for d in self.daemons if d.incarnation is not None]
            require(owners in ([], [0]), "an owner that lives keeps its prefix", owners)

    def _outage(self) -> None:
        """The store is down for all, and comes back for all."""
        if not self.schedule.rng.randrange(500):
            for_ns = int(log_uniform(self.schedule.rng, 1_000, 150_000)) * MS
            self.log(f"the store is down for {for_ns} ns")
            self.bucket.down_until_ns = self.schedule.now_ns + for_ns

    def _trouble(self, daemon: StandbyDaemon) -> None:
        schedule, rng = self.schedule, self.schedule.rng
        for_ns = int(log_uniform(rng, 1, 150_000)) * MS
        kind = rng.randrange(400)
        if kind < 4:
            self.log(f"{daemon.process.name} stops for {for_ns} ns")
            daemon.process.stopped_until_ns = schedule.now_ns + for_ns
        elif kind < 6 and not daemon.process.stopped():
            self.log(f"{daemon.process.name} is held for {for_ns} ns")
            daemon.hold(for_ns)
        elif kind < 8:
            daemon.wall_off_ns = rng.choice((-1, 1)) * int(log_uniform(rng, 1, 7_200_000)) * MS
            self.log(f"the wall clock of {daemon.process.name} is off {daemon.wall_off_ns} ns")
        elif kind < 11:
            self.cuts += 1
            self.log(f"{daemon.process.name} is cut off for {for_ns} ns")
            self.bucket.cut_until_ns[daemon.process] = schedule.now_ns + for_ns
        elif kind < 12 and daemon.process.tasks:
            self.kills += 1
            self.log(f"{daemon.process.name} is killed")
            schedule.kill(daemon.process)
        elif kind < 14 and daemon.incarnation is not None and not self.calm:
            self.handovers += 1
            self.log(f"{daemon.process.name} is to hand over")
            daemon.segment.words[LAYOUT.shard(0) + at.S_HANDOVER_WANTED_NS] = daemon.now_ns()
            daemon.rung = True
        elif kind < 15 and not self.calm:
            self.bucket.refused_until_ns[daemon.process] = schedule.now_ns + rng.randrange(45) * S


class StandbyOutcome(Struct):
    """What a run did."""

    steps: int = 0
    owners: int = 0
    released: int = 0
    kills: int = 0
    cuts: int = 0
    commits: int = 0
    virtual_s: float = 0.0


def simulate_standbys(seed: int, steps: int, *, calm: bool = False) -> StandbyOutcome:
    """Runs worlds of a seed. Raises Violation."""
    outcome = StandbyOutcome()
    worlds = 0
    while outcome.steps < steps:
        worlds += 1
        lines: list[str] = []
        world = StandbyWorld(f"{seed}/standbys {worlds}", lines.append, calm=calm)
        with closing(world), simulated_owners(world):
            began_ns = world.schedule.now_ns
            for _ in range(WORLD_STEPS):
                if world.is_over:
                    break
                outcome.steps += 1
                try:
                    world.step()
                except Exception as error:
                    error.add_note(f"seed {seed}, world {worlds}, step {outcome.steps}:")
                    error.add_note("\n".join(lines[-40:]))
                    raise
            outcome.virtual_s += (world.schedule.now_ns - began_ns) / 1e9
        outcome.owners += sum(daemon.incarnation is not None for daemon in world.daemons)
        outcome.released += sum(cast(StandbyDaemon, d).handed_over for d in world.daemons)
        outcome.kills += world.kills
        outcome.cuts += world.cuts
        outcome.commits += sum(len(daemon.committed) for daemon in world.daemons)
    return outcome
