"""What a sender has and has not delivered yet, and what its next POST carries.

    add -> waits -> next (a unit: what one POST carries) -> done:    acknowledged
                                                         -> failed:  given back, and forgotten
                                                         -> refused: its halves go, until one is
                                                            alone, which has failed

A pure machine. Which message comes before which is the owner's to know: a *run* is the next
messages of a key, or of a node that counts as one (``key_shared``), or of a partition
(``exclusive``), and the window sends nothing more of it before all that it sent is acknowledged or
one has failed. So a sender has one run of each, which it delivers from the front; when a message
fails, the owner takes back those after it, and they are forgotten here. A message without such an
order is a run of its own. In a batch the messages of a run are next to each other. RUN_STATES has
the states of a run and what changes them.

* No two units that are under way have messages of one run. Units under way are ``connections_max``
  at most.
* After ``clear`` (the stream was opened again) nothing that was queued counts, and what is under
  way is *former*: the owner knows that it has to send it again. Nothing more of its run is sent
  before it has ended.
* Of a subscription that is not reliable nothing is given back: what fails is gone, the next message
  follows, and more may come of a run that is here.

What is queued is limited by whoever reads the stream (``bytes``), as are units by the settings.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import Generic, Protocol, TypeVar

from delivery.subscriptions.window.messages import Place
from ledger.delivery.push_settings import PushSettings
from ledger.delivery.subscription_rules import SubscriptionRules

COALESCING_WAIT_FACTOR = 4  # under pressure batches wait longer, so that fewer POSTs carry more
BATCH_WAIT_MAX_NS = 60_000_000_000

RunName = str | int | Place
"""A key, a partition, or the place of a message without an order."""


class QueuedMessage(Protocol):
    """What a queue needs of a message."""

    @property
    def place(self) -> Place: ...
    @property
    def key(self) -> str | None: ...
    @property
    def node(self) -> str | None: ...
    @property
    def size_bytes(self) -> int: ...


M = TypeVar("M", bound=QueuedMessage)


class RunState(Enum):
    """What a run waits for."""

    EMPTY = auto()  # new, or dealt with: it is forgotten
    LISTED = auto()  # it may be sent
    UNDER_WAY = auto()  # the end of the unit that carries messages of it
    CUT = auto()  # parts of a batch that was refused have messages of it, and go first


class RunEvent(Enum):
    """What changes the state of a run."""

    CAME = auto()  # a message
    GOES = auto()  # in a unit
    # The unit has ended, or was cut. What is left of the run:
    LEFT_PARTS = auto()
    LEFT_WAITING = auto()
    LEFT_NOTHING = auto()


RUN_STATES = {
    (RunState.EMPTY, RunEvent.CAME): RunState.LISTED,
    (RunState.LISTED, RunEvent.CAME): RunState.LISTED,
    (RunState.LISTED, RunEvent.GOES): RunState.UNDER_WAY,
    (RunState.UNDER_WAY, RunEvent.CAME): RunState.UNDER_WAY,
    (RunState.UNDER_WAY, RunEvent.LEFT_PARTS): RunState.CUT,
    (RunState.UNDER_WAY, RunEvent.LEFT_WAITING): RunState.LISTED,
    (RunState.UNDER_WAY, RunEvent.LEFT_NOTHING): RunState.EMPTY,
    (RunState.CUT, RunEvent.CAME): RunState.CUT,
    (RunState.CUT, RunEvent.GOES): RunState.UNDER_WAY,
}


class MessageRun(Generic[M]):
    """Messages that go one after the other."""

    __slots__ = ("name", "waiting", "size_bytes", "parts", "state")

    def __init__(self, name: RunName) -> None:
        self.name = name
        self.waiting: deque[tuple[M, int]] = deque()  # with the time at which they came
        self.size_bytes = 0  # of those
        self.parts = 0  # of a batch that was refused, with messages of this
        self.state = RunState.EMPTY

    def clear(self) -> None:
        """Nothing waits."""
        self.waiting.clear()
        self.size_bytes = self.parts = 0

    def change(self, event: RunEvent) -> None:
        """Something has become of it. Raises KeyError if nothing of the kind can."""
        self.state = RUN_STATES[self.state, event]

    @property
    def left(self) -> RunEvent:
        """What is left of it when its unit has ended."""
        if self.parts:
            return RunEvent.LEFT_PARTS
        return RunEvent.LEFT_WAITING if self.waiting else RunEvent.LEFT_NOTHING


class Unit(Generic[M]):
    """What one POST carries. Messages of one run are next to each other."""

    __slots__ = ("messages", "runs", "is_former")

    def __init__(self, pairs: Sequence[tuple[M, MessageRun[M]]]) -> None:
        self.messages = [message for message, _ in pairs]
        self.runs = [run for _, run in pairs]  # of each message
        self.is_former = False  # the stream was opened again since the POST began

    @property
    def pairs(self) -> list[tuple[M, MessageRun[M]]]:
        """The messages with their runs."""
        return list(zip(self.messages, self.runs, strict=True))

    def cut(self, count_max: int) -> list[Unit[M]]:
        """The same messages in units of at most this many."""
        pairs = self.pairs
        return [Unit(pairs[at : at + count_max]) for at in range(0, len(pairs), count_max)]


class PushQueue(Generic[M]):
    """The messages of one sender. Times are in nanoseconds of any one clock."""

    def __init__(self, rules: SubscriptionRules, settings: PushSettings) -> None:
        self.settings = settings
        self.is_coalescing = False  # under pressure: batches wait longer
        self.messages = 0  # with those under way; ``bytes`` is their size
        self.bytes = 0
        self._rules = rules
        self._order = rules.mode_facts.order
        self._runs: dict[RunName, MessageRun[M]] = {}
        self._ready: deque[MessageRun[M]] = deque()  # may be sent, and have messages
        self._ready_count = 0  # of these messages
        self._ready_bytes = 0
        self._parts: deque[Unit[M]] = deque()  # of batches that were refused
        self._under_way: set[Unit[M]] = set()

    @property
    def under_way(self) -> int:
        """How many units are under way."""
        return len(self._under_way)

    # What comes

    def add(self, messages: Iterable[M], now_ns: int) -> None:
        """The owner has sent a batch."""
        for message in messages:
            name = self._name_of(message)
            run = self._runs.get(name)
            if run is None:
                run = self._runs[name] = MessageRun(name)
            size_bytes = message.size_bytes
            run.waiting.append((message, now_ns))
            run.size_bytes += size_bytes
            self.messages += 1
            self.bytes += size_bytes
            if run.state is RunState.LISTED:
                self._ready_count += 1
                self._ready_bytes += size_bytes
            self._change(run, RunEvent.CAME)

    def _name_of(self, message: M) -> RunName:
        match self._order:
            case "partition":
                return message.place[0]
            case "key":
                key = self._rules.key_of(message)
                return message.place if key is None else key
            case "none":
                return message.place

    def _change(self, run: MessageRun[M], event: RunEvent) -> None:
        """Something has become of a run: it may be sent, or is forgotten, or neither."""
        before = run.state
        run.change(event)
        after = run.state
        if after is before:
            return
        sign = (after is RunState.LISTED) - (before is RunState.LISTED)
        self._ready_count += sign * len(run.waiting)
        self._ready_bytes += sign * run.size_bytes
        if after is RunState.LISTED:
            self._ready.append(run)
        elif after is RunState.EMPTY:
            del self._runs[run.name]

    # What goes

    @property
    def _batch_max(self) -> int:
        return self.settings.batch_max if self.settings.format == "batch" else 1

    @property
    def _wait_ns(self) -> int:
        if self.settings.format != "batch":
            return 0
        wait_ns = self.settings.batch_wait_ms * 1_000_000
        factor = COALESCING_WAIT_FACTOR if self.is_coalescing else 1
        return min(wait_ns * factor, BATCH_WAIT_MAX_NS)

    def next(self, now_ns: int) -> Unit[M] | None:
        """What the next POST carries; it is under way then. None: nothing may be sent now."""
        if len(self._under_way) >= self.settings.connections_max:
            return None
        unit = self._next_part() or self._next_batch(now_ns)
        if unit is not None:
            self._under_way.add(unit)
        return unit

    def _next_part(self) -> Unit[M] | None:
        before: set[MessageRun[M]] = set()  # runs of parts that must go first
        for part in self._parts:
            mine = set(part.runs)
            if not before & mine and all(run.state is RunState.CUT for run in mine):
                self._parts.remove(part)
                for run in mine:
                    run.parts -= 1
                    self._change(run, RunEvent.GOES)
                return part
            before |= mine
        return None

    def _next_batch(self, now_ns: int) -> Unit[M] | None:
        due_ns = self.next_due_ns()
        if due_ns is None or due_ns > now_ns:
            return None
        pairs: list[tuple[M, MessageRun[M]]] = []
        size, count_max = 0, self._batch_max
        while self._ready and len(pairs) < count_max:
            run = self._ready[0]
            message = run.waiting[0][0]
            if pairs and size + message.size_bytes > self.settings.batch_bytes_max:
                break
            self._change(self._ready.popleft(), RunEvent.GOES)
            while run.waiting and len(pairs) < count_max:
                message = run.waiting[0][0]
                if pairs and size + message.size_bytes > self.settings.batch_bytes_max:
                    break
                run.waiting.popleft()
                run.size_bytes -= message.size_bytes
                size += message.size_bytes
                pairs.append((message, run))
        return Unit(pairs)

    def next_due_ns(self) -> int | None:
        """When a batch that waits for more messages goes as it is. None: nothing may be sent."""
        if not self._ready or len(self._under_way) >= self.settings.connections_max:
            return None
        if (
            self._ready_count >= self._batch_max
            or self._ready_bytes >= self.settings.batch_bytes_max
        ):
            return 0
        return self._ready[0].waiting[0][1] + self._wait_ns

    # Outcomes

    def done(self, unit: Unit[M]) -> tuple[list[M], list[Place]]:
        """A unit was delivered. Returns the messages to be acknowledged, and the places of those
        that were, but that the owner has to send again before they can be."""
        self._end(unit)
        if not unit.is_former:
            self._free(unit)
            return unit.messages, []
        again: list[M] = []
        for run in set(unit.runs):
            mine = {message.place for message, of in unit.pairs if of is run}
            came = [message for message, _ in run.waiting if message.place in mine]
            run.waiting = deque(each for each in run.waiting if each[0].place not in mine)
            run.size_bytes -= self._forget(came)
            again += came
        self._free(unit)
        known = {message.place for message in again}
        return again, [each.place for each in unit.messages if each.place not in known]

    def failed(self, unit: Unit[M]) -> list[M]:
        """The receiver failed; returns the messages to be nacked: of each run one. The owner takes
        back what follows it. Of a subscription that is not reliable: all that are gone."""
        self._end(unit)
        nacked: list[M] = []
        if not self._rules.reliable:
            nacked = unit.messages
        elif not unit.is_former:
            first: dict[MessageRun[M], M] = {}
            for message, run in unit.pairs:
                first.setdefault(run, message)
            nacked = list(first.values())
            self._parts = deque(self._without(part, first) for part in self._parts)
            self._parts = deque(part for part in self._parts if part.messages)
            for run in first:
                self._forget(message for message, _ in run.waiting)
                run.clear()
        self._free(unit)
        return nacked

    def refused(self, unit: Unit[M]) -> list[M]:
        """The receiver does not want a record of a unit. One alone is returned, to be nacked as in
        ``failed``, counted; of several, the halves are sent again, until it is alone."""
        if len(unit.messages) == 1 or unit.is_former:
            return self.failed(unit)
        self._under_way.remove(unit)
        self._insert_parts(unit.cut(-(-len(unit.messages) // 2)))
        self._free(unit)
        return []

    def _without(self, part: Unit[M], runs: dict[MessageRun[M], M]) -> Unit[M]:
        """A part without the messages of some runs, which are forgotten."""
        self._forget(message for message, run in part.pairs if run in runs)
        return Unit([pair for pair in part.pairs if pair[1] not in runs])

    def _end(self, unit: Unit[M]) -> None:
        self._under_way.remove(unit)
        self._forget(unit.messages)

    def _free(self, unit: Unit[M]) -> None:
        for run in dict.fromkeys(unit.runs):
            self._change(run, run.left)

    def _forget(self, messages: Iterable[M]) -> int:
        """Messages are not here any more; returns their size."""
        sizes = [message.size_bytes for message in messages]
        self.messages -= len(sizes)
        self.bytes -= sum(sizes)
        return sum(sizes)

    def _insert_parts(self, parts: Sequence[Unit[M]]) -> None:
        for part in reversed(parts):
            self._parts.appendleft(part)
            for run in set(part.runs):
                run.parts += 1

    # Changes

    def clear(self) -> None:
        """The stream was opened again: nothing that was queued counts, and what is under way not
        before the owner has sent it again."""
        self._parts.clear()
        self._ready.clear()
        self._ready_count = self._ready_bytes = 0
        self._runs = {run.name: run for unit in self._under_way for run in unit.runs}
        for run in self._runs.values():
            run.clear()
        under_way = [message for unit in self._under_way for message in unit.messages]
        self.messages, self.bytes = len(under_way), sum(each.size_bytes for each in under_way)
        for unit in self._under_way:
            unit.is_former = True

    def set_settings(self, settings: PushSettings) -> None:
        """Other limits, from the next unit on."""
        self.settings = settings
        parts, self._parts = [*self._parts], deque()
        for part in parts:
            for run in set(part.runs):
                run.parts -= 1
        self._insert_parts([piece for part in parts for piece in part.cut(self._batch_max)])

    def check_invariants(self) -> None:
        """Raises AssertionError unless all parts agree."""
        held = [*self._under_way, *self._parts]
        here = [message for run in self._runs.values() for message, _ in run.waiting]
        here += [message for unit in held for message in unit.messages]
        assert self.messages == len(here)
        assert self.bytes == sum(message.size_bytes for message in here)
        seen: set[MessageRun[M]] = set()
        for unit in self._under_way:
            mine = set(unit.runs)
            assert not mine & seen and all(run.state is RunState.UNDER_WAY for run in mine)
            seen |= mine
        assert {run for unit in held for run in unit.runs} <= set(self._runs.values())
        for name, run in self._runs.items():
            assert name == run.name and run.state is not RunState.EMPTY
            assert (run.state is RunState.UNDER_WAY) == (run in seen)
            assert (run.state is RunState.LISTED) == (run in self._ready)
            assert run.state is not RunState.LISTED or (run.waiting and not run.parts)
            assert run.state is not RunState.CUT or run.parts
            assert run.size_bytes == sum(each.size_bytes for each, _ in run.waiting)
            assert run.parts == sum(run in part.runs for part in self._parts)
        assert self._ready_count == sum(len(run.waiting) for run in self._ready)
        assert self._ready_bytes == sum(run.size_bytes for run in self._ready)
