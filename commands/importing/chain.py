"""The requests that move one cursor over one source, pipelined. Pure: events in, steps out.

Each request carries a step of the cursor, which expects what the step before it leaves. So the
daemon stores a prefix of what was sent, in its order: if a request is refused, those after it are
refused too, and nothing is stored past an error.

Lifecycle of a load, the rows of one sub-block: waiting -> sent as a step -> stored, or returned and
waiting again, without the rows that turn out to be stored already.

- ``position`` is where the cursor is known to be; it only grows.
- The steps in flight form a chain: each expects where the one before it ends.
- In *doubt*, after a refusal or a lost answer, nothing is sent until everything in flight is
  answered or lost. Then the chain begins anew at ``position``.
- A row is pending if it is after ``position``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain as joined
from typing import NamedTuple

DEPTH_MAX = 64  # requests in flight; with the smallest batches the byte budget would allow millions


class SubBlockRows(NamedTuple):
    """Rows, each with the position after its source record, and the position where all end.
    ``leased``: bytes of the lease that ends with them."""

    next: int
    positions: Sequence[int]
    rows: Sequence[bytes]
    leased: int = 0


class ImportStep(NamedTuple):
    """One request: the rows of a load, and the move of the cursor."""

    expected: int
    load: SubBlockRows

    @property
    def next(self) -> int:
        return self.load.next


class CursorSetBack(Exception):
    """The cursor is before where this chain knows it to have been."""

    def __init__(self, position: int, known: int) -> None:
        super().__init__(
            f"its cursor is at {position}, and was at {known} before: another client has set it"
        )


class Chain:
    """The steps of one cursor."""

    def __init__(self, position: int) -> None:
        self.position = position
        self.depth_max = DEPTH_MAX
        self.not_before = 0.0  # when the daemon takes requests again: monotonic, in seconds
        self.rows_stored = 0
        self.rows_known = 0  # dropped here, because an earlier request had stored them
        self._waiting: deque[SubBlockRows] = deque()
        self._sent: deque[ImportStep] = deque()
        self._returned: list[SubBlockRows] = []
        self._tail = position
        self._lost_to = position  # up to here rows were sent that had no answer

    def add(self, load: SubBlockRows) -> None:
        """Queues rows that end after all before them; what is stored already is dropped."""
        self._waiting.extend(self._pending([load]))

    def next_step(self, now: float, clear_below: int | None = None) -> ImportStep | None:
        """The step to send now, which counts as sent. None: nothing to send, or not now.

        ``clear_below``: the cursor must stay before this position.
        """
        if not self.wants_to_send:
            return None
        load = self._waiting[0]
        if now < self.not_before or (clear_below is not None and load.next >= clear_below):
            return None
        step = ImportStep(self._tail, self._waiting.popleft())
        self._tail = step.next
        self._sent.append(step)
        return step

    def stored(self) -> ImportStep:
        """The oldest step in flight is stored."""
        step = self._sent.popleft()
        self.rows_stored += len(step.load.rows)
        self.position = max(self.position, step.next)
        self._begin_anew()
        return step

    def busy(self, until: float) -> None:
        """The oldest step in flight was refused for now."""
        self.not_before = max(self.not_before, until)
        self._returned.append(self._sent.popleft().load)
        self._begin_anew()

    def moved(self, position: int) -> None:
        """The oldest step in flight was refused, because the cursor is at ``position``.

        Raises CursorSetBack.
        """
        step = self._sent.popleft()
        if position < self.position or position == step.expected:
            raise CursorSetBack(position, self.position)
        self.position = position
        self._returned.append(step.load)
        self._begin_anew()

    def lost(self, until: float) -> None:
        """Everything in flight stays without an answer: whether it is stored is not known."""
        self.not_before = max(self.not_before, until)
        if self._sent:
            self._lost_to = self._sent[-1].next
        self._returned.extend(step.load for step in self._sent)
        self._sent.clear()
        self._begin_anew()

    def settled(self, position: int) -> None:
        """The cursor was put forward, over what has no rows."""
        if self.in_flight or self.pending_from is not None:
            raise ValueError("a cursor is put forward only while no rows are pending")
        self.position = self._tail = max(self.position, position)

    @property
    def wants_to_send(self) -> bool:
        """Whether a step waits for nothing but its time."""
        return bool(self._waiting) and not self._returned and len(self._sent) < self.depth_max

    @property
    def in_flight(self) -> int:
        """How many steps are not answered yet."""
        return len(self._sent)

    @property
    def is_unsure(self) -> bool:
        """Whether rows after the position were sent and had no answer."""
        return self._lost_to > self.position

    @property
    def refused(self) -> SubBlockRows:
        """The load of the oldest step in flight, which an answer is about."""
        return self._sent[0].load

    @property
    def oldest(self) -> SubBlockRows | None:
        """The first load that is not known to be stored."""
        return next(self._loads(), None)

    @property
    def waits(self) -> bool:
        """Whether a load waits for those in flight."""
        return bool(self._waiting and self._sent)

    @property
    def pending_from(self) -> int | None:
        """The position of the first row that is pending; None: there is none."""
        for load in self._loads():
            if load.positions[-1] > self.position:
                return load.positions[bisect_right(load.positions, self.position)]
        return None

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        at = None
        for step in self._sent:
            assert step.expected < step.next and at in (None, step.expected)
            at = step.next
        if not self._sent and not self._returned:
            assert self._tail == self.position
        if self._sent:
            assert self._tail == self._sent[-1].next
        at = -1
        for load in self._loads():
            assert load.rows and len(load.rows) == len(load.positions)
            assert at < load.positions[0] and load.positions[-1] <= load.next
            at = load.next

    def _loads(self) -> Iterator[SubBlockRows]:
        return joined(self._returned, (step.load for step in self._sent), self._waiting)

    def _begin_anew(self) -> None:
        """After doubt, once nothing is in flight."""
        if self._sent:
            return
        if self._returned:
            self._waiting.extendleft(reversed(self._returned))
            self._returned = []
            self._waiting = deque(self._pending(self._waiting))
        self._tail = self.position

    def _pending(self, loads: Iterable[SubBlockRows]) -> Iterable[SubBlockRows]:
        for load in loads:
            known = bisect_right(load.positions, self.position)
            self.rows_known += known
            if known == 0 and load.rows:
                yield load
            elif known < len(load.rows):
                yield load._replace(positions=load.positions[known:], rows=load.rows[known:])
