"""A simulated run: seed in, log and verdict out.

A run is a sequence of machines, each with its own number of shards, ring, target and window. A
machine is a sequence of episodes: load and faults for a while, then no faults until everything has
drained. Two runs with one seed have the same log, and the same hash of it.
"""

from __future__ import annotations

import hashlib
import os
import random
import tempfile
from collections import Counter, deque
from contextlib import closing
from pathlib import Path

from msgspec import Struct

from shards import layout as at
from shards.clock import monotonic_ns
from tests.sim.machine import Machine, simulated
from tests.sim.owners import World, simulated_owners
from tests.sim.schedule import MS, S, Task, Violation, log_uniform

EPISODE_STEPS = 1_500
EPISODES = 4  # of one machine
WORLD_STEPS = 1_500  # of the owners of one prefix, after each machine
DRAIN_NS = 60 * S  # longer than any retry, stop or wait of ownership, together
LOG_LINES = 50
PPM = 1_000_000
RAM = Path("/dev/shm")


class Failure(AssertionError):
    """A violation, with what is needed to see it again."""

    def __init__(self, seed: int, step: int, lines: list[str], error: BaseException) -> None:
        super().__init__(
            f"seed {seed}, step {step}: {error}\nthe last {len(lines)} lines of the log:\n  "
            + "\n  ".join(lines)
            + f"\nagain: make sim SEED={seed} STEPS={step}"
        )
        self.error = error


class Outcome(Struct):
    """What a run did. ``log_hash`` is of its whole log."""

    seed: int
    steps: int = 0
    log_hash: str = ""
    machines: int = 0
    deaths: int = 0
    stops: int = 0
    requests: int = 0
    acknowledgements: int = 0
    voids: int = 0
    commits: int = 0
    adoptions: int = 0
    ended: int = 0  # processes that an error ended
    stuck_ticks: int = 0  # with an alarm for a lease that ends its holders
    puts: int = 0
    taken: int = 0  # by recoveries: objects that no entry had told of
    collected: int = 0  # objects that were deleted
    moves: int = 0  # of cursors, with stored requests
    moves_refused: int = 0
    flushes: int = 0  # of cursors, without requests
    splits: int = 0
    merges: int = 0
    moved: int = 0  # ticks that changed window, object target or gate
    drained: int = 0  # episodes that came to rest under a pressure of 1
    daemons: int = 0  # that started on prefixes that had an owner
    owners: int = 0  # of them, that got it
    virtual_s: float = 0.0
    wall_s: float = 0.0


class Run:
    """One seed's run."""

    def __init__(self, seed: int) -> None:
        self.outcome = Outcome(seed)
        self._hash = hashlib.blake2b(digest_size=8)
        self._lines: deque[str] = deque(maxlen=LOG_LINES)
        self._now_ns = 0
        self.events: Counter[str] = Counter()

    def run(self, steps: int, *, owners_only: bool = False) -> Outcome:
        """Runs at least ``steps`` steps and ends with a drain. Raises Failure."""
        outcome = self.outcome
        began_ns = monotonic_ns()
        worlds = 0
        cpus = os.sched_getaffinity(0)
        # Only one thread runs at any time: on one CPU control changes hands half as fast again.
        os.sched_setaffinity(0, {sorted(cpus)[outcome.seed % len(cpus)]})
        try:
            while outcome.steps < steps:
                if not owners_only:
                    self._machine(f"{outcome.seed}/{outcome.machines}", steps)
                    outcome.machines += 1
                worlds += 1
                self._world(f"{outcome.seed}/owners {worlds}")
        except (AssertionError, Exception) as error:
            raise Failure(outcome.seed, outcome.steps, list(self._lines), error) from error
        finally:
            os.sched_setaffinity(0, cpus)
            outcome.wall_s = (monotonic_ns() - began_ns) / 1e9
        outcome.log_hash = self._hash.hexdigest()
        return outcome

    def _log(self, line: str) -> None:
        line = f"{self.outcome.steps} {self._now_ns / 1e9:.6f} {line}"
        self._hash.update(line.encode())
        self._lines.append(line)

    def _machine(self, seed: str, steps: int) -> None:
        outcome = self.outcome
        with tempfile.TemporaryDirectory(dir=RAM if RAM.is_dir() else None) as directory:
            machine = Machine(seed, Path(directory), self._log)
            with closing(machine), simulated(machine):
                began_ns = machine.schedule.now_ns
                for _ in range(EPISODES):
                    self._episode(machine)
                    if outcome.steps >= steps:
                        break
                outcome.virtual_s += (machine.schedule.now_ns - began_ns) / 1e9
                outcome.deaths += machine.deaths
                outcome.ended += machine.ended
                outcome.stuck_ticks += machine.stuck_ticks
                outcome.requests += machine.load.requests
                outcome.acknowledgements += machine.oracle.acknowledgements
                outcome.voids += machine.oracle.voids
                outcome.commits += machine.words[at.G_COMMITS]
                outcome.puts += machine.store.puts
                outcome.taken += machine.backup.taken
                outcome.collected += len(machine.store.deleted)
                outcome.moves += machine.oracle.cursors.moved
                outcome.moves_refused += machine.oracle.cursors.refused
                outcome.flushes += machine.oracle.cursors.flushed
                outcome.moved += machine.pressure.moves
                outcome.drained += machine.pressure.drains
                layout = machine.layout
                for shard in range(layout.shards):
                    base = layout.shard(shard)
                    outcome.adoptions += machine.words[base + at.S_ORPHANS_ADOPTED]
                    group = layout.group(shard)
                    outcome.splits += machine.words[group + at.P_SPLITS]
                    outcome.merges += machine.words[group + at.P_MERGES]

    def _world(self, seed: str) -> None:
        world = World(seed, self._log)
        with closing(world), simulated_owners(world):
            for _ in range(WORLD_STEPS):
                self.outcome.steps += 1
                world.step()
                self._now_ns = world.schedule.now_ns
        self.outcome.daemons += len(world.daemons)
        self.outcome.owners += sum(daemon.incarnation is not None for daemon in world.daemons)

    def _step(self, machine: Machine) -> Task:
        self.outcome.steps += 1
        schedule = machine.schedule
        task = schedule.choose()
        if task is None:
            raise Violation("nothing can run any more")
        self._now_ns = schedule.now_ns
        self._log(f"{task.process.name} {task.name}")
        schedule.run(task)
        while machine.to_kill:
            machine.kill(machine.to_kill.pop())
        machine.check()
        return task

    def _episode(self, machine: Machine) -> None:
        schedule, rng = machine.schedule, machine.rng
        schedule.mean_gap = log_uniform(rng, 4, 150)
        deaths_every = rng.choice((60, 300, 1_500))
        stops_every = rng.choice((25, 150, 1_000))
        requests_every_ns = log_uniform(rng, 0.1, 50) * MS
        hot = rng.randrange(machine.layout.shards) if rng.randrange(2) else None
        machine.faults = True
        machine.pressure.begin()
        machine.store.faults = bool(rng.randrange(4))
        schedule.hazards(log_uniform(rng, 100, 3_000))
        machine.ledger_fails_every = rng.choice((None, 3, 20, 200))
        machine.poison_every = rng.choice((None, None, 5, 40))
        next_ns = float(schedule.now_ns)
        stop = self.outcome.steps + EPISODE_STEPS
        while self.outcome.steps < stop:
            task = self._step(machine)
            for _ in range(20):
                if next_ns > schedule.now_ns:
                    break
                next_ns += rng.expovariate(1 / requests_every_ns)
                machine.publish(rng.randrange(machine.layout.shards) if hot is None else hot)
            next_ns = max(next_ns, schedule.now_ns - 20 * requests_every_ns)
            self._faults(machine, task, rng, deaths_every, stops_every)
            if not rng.randrange(1_000):
                machine.backup.tell()
            if not rng.randrange(300):
                machine.backup.image()
        machine.backup.recover()
        self._drain(machine)

    def _faults(
        self, machine: Machine, task: Task, rng: random.Random, deaths_every: int, stops_every: int
    ) -> None:
        """Picks a victim, mostly the process that was just interrupted."""
        shards = machine.layout.shards
        name = task.process.name
        inside = int(name.split()[1]) if name.startswith("shard") else rng.randrange(shards)
        shard = inside if rng.randrange(4) else rng.randrange(shards)
        if machine.locks.holds_any(task.process):
            # Repairs are for what a death or a stop under a lock leaves.
            deaths_every, stops_every = deaths_every // 8, stops_every // 8
        if not rng.randrange(deaths_every):
            machine.kill(shard)
        elif not rng.randrange(stops_every):
            self.outcome.stops += 1
            machine.stop(shard, int(log_uniform(rng, 0.1, 8_000)) * MS)
        elif not rng.randrange(20 * stops_every):
            machine.collections.kill()
        elif not rng.randrange(20 * stops_every):
            machine.supervisor.stopped_until_ns = machine.schedule.now_ns + rng.randrange(3 * S)

    def _drain(self, machine: Machine) -> None:
        """Switches faults off until everything is at rest."""
        schedule = machine.schedule
        self._log("drain")
        machine.faults = machine.store.faults = False
        schedule.mean_gap = 400.0
        schedule.hazards(None)
        if not machine.rng.randrange(3):
            # One shard is not started again: the others do its part.
            machine.held_back = machine.rng.randrange(machine.layout.shards)
            machine.kill(machine.held_back)
        until_ns = schedule.now_ns + DRAIN_NS
        while not machine.quiet():
            if schedule.now_ns > until_ns:
                raise Violation(f"not at rest within {DRAIN_NS / S:.0f} s: {machine.describe()}")
            self._step(machine)
            machine.start_if_alone()
        machine.oracle.check_rest()
        if machine.words[at.G_PRESSURE_PPM] == PPM:
            machine.pressure.drains += machine.pressure.is_pinned
        machine.held_back = None
        self._log("at rest")


def simulate(seed: int, steps: int, *, owners_only: bool = False) -> Outcome:
    """Runs a seed. Raises Failure."""
    return Run(seed).run(steps, owners_only=owners_only)
