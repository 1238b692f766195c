"""Entries in bands, and how age moves them up.

    insert -> first in, first out in its band -> (a tick finds it across an edge) -> the band above,
    among entries that became ready at the same time -> remove

Within a band the entry that has been ready longest is first. Entries that were put into the band
are in that order already (a queue). Those that age moved there are not (a heap); when nothing
waits longer than a tick, there are none.

No tick looks at all entries. The first tick after an entry was put in computes when the entry
crosses into the next band and puts it on a wheel; the wheel hands it out at that tick. One call
moves MOVES_MAX entries at most, so a burst of entries that cross simultaneously is spread over the
next calls.

The wheel costs the same for one member as for 100,000: a slot per tick, and more slots than a
member can be ahead. Each member is in one slot at most, which its owner remembers.

These bands have a clock of their own, which their owner may stop: age freezes then, and nothing
moves.

Invariants: an entry whose ``band`` is b is once in queue b or once in heap b, and is counted in
``counts[b]``; what else those hold is stale and passed over. A queue is in the order of
sequences. After ``settle``, unless it left moves for later, each entry is in the band of its
effective priority at the last tick, or in a higher one.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from delivery.ready import EntryKey, PriorityInputs
from delivery.scheduler.bands import BANDS, EDGES, TOP, band_of
from delivery.scheduler.priority import TICK_NS, base, crossing_tick, effective

Member = TypeVar("Member")

# An entry crosses into another band within 10 s, which are 200 ticks.
SLOTS = 256


class TickWheel(Generic[Member]):
    """Members by the tick at which they are due. The wheel stands at ``tick``.

    place(member, tick) -> remove(member, tick), or handed out by ``advance`` when the tick is over
    """

    def __init__(self) -> None:
        self.tick = 0
        self._slots: list[dict[Member, None]] = [{} for _ in range(SLOTS)]
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def place(self, member: Member, tick: int) -> None:
        """Puts a member in that is nowhere on the wheel."""
        if not self.tick < tick < self.tick + SLOTS:
            raise ValueError(
                f"tick {tick} is not within the {SLOTS - 1} ticks after {self.tick}"
            )  # fmt: skip
        self._slots[tick % SLOTS][member] = None
        self._count += 1

    def remove(self, member: Member, tick: int) -> None:
        """Takes a member out of the slot that it was placed in."""
        del self._slots[tick % SLOTS][member]
        self._count -= 1

    def holds(self, member: Member, tick: int) -> bool:
        """Whether a member is in the slot of a tick."""
        return member in self._slots[tick % SLOTS]

    def advance(self, tick: int, due: deque[Member]) -> None:
        """Turns the wheel to a tick; adds the members that are due by then to ``due``."""
        before = len(due)
        if self._count:
            # After SLOTS ticks every slot was passed.
            for passed in range(max(self.tick + 1, tick - SLOTS + 1), tick + 1):
                slot = self._slots[passed % SLOTS]
                if slot:
                    due.extend(slot)
                    slot.clear()
        self._count -= len(due) - before
        self.tick = max(self.tick, tick)


# Entries that one call may move; about 5 us each, in the worst case through all bands.
MOVES_MAX = 64
# Stale members that a band may have, on top of as many as it has others.
STALE_MAX = 64

HELD = -1  # delayed deliberately
SERVED = -2  # its turn was given out
GONE = -3
NO_TICK = -1


class ReadyEntry:
    """An entry of the ready set, from when it is marked until its turn is over.

    ``since_ns`` is on the clock of its bands: age counts from there. ``band`` is the one it is in,
    or HELD, SERVED, GONE; it never enters a band twice. ``lowered`` is 1 for one that is in one
    band lower than its priority says."""

    __slots__ = (
        "again_ns",
        "band",
        "deferrable",
        "enqueued_ns",
        "forgotten",
        "inputs",
        "key",
        "lowered",
        "published_ns",
        "sensed_ns",
        "sequence",
        "since_ns",
        "tick",
    )

    def __init__(self, key: EntryKey, inputs: PriorityInputs, published_ns: int) -> None:
        self.key = key
        self.set_inputs(inputs)
        self.lowered = 0
        self.band = HELD
        self.sequence = 0
        self.since_ns = 0
        self.enqueued_ns = 0  # since when it has been ready
        self.published_ns = published_ns  # the oldest commit that it waits for
        self.sensed_ns = 0  # since when its wait counts as latency
        # Of one that is served: a commit published meanwhile, and whether nobody wants it any more.
        self.again_ns = NO_TICK
        self.forgotten = False
        self.tick = NO_TICK  # its place on the wheel, until the wheel is there

    def set_inputs(self, inputs: PriorityInputs) -> None:
        """What its priority follows from; not while it is in a band."""
        self.inputs = inputs
        # Its push may be paused: its topic has a negative manual priority.
        self.deferrable = inputs.priority is not None and inputs.priority < 0


class AgingBands:
    """Entries that are ready, in five bands."""

    def __init__(self) -> None:
        self.counts = [0] * BANDS
        self._queues: list[deque[ReadyEntry]] = [deque() for _ in range(BANDS)]
        self._heaps: list[list[tuple[int, int, ReadyEntry]]] = [[] for _ in range(BANDS)]
        self._wheel: TickWheel[ReadyEntry] = TickWheel()
        self._young: list[ReadyEntry] = []  # put in since the last tick
        self._due: deque[ReadyEntry] = deque()  # to be looked at by this tick
        self.look_ns = 0

    def insert(self, entry: ReadyEntry) -> None:
        """Puts an entry in that became ready at its ``since_ns``, after all others."""
        band = max(0, band_of(base(entry.inputs, entry.since_ns)) - entry.lowered)
        entry.band = band
        self.counts[band] += 1
        self._young.append(entry)
        self._queues[band].append(entry)

    def reinsert(self, entry: ReadyEntry, now_ns: int) -> None:
        """Puts an entry in that has been ready for a while, with the age that it has."""
        points = effective(entry.inputs, entry.since_ns, now_ns)
        self._push(entry, max(0, band_of(points) - entry.lowered))
        self._young.append(entry)

    def _push(self, entry: ReadyEntry, band: int) -> None:
        entry.band = band
        self.counts[band] += 1
        # A stale member may have the same sequence: entries themselves are never compared.
        heappush(self._heaps[band], (entry.sequence, id(entry), entry))

    def first(self, band: int) -> ReadyEntry | None:
        """The entry of a band that has been ready longest; None if there is none, or no band."""
        if band < 0 or not self.counts[band]:
            return None
        queue, heap = self._queues[band], self._heaps[band]
        while queue and queue[0].band != band:
            queue.popleft()
        while heap and heap[0][2].band != band:
            heappop(heap)
        if heap and not (queue and queue[0].sequence < heap[0][0]):
            return heap[0][2]
        return queue[0]

    def remove(self, entry: ReadyEntry, to: int) -> None:
        """Takes an entry out; ``to`` is what becomes of it: SERVED or GONE."""
        self._leave(entry, to)
        if entry.tick > self._wheel.tick:
            self._wheel.remove(entry, entry.tick)

    def _leave(self, entry: ReadyEntry, to: int) -> None:
        """Leaves the band; what stays in queue or heap is stale."""
        band = entry.band
        self.counts[band] -= 1
        entry.band = to
        most = 2 * self.counts[band] + STALE_MAX
        queue = self._queues[band]
        if queue and queue[0] is entry:
            queue.popleft()
            while queue and queue[0].band != band:
                queue.popleft()
        elif len(queue) + len(self._heaps[band]) > most:
            self._queues[band] = deque(each for each in queue if each.band == band)
            self._heaps[band] = [each for each in self._heaps[band] if each[2].band == band]
            heapify(self._heaps[band])

    # Age

    def settle(self, now_ns: int) -> None:
        """Moves the entries that crossed into another band by the last tick. Need not be called
        before ``look_ns``."""
        tick = now_ns // TICK_NS
        if tick > self._wheel.tick:
            self._wheel.advance(tick, self._due)
            self._due.extend(self._young)
            self._young.clear()
        self._move(tick)
        self.look_ns = 0 if self._due else (tick + 1) * TICK_NS

    def _move(self, tick: int) -> None:
        due = self._due
        for _ in range(min(MOVES_MAX, len(due))):
            entry = due.popleft()
            if entry.band < 0:
                continue
            while (above := entry.band + entry.lowered) < TOP:
                crosses = crossing_tick(entry.inputs, entry.since_ns, EDGES[above])
                if crosses is None:
                    break
                if crosses > tick:
                    self._wheel.place(entry, crosses)
                    entry.tick = crosses
                    break
                band = entry.band + 1
                self._leave(entry, band)
                self._push(entry, band)

    def check_invariants(self, entries: list[ReadyEntry]) -> None:
        """Raises AssertionError unless the bands hold exactly these entries, as the head of the
        module says. Looks at everything; for tests."""
        held = [set[int]() for _ in range(BANDS)]
        for band in range(BANDS):
            queue, heap = self._queues[band], self._heaps[band]
            live = [each for each in queue if each.band == band]
            moved = [each for _, _, each in heap if each.band == band]
            assert [e.sequence for e in live] == sorted(e.sequence for e in live)
            assert len(set(map(id, live + moved))) == len(live) + len(moved) == self.counts[band]
            assert len(queue) + len(heap) <= 2 * self.counts[band] + STALE_MAX + 1
            held[band].update(map(id, live + moved))
        at_ns = self._wheel.tick * TICK_NS
        for entry in entries:
            assert id(entry) in held[entry.band]
            assert entry.tick <= self._wheel.tick or self._wheel.holds(entry, entry.tick)
            points = base(entry.inputs, at_ns)
            if not self._due and entry.since_ns <= at_ns:
                points = effective(entry.inputs, entry.since_ns, at_ns)
            assert entry.band >= band_of(points) - entry.lowered or entry in self._young
        assert sum(self.counts) == len(entries)
        assert len(self._wheel) == sum(entry.tick > self._wheel.tick for entry in entries)
