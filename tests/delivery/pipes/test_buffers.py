"""The buffers of a shard's pipes: what is held is counted, room is granted in turn."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from delivery.pipes.buffers import LargeFrameReader, Reservations, UnsentBytes


class Part:
    """What holds, or wants room."""

    def abort(self) -> None:
        raise NotImplementedError

    def read_on(self) -> None:
        raise NotImplementedError


class RoomMachine(RuleBasedStateMachine):
    """Connections that receive large frames, and lose their peers."""

    def __init__(self) -> None:
        super().__init__()
        self.limit = 100
        self.room: Reservations[LargeFrameReader] = Reservations(self.limit)
        self.granted: dict[Part, int] = {}
        self.waiting: list[tuple[Part, int]] = []

    @precondition(lambda self: len(self.granted) + len(self.waiting) < 8)
    @rule(size=st.integers(1, 150))
    def ask(self, size: int) -> None:
        part = Part()
        self.waiting.append((part, size))
        granted = self.expected()
        assert self.room.reserve(part, size) == (part in granted)

    @precondition(lambda self: self.granted)
    @rule(data=st.data())
    def frame_is_whole(self, data: st.DataObject) -> None:
        part = data.draw(st.sampled_from(list(self.granted)))
        del self.granted[part]
        assert self.room.release(part) == self.expected()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def one_that_waits_is_lost(self, data: st.DataObject) -> None:
        lost = data.draw(st.sampled_from(self.waiting))
        self.waiting.remove(lost)
        assert self.room.release(lost[0]) == self.expected()

    def expected(self) -> list[Part]:
        """Who gets room now: those that have waited longest, while it suffices."""
        found = []
        while self.waiting:
            part, size = self.waiting[0]
            used = sum(self.granted.values())
            if used and used + size > self.limit:
                break
            del self.waiting[0]
            self.granted[part] = size
            found.append(part)
        return found

    @invariant()
    def it_is_within_its_limit(self) -> None:
        self.room.check_invariants()


TestRoom = RoomMachine.TestCase


def test_what_is_held_is_the_sum_of_what_each_holds_now() -> None:
    unsent: UnsentBytes[Part] = UnsentBytes(100)
    first, second = Part(), Part()
    unsent.hold(first, 30)
    unsent.hold(second, 20)
    unsent.hold(first, 40)
    assert (unsent.is_half_full, unsent.is_over, unsent.largest()) == (True, False, first)
    unsent.hold(second, 61)
    assert (unsent.is_half_full, unsent.is_over, unsent.largest()) == (True, True, second)
    unsent.hold(second, 0)
    unsent.check_invariants()
    assert unsent.bytes == 40
