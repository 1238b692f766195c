"""Cursors of a simulated machine: a client's and a router's, and what must hold for them.

The client's requests arrive at one shard, so one ring has them all and any recovery decides each of
them as the ledger did. They expect where the cursor is, where it was, or where it will be; now and
then the cursor is set. The *copier* stands for a router: a part of its shard's process that reads
its cursor from the ledger when it begins and when a copy was void, pipelines copies, and skips
stretches by a flush while no copy is on its way. A copy is a function of its stretch of the source.

The truth is told by the ledger alone, in its own order: commits, and between them settings and
flushes, each noted inside its transaction.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ledger import commits, cursors, topics
from ledger.cursors import Setting
from ledger.ledger import Ledger
from ledger.tx import ReadTx, WriteTx
from ledger.types import Advance, Commit, CursorMove, TopicConfig
from shards.frame import Part, encode_conditions
from tests.sim.schedule import MS, require

if TYPE_CHECKING:
    from tests.sim.machine import Machine

CURSORED = 4  # the topic that both write to
CLIENT, COPIER = 1, 2  # ids of the cursors
NAMES = {CLIENT: "client", COPIER: "router/copier"}
Positions = dict[int, tuple[int, int]]  # cursor: its last setting's change number, and where it is


def create(ledger: Ledger) -> None:
    """Both cursors, and the topic."""
    topic, _ = ledger.write(topics.create, f"t{CURSORED}", TopicConfig(), 1)
    assert topic.topic_id == CURSORED
    for kind in ("client", "router"):
        ledger.write(cursors.create, NAMES[CLIENT if kind == "client" else COPIER], kind, 1)


def positions(tx: ReadTx) -> Positions:
    """Where both are."""
    found = cursors.settings_of(tx, [(CLIENT, 0), (COPIER, 0)])
    return {cursor: found.get((cursor, 0), (0, 0)) for cursor in (CLIENT, COPIER)}


class Change(NamedTuple):
    """A setting or a flush, after commit ``number``."""

    number: int
    before: Positions
    after: Positions
    move: CursorMove | None  # of a flush


class Decided(NamedTuple):
    """When a step was decided, and which setting held then."""

    number: int
    set_change: int


class CursorTruth:
    """Where cursors are, by what was stored and what was set."""

    def __init__(self) -> None:
        self._at: Positions = {CLIENT: (0, 0), COPIER: (0, 0)}
        self._changes: deque[Change] = deque()
        self.steps: dict[int, Advance] = {}  # by request
        self.decided: dict[int, Decided] = {}
        self._bases = {0: 0}  # by change number of a setting
        self.moved = self.refused = self.flushed = 0

    def noted(
        self, tx: WriteTx, change: Callable[..., Any], args: tuple[Any, ...]
    ) -> Any:  # fmt: skip
        """Makes a change of cursors, and notes it in its transaction."""
        before = positions(tx)
        result = change(tx, *args)
        move = args[0][0] if isinstance(args[0], list) else None
        self._changes.append(Change(commits.latest_number(tx), before, positions(tx), move))
        return result

    def until(self, number: int) -> None:
        """Takes in what came before commit ``number`` + 1."""
        while self._changes and self._changes[0].number <= number:
            change = self._changes.popleft()
            require(
                change.before == self._at, "cursors are where they were moved", change, self._at
            )
            if change.move is None:
                self._bases[change.after[CLIENT][0]] = change.after[CLIENT][1]
            else:
                setting, at = change.before[COPIER]
                holds = at == change.move.expected
                after = (setting, change.move.next if holds else at)
                require(change.after[COPIER] == after, "a flush is conditional", change)
                self.flushed += holds
            self._at = change.after

    def committed(self, commit: Commit, numbers: list[int], stored: dict[int, bool]) -> None:
        """Requests were decided, in this order."""
        self.until(commit.number - 1)
        at = dict(self._at)
        for number in numbers:
            step = self.steps.get(number)
            if step is None:
                continue
            setting, seq = at[step.cursor_id]
            self.decided[number] = Decided(commit.number, setting)
            require(
                stored[number] == (step.expected == seq),
                "a step is stored when its cursor is where it expects it", number, step, seq,
            )  # fmt: skip
            if stored[number]:
                at[step.cursor_id] = (setting, step.next)
                self.moved += 1
            else:
                self.refused += 1
        self._at = at

    def check(self, ledger: Ledger) -> None:
        """After all commits were taken in: the ledger has the cursors where they belong."""
        there, number = ledger.read(lambda tx: (positions(tx), commits.latest_number(tx)))
        self.until(number)
        require(there == self._at, "a cursor is where stored requests moved it", there, self._at)

    # Told by a recovery

    def is_exempt(self, number: int, listed_to: int) -> bool:
        """Whether a recovery may decide a request otherwise that no entry lists: a router's; and
        one that was under way while the cursor was set. The store does not tell which was first."""
        step, decided = self.steps.get(number), self.decided.get(number)
        if step is None or decided is None or decided.number <= listed_to:
            return False
        return step.is_ours or step.set_change < decided.set_change

    def check_recovered(self, ledger: Ledger, found: set[int], told: ReadTx) -> None:
        """``found`` are the requests that are stored in it; ``told`` is what entries say."""
        there = ledger.read(positions)
        listed = positions(told)[COPIER]
        require(
            there[COPIER] == listed,
            "a recovery leaves our cursors where entries say", there[COPIER], listed,
        )  # fmt: skip
        listed_to = commits.latest_number(told)
        for number in found:
            step = self.steps.get(number)
            if step is not None and step.is_ours:
                decided = self.decided.get(number)
                require(
                    decided is not None and decided.number <= listed_to,
                    "what a router copied since the last entry is void", number, step, decided,
                )  # fmt: skip
        self._check_client(*there[CLIENT], {n: s for n, s in self.steps.items() if n in found})

    def _check_client(self, setting: int, at: int, stored: dict[int, Advance]) -> None:
        """Steps since the last setting, if that is known, follow each other up to the cursor."""
        steps: list[Advance] = []
        for number, step in stored.items():
            decided = self.decided.get(number)
            now = step.set_change if decided is None else decided.set_change
            if step.is_ours or (max(now, step.set_change) < setting and decided is not None):
                continue
            if step.set_change != setting:
                return  # under way when the cursor was set: it may have been decided before
            steps.append(step)
        if setting == self._at[CLIENT][0]:
            end = self._bases[setting]
            for step in sorted(steps, key=lambda each: each.expected):
                require(step.expected == end, "steps of a recovery follow each other", step, end)
                end = step.next
            require(at == end, "a recovered cursor is where stored requests moved it", at, end)


class CursorClient:
    """A client that moves its cursor, and sets it."""

    def __init__(self, machine: Machine, truth: CursorTruth) -> None:
        self._machine = machine
        self._rng = machine.rng
        self._truth = truth
        self._setting = (0, 0)  # the last that was answered, as a shard's cache has it
        self._next = 0  # where its last request moved the cursor
        self.shard = self._rng.randrange(machine.layout.shards)

    def request(self, number: int) -> tuple[int, bytes, list[Part]]:
        """Expects where the cursor is, was or will be; mostly what the last one gave."""
        rng = self._rng
        at = self._machine.seen_ledger.read(positions)[CLIENT][1]
        expected = rng.choice((self._next, self._next, self._next, at, max(0, at - 2), at + 3))
        advance = Advance(
            CLIENT, 0, expected, expected + rng.randrange(1, 4), False, NAMES[CLIENT],
            *self._setting,
        )  # fmt: skip
        self._next = advance.next
        return step_request(self._truth, number, advance, self._machine.schedule.now_ns)

    def set(self) -> None:
        """An explicit setting; requests that come after its answer know it."""
        setting = Setting(0, self._rng.randrange(40))
        ledger = self._machine.ledger
        ledger.write(cursors.set_positions, NAMES[CLIENT], "client", [setting])
        place = ledger.read(cursors.place, NAMES[CLIENT], 0)
        assert place is not None
        self._setting = (place.set_change, place.set_seq)
        self._next = setting.seq


class Copier:
    """A router of one life of a shard."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._rng = machine.rng
        self._on_the_way: set[int] = set()  # positions of copies
        self._reload()

    def _reload(self) -> None:
        self._read_to = self._machine.ledger.read(positions)[COPIER][1]

    def request(self, number: int) -> tuple[int, bytes, list[Part]]:
        """The next copy."""
        following = self._read_to + self._rng.randrange(1, 4)
        advance = Advance(COPIER, 0, self._read_to, following, True)
        return step_request(
            self._machine.oracle.cursors, number, advance, self._machine.schedule.now_ns
        )

    def published(self, number: int, position: int) -> None:
        """A request is in the ring; it may be a copy."""
        step = self._machine.oracle.cursors.steps.get(number)
        if step is not None and step.is_ours:
            self._read_to = step.next
            self._on_the_way.add(position)

    def ended(self, positions_: list[int], commit: Commit | None) -> None:
        """Copies were committed, or taken back (``commit`` None)."""
        mine = self._on_the_way.intersection(positions_)
        self._on_the_way -= mine
        void = () if commit is None else [v.position for v in commit.verdicts]
        if mine and (commit is None or mine.intersection(void)):
            self._reload()

    def skip(self) -> None:
        """Now and then, a stretch of which nothing is copied; often when it is mistaken about the
        cursor, since copies of a former life were committed."""
        at = self._machine.seen_ledger.read(positions)[COPIER][1]
        often = 12 if at == self._read_to else 2
        if not self._on_the_way and not self._rng.randrange(often):
            move = CursorMove(COPIER, 0, self._read_to, self._read_to + self._rng.randrange(1, 9))
            if self._machine.ledger.write(cursors.flush, [move]):
                self._reload()
            else:
                self._read_to = move.next


def step_request(
    truth: CursorTruth, number: int, advance: Advance, now_ns: int
) -> tuple[int, bytes, list[Part]]:
    """A request of one record that moves a cursor."""
    truth.steps[number] = advance
    part = Part(CURSORED, 0, 1, number.to_bytes(8, "big"), now_ns // MS, now_ns // MS)
    return number, encode_conditions(None, None, advance), [part]
