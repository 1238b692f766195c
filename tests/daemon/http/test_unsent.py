"""The budget of bytes that clients have not taken, against a plain model."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from daemon.http.unsent import Unsent
from tests.long import examples

HOLDERS = st.integers(0, 5)


class UnsentMachine(RuleBasedStateMachine):
    """``model`` is a list of (holder, objects), the one that moved least recently first."""

    def __init__(self) -> None:
        super().__init__()
        self.unsent: Unsent[int] = Unsent(100, "holders")
        self.model: list[tuple[int, list[bytes]]] = []
        self.objects = [bytes(bytearray(size)) for size in (1, 30, 30, 80)]

    def _place(self, holder: int) -> int | None:
        found = [place for place, (each, _) in enumerate(self.model) if each == holder]
        return found[0] if found else None

    @rule(holder=HOLDERS, which=st.integers(0, 3))
    def hold(self, holder: int, which: int) -> None:
        self.unsent.hold(holder, self.objects[which])
        place = self._place(holder)
        if place is None:
            self.model.append((holder, [self.objects[which]]))
        else:
            self.model[place][1].append(self.objects[which])

    @rule(holder=HOLDERS)
    def moved(self, holder: int) -> None:
        self.unsent.moved(holder)
        place = self._place(holder)
        if place is not None:
            self.model.append(self.model.pop(place))

    @rule(holder=HOLDERS, which=st.integers(0, 3))
    def took(self, holder: int, which: int) -> None:
        self.unsent.took(holder, self.objects[which])
        place = self._place(holder)
        if place is None:
            return
        objects = self.model[place][1]
        found = [n for n, each in enumerate(objects) if each is self.objects[which]]
        if found:
            del objects[found[0]]
        if not objects:
            del self.model[place]

    @rule()
    def shed(self) -> None:
        shed = self.unsent.shed()
        assert shed == [holder for holder, _ in self.model[: len(shed)]]
        assert not self.unsent.is_over
        last = self.model[len(shed) - 1 : len(shed)]
        del self.model[: len(shed)]
        if last:
            kept = {id(each): len(each) for _, objects in self.model for each in objects}
            kept.update({id(each): len(each) for each in last[0][1]})
            assert sum(kept.values()) > 100, "no more than necessary"

    @rule(holder=HOLDERS)
    def release(self, holder: int) -> None:
        self.unsent.release(holder)
        place = self._place(holder)
        if place is not None:
            del self.model[place]

    @invariant()
    def what_is_held_is_counted_once_per_object(self) -> None:
        self.unsent.check_invariants()
        held = {id(each): len(each) for _, objects in self.model for each in objects}
        assert self.unsent.bytes == sum(held.values())
        assert self.unsent.is_over == (sum(held.values()) > 100)
        assert self.unsent.is_half_full == (sum(held.values()) > 50)
        assert all(holder in self.unsent for holder, _ in self.model)
        assert self.unsent.stalled == (self.model[0][0] if self.model else None)
        assert len(self.unsent) == len(self.model)


TestUnsent = UnsentMachine.TestCase
TestUnsent.settings = settings(max_examples=examples(60), stateful_step_count=30)


def test_nothing_is_kept_of_what_was_released() -> None:
    unsent: Unsent[str] = Unsent(10, "holders")
    data = b"x" * 8
    unsent.hold("a", data)
    unsent.hold("b", data)
    over = [unsent.is_over]
    unsent.hold("b", b"y" * 3)
    over.append(unsent.is_over)
    unsent.release("b")
    assert [*over, unsent.is_over] == [False, True, False]
    unsent.release("a")
    assert (unsent.bytes, len(unsent), unsent._holders) == (0, 0, {})
