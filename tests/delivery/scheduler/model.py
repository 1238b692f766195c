"""The scheduler as the seed describes it, slow and obvious: a list, and a tick that looks at all.

Every 50 ms the tick computes the effective priority of each entry that waits and raises its band.
Credit is given round by round. The real one must take the same turns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from delivery.ready import EntryKey, Kind, PriorityInputs
from delivery.scheduler.bands import QUANTUM_BYTES, WEIGHTS
from delivery.scheduler.priority import recency

TICK_NS = 50_000_000


def model_band(priority: int) -> int:
    if priority >= 750:
        return 4
    if priority >= 500:
        return 3
    if priority >= 250:
        return 2
    return 1 if priority >= 0 else 0


@dataclass
class Waiting:
    key: EntryKey
    inputs: PriorityInputs
    published_ns: int
    marked_ns: int
    enqueued_ns: int | None = None  # None while it is held
    since_ns: int = 0
    sensed_ns: int = 0
    lowered: int = 0
    band: int = 0
    again: tuple[PriorityInputs, int, int] | None = None
    forgotten: bool = False

    @property
    def negative(self) -> bool:
        return self.inputs.priority is not None and self.inputs.priority < 0

    def points(self, at_ns: int) -> int:
        inputs = self.inputs
        if inputs.priority is not None:
            points = min(1000, max(-1000, inputs.priority))
        elif inputs.auto and inputs.consumed_ns:
            points = recency((at_ns - inputs.consumed_ns) // 1_000_000)
        else:
            points = 0
        return points + min(1000, max(0, at_ns - self.since_ns) // 10_000_000)

    def band_at(self, at_ns: int) -> int:
        return max(0, model_band(self.points(at_ns)) - self.lowered)


class Model:
    """Entries in a list: those that are ready in the order in which they became so, and anywhere
    among them those that are held, in the order in which they were marked."""

    def __init__(self, start_ns: int) -> None:
        self.waiting: list[Waiting] = []
        self.served: dict[EntryKey, tuple[Waiting, int]] = {}
        self.left = [weight * QUANTUM_BYTES for weight in WEIGHTS]
        self.coalesce_ns = 0
        self.held_from_ns = 0
        self.deferring = False
        self.stopped_ns = 0
        self.frozen_ns = 0
        self.ticks = [start_ns // TICK_NS] * 2  # of each clock, the last

    def __len__(self) -> int:
        return len(self.waiting)

    def clock(self, entry: Waiting, now_ns: int) -> int:
        return self.clock_of(entry.negative, now_ns)

    def clock_of(self, negative: bool, now_ns: int) -> int:
        if not negative:
            return now_ns
        return (self.stopped_ns if self.deferring else now_ns) - self.frozen_ns

    def pass_time(self, now_ns: int) -> None:
        for entry in list(self.waiting):
            due_ns = max(entry.marked_ns + self.coalesce_ns, self.held_from_ns)
            if entry.enqueued_ns is None and due_ns <= now_ns:
                self.ready(entry, due_ns, entry.published_ns + due_ns - entry.marked_ns)
        for negative in (False, True):
            clock_ns = self.clock_of(negative, now_ns)
            while (self.ticks[negative] + 1) * TICK_NS <= clock_ns:
                self.ticks[negative] += 1
                self.tick(negative, self.ticks[negative] * TICK_NS)

    def tick(self, negative: bool, at_ns: int) -> None:
        for entry in self.waiting:
            is_ready = entry.enqueued_ns is not None and entry.since_ns <= at_ns
            if entry.negative == negative and is_ready:
                entry.band = max(entry.band, entry.band_at(at_ns))

    def ready(self, entry: Waiting, at_ns: int, sensed_ns: int) -> None:
        self.waiting.remove(entry)
        self.waiting.append(entry)
        entry.enqueued_ns, entry.sensed_ns = at_ns, sensed_ns
        entry.lowered = int(self.deferring and entry.key[1] == Kind.ROUTE)
        entry.since_ns = self.clock(entry, at_ns)
        entry.band = entry.band_at(entry.since_ns)

    def mark(self, key: EntryKey, inputs: PriorityInputs, published_ns: int, now_ns: int) -> bool:
        self.pass_time(now_ns)
        if key in self.served:
            entry = self.served[key][0]
            first = entry.again is None
            published = published_ns if entry.again is None else entry.again[1]
            entry.again = (inputs, published, now_ns)
            entry.inputs = inputs
            return first
        for entry in self.waiting:
            if entry.key == key:
                self.change(entry, inputs, now_ns)
                return False
        self.admit(Waiting(key, inputs, published_ns, now_ns))
        return True

    def change(self, entry: Waiting, inputs: PriorityInputs, now_ns: int) -> None:
        if (inputs.priority, inputs.auto) == (entry.inputs.priority, entry.inputs.auto):
            return
        waited_ns = self.clock(entry, now_ns) - entry.since_ns
        if entry.negative:
            entry.sensed_ns = now_ns
        entry.inputs = inputs
        if entry.enqueued_ns is not None:
            entry.since_ns = self.clock(entry, now_ns) - waited_ns
            entry.band = entry.band_at(self.clock(entry, now_ns))

    def admit(self, entry: Waiting) -> None:
        self.waiting.append(entry)
        if not self.coalesce_ns or entry.key[1] is not Kind.WATCH:
            self.ready(entry, entry.marked_ns, entry.published_ns)

    def may_go(self) -> list[Waiting]:
        return [
            entry
            for entry in self.waiting
            if entry.enqueued_ns is not None and not (self.deferring and entry.negative)
        ]

    def take(self, now_ns: int) -> tuple[EntryKey, int, int | None, int | None] | None:
        self.pass_time(now_ns)
        ready = self.may_go()
        if not ready:
            return None
        while True:
            shares = {
                entry.band: Fraction(self.left[entry.band], WEIGHTS[entry.band])
                for entry in ready
                if self.left[entry.band] > 0
            }
            if shares:
                break
            for band, weight in enumerate(WEIGHTS):
                self.left[band] = min(self.left[band], 0) + weight * QUANTUM_BYTES
        band = max(shares, key=lambda band: (shares[band], band))
        entry = next(each for each in ready if each.band == band)
        self.waiting.remove(entry)
        self.served[entry.key] = (replace(entry), band)
        waited_ns = None if entry.negative else now_ns - entry.sensed_ns
        return entry.key, entry.published_ns, entry.enqueued_ns, waited_ns

    def finish(self, key: EntryKey, cost_bytes: int, more: bool, now_ns: int) -> None:
        self.pass_time(now_ns)
        entry, band = self.served.pop(key)
        self.left[band] -= max(cost_bytes, 4096)
        if more and not entry.forgotten:
            again = Waiting(key, entry.inputs, entry.published_ns, now_ns)
            self.waiting.append(again)
            self.ready(again, now_ns, now_ns)
        elif entry.again is not None:
            inputs, published_ns, _ = entry.again
            self.admit(Waiting(key, inputs, published_ns, now_ns))

    def forget(self, key: EntryKey) -> None:
        self.waiting = [entry for entry in self.waiting if entry.key != key]
        if key in self.served:
            self.served[key][0].forgotten, self.served[key][0].again = True, None

    def set_pressure(self, coalesce_ns: int, deferring: bool, now_ns: int) -> None:
        self.pass_time(now_ns)
        if coalesce_ns < self.coalesce_ns:
            self.held_from_ns = now_ns
        self.coalesce_ns = coalesce_ns
        self.pass_time(now_ns)
        if deferring and not self.deferring:
            self.stopped_ns = now_ns
        elif self.deferring and not deferring:
            self.frozen_ns += now_ns - self.stopped_ns
        self.deferring = deferring

    def depths(self) -> list[int]:
        ready = [entry for entry in self.waiting if entry.enqueued_ns is not None]
        return [sum(entry.band == band for entry in ready) for band in range(5)]

    def oldest_wait_ns(self, now_ns: int) -> int:
        plain = (e for e in self.may_go() if e.inputs.priority is None or e.inputs.priority >= 0)
        return max((now_ns - entry.sensed_ns for entry in plain), default=0)
