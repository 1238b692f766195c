"""What a router does next: events and ``now`` in, decisions out. Pure.

A router copies the records of its source that pass its filter into its destination. Its *cursor*
says, for each partition of the source, up to which offset that is done; it moves in the commit that
stores the copies (docs/protocol.md 4), so the two never disagree. Each partition is a *lane* of its
own::

    LOADING -> (the cursor's position is known) -> READY: read a page, append the frame of its
    records, which advances the cursor from where the frame before it leaves it, read the next page

    READY -> (a frame was void: the cursor was elsewhere) -> SETTLING: nothing new, until the fate
    of each frame on its way is known -> LOADING

So it does not matter what else moves the cursor: frames that a dead predecessor left in the ring, a
second owner, a recovery. A frame is stored only if it continues exactly where the cursor is.

A page without a record that passes needs no frame. The cursor passes it with the next frame, or by
a *flush* if no frame is on its way.

A router is *held* while its destination takes nothing, and looks again after a pause. It is
*stopped* when its source or destination is gone, and *paused* by request; frames on their way are
settled in any case.

A lane is *due* while there may be something to do for it: each of its events makes it due, and it
stops being due once a look finds nothing. So a decision costs nothing for partitions in which
nothing happens.

Invariants, per lane: position <= chain <= read_to; frames on their way lie between position and
chain, in order; a lane that loads has none on its way, nor has one that flushes.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

HOLD_NS = 500_000_000  # between two looks at a destination that takes nothing


class Load(NamedTuple):
    """Read the cursor's position in a partition from the ledger; then ``loaded``."""

    partition: int


class Read(NamedTuple):
    """Read a page after an offset; then ``passed``, ``frame`` and ``appended``, or ``unread``."""

    partition: int
    cursor: int


class Step(NamedTuple):
    """The cursor's move in one partition that a frame or a flush makes."""

    partition: int
    expected: int
    next: int


class Counts(NamedTuple):
    """Records of the source: copied, filtered out, and gone before they could be copied."""

    copied: int = 0
    filtered: int = 0
    skipped: int = 0

    def plus(self, other: Counts) -> Counts:
        """The sums."""
        return Counts(
            self.copied + other.copied, self.filtered + other.filtered, self.skipped + other.skipped
        )


NOTHING = Counts()


class LaneState(Enum):
    """See the head of the module."""

    LOADING = "loading"
    READY = "ready"
    SETTLING = "settling"


class _Frame(NamedTuple):
    expected: int
    next: int
    counts: Counts


class Lane:
    """One partition of the source. ``due`` has the partitions that are due, in order."""

    __slots__ = (
        "_due", "_flushing", "_in_flight", "_passed", "busy", "chain", "needs_bytes", "partition",
        "position", "read_to", "state",
    )  # fmt: skip

    def __init__(self, partition: int, due: dict[int, None]) -> None:
        self.partition = partition
        self._due = due
        due[partition] = None
        self.state = LaneState.LOADING
        self.position = 0  # of the cursor, as far as is known
        self.chain = 0  # where the next frame continues
        self.read_to = 0
        self.busy = False  # a Load or a Read is under way
        self.needs_bytes = 0  # of a frame that found no room
        self._in_flight: dict[int, _Frame] = {}  # by ticket, in order
        self._passed = NOTHING  # between chain and read_to
        self._flushing: int | None = None

    @property
    def in_flight(self) -> int:
        """Frames whose fate is not known."""
        return len(self._in_flight)

    def wake(self) -> None:
        """The source has new records, or something else has changed."""
        self._due[self.partition] = None

    def loaded(self, position: int) -> None:
        """The cursor's position, as the ledger has it."""
        assert self.state is LaneState.LOADING and not self._in_flight
        self.busy = False
        self.state = LaneState.READY
        self.position = self.chain = self.read_to = position
        self._passed = NOTHING
        self._flushing = None
        self.wake()

    def passed(self, reached: int, filtered: int, skipped: int) -> None:
        """A page was read up to ``reached`` and has no record to copy."""
        self.busy = False
        self.wake()
        if self.state is LaneState.READY:
            self.read_to = reached
            self._passed = self._passed.plus(Counts(0, filtered, skipped))

    def frame(self, reached: int) -> Step | None:
        """The advance of the frame of a page that was read up to ``reached``; None: drop it."""
        if self.state is not LaneState.READY or self._flushing is not None:
            self.unread()
            return None
        return Step(self.partition, self.chain, reached)

    def appended(self, ticket: int, step: Step, counts: Counts) -> None:
        """The frame is in the ring; ``ticket`` names it in ``resolved``."""
        self.busy = False
        self.needs_bytes = 0
        self._in_flight[ticket] = _Frame(step.expected, step.next, self._passed.plus(counts))
        self._passed = NOTHING
        self.chain = self.read_to = step.next
        self.wake()

    def unread(self, needs_bytes: int = 0) -> None:
        """The page was not taken: it is read again once there is room for ``needs_bytes``."""
        self.busy = False
        self.needs_bytes = needs_bytes
        self.wake()

    def resolved(self, ticket: int, *, stored: bool) -> Counts:
        """A frame was committed, stored or void; returns what it counts for."""
        frame = self._in_flight.pop(ticket)
        if stored:
            self.position = max(self.position, frame.next)
        else:
            self.state = LaneState.SETTLING
        self._settle()
        self.wake()
        return frame.counts if stored else NOTHING

    def flush(self) -> Step | None:
        """The move over what no frame will carry; ``flushed`` must follow."""
        if (
            self.state is not LaneState.READY
            or self._in_flight
            or self._flushing is not None
            or self.read_to == self.chain
        ):
            return None
        self._flushing = self.read_to
        return Step(self.partition, self.chain, self.read_to)

    def flushed(self, *, moved: bool) -> Counts:
        """The outcome of a flush. Without it, the cursor is looked at again."""
        if self._flushing is None:
            return NOTHING
        reached, self._flushing = self._flushing, None
        self.wake()
        if not moved:
            self.state = LaneState.SETTLING
            self._settle()
            return NOTHING
        # A page may have been passed meanwhile; its counts go with these, a second early.
        counts, self._passed = self._passed, NOTHING
        self.position = self.chain = reached
        return counts

    def _settle(self) -> None:
        if self.state is LaneState.SETTLING and not self._in_flight:
            self.state = LaneState.LOADING
            # A page that is being read belongs to the former position: ``frame`` refuses it, and
            # the lane stays busy until then.

    @property
    def wants_load(self) -> bool:
        """Whether the cursor must be read."""
        return self.state is LaneState.LOADING and not self.busy

    @property
    def wants_flush(self) -> bool:
        """Whether there is a stretch that only the next frame or a flush carries."""
        return self.state is LaneState.READY and self.read_to > self.chain

    def wants_page(self, head: int) -> bool:
        """Whether a page should be read; ``head`` is the source's last offset."""
        return (
            self.state is LaneState.READY
            and not self.busy
            and self._flushing is None
            and self.read_to < head
        )

    def check_invariants(self) -> None:
        """Raises AssertionError if one does not hold."""
        assert self.position <= self.chain <= self.read_to
        at = 0
        for frame in self._in_flight.values():
            assert at <= frame.expected < frame.next <= self.chain
            at = frame.next
        assert self.state is not LaneState.LOADING or not self._in_flight
        assert self._flushing is None or not self._in_flight
        assert self.read_to > self.chain or self._passed == NOTHING


class RouterPlan:
    """All lanes of one router."""

    def __init__(self, partitions: int, *, paused: bool = False) -> None:
        self._due: dict[int, None] = {}
        self.lanes = [Lane(partition, self._due) for partition in range(partitions)]
        self.paused = paused
        self.stopped = ""  # why it cannot go on
        self.barred = ""  # why it may not, until it is set up again
        self.held = ""  # why it waits
        self.held_until_ns = 0
        self.counts = NOTHING

    def grow(self, partitions: int) -> None:
        """The source has more partitions; they are copied from their start."""
        self.lanes += [Lane(n, self._due) for n in range(len(self.lanes), partitions)]

    def hold(self, reason: str, now_ns: int) -> None:
        """The destination takes nothing now."""
        self.held = reason
        self.held_until_ns = now_ns + HOLD_NS

    @property
    def may_copy(self) -> bool:
        """Whether it is to copy anything."""
        return not (self.paused or self.stopped or self.barred)

    def release(self) -> None:
        """Something was taken."""
        self.held = ""
        self.held_until_ns = 0

    def next(
        self, head: Callable[[int], int | None], room_bytes: int, now_ns: int
    ) -> Load | Read | None:
        """What to do now; None: nothing before the next event. ``head`` is the last offset of a
        partition of the source, None while that is unknown."""
        if not self.may_copy or now_ns < self.held_until_ns:
            return None
        for partition in list(self._due):
            lane = self.lanes[partition]
            wants_load = lane.wants_load
            if not wants_load:
                last = head(partition)
                if last is None or not lane.wants_page(last):
                    del self._due[partition]
                    continue
                if room_bytes < max(1, lane.needs_bytes):
                    continue
            del self._due[partition]  # its next event puts it at the end
            lane.busy = True
            return Load(partition) if wants_load else Read(partition, lane.read_to)
        return None

    def is_done(self, head: Callable[[int], int | None]) -> bool:
        """Whether everything was read."""
        return all(
            lane.state is LaneState.READY and lane.read_to >= (head(partition) or 0)
            for partition, lane in enumerate(self.lanes)
        )

    def resolved(self, partition: int, ticket: int, *, stored: bool) -> None:
        """The fate of a frame."""
        self.counts = self.counts.plus(self.lanes[partition].resolved(ticket, stored=stored))

    def flushed(self, partition: int, *, moved: bool) -> None:
        """The outcome of a lane's ``flush``."""
        self.counts = self.counts.plus(self.lanes[partition].flushed(moved=moved))

    def check_invariants(self) -> None:
        """Raises AssertionError if one does not hold."""
        for lane in self.lanes:
            lane.check_invariants()
            assert not lane.wants_load or lane.partition in self._due
        assert not (self.held and self.stopped)
