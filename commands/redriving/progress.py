"""Which letters of one origin are dealt with, in one partition of their topic. Pure.

A cursor keeps it: in partition 0 the offset up to which all letters of the origin are dealt with,
in those from 1 on the offsets of letters beyond it that are, too. So a letter that takes long keeps
none after it from being noted, and a command that is killed sends none of them again.

``take`` in the order of offsets -> ``finish`` in any order -> the position follows the first one
that is not finished. What an entry for a letter beyond the position says stays true, so old
entries need no removal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from daemon.schemas.api import CursorSetting

# Letters from the first unfinished one on. A cursor has 1,000 partitions: one for the position, and
# enough for what a former command and this one have noted.
TAKEN_MAX = 499


class LetterProgress:
    """``noted``: the positions of the cursor, by partition."""

    def __init__(self, noted: Mapping[int, int]) -> None:
        self.position = noted.get(0, 0)
        self._ahead = {seq for slot, seq in noted.items() if slot and seq > self.position}
        self._noted = dict(noted)
        self._taken: dict[int, bool] = {}  # from the first unfinished one on: whether it is

    def is_done(self, seq: int) -> bool:
        """Whether a letter is dealt with."""
        return seq <= self.position or seq in self._ahead

    @property
    def has_room(self) -> bool:
        """Whether another letter may be taken."""
        return len(self._taken) < TAKEN_MAX

    def take(self, seq: int) -> bool:
        """The next letter of the origin; returns whether there is anything to do for it."""
        if seq <= self.position:
            return False
        if next(reversed(self._taken), 0) >= seq:
            raise ValueError(f"letter {seq} was taken after {next(reversed(self._taken))}")
        self._taken[seq] = False
        if seq in self._ahead:
            self.finish(seq)
            return False
        return True

    def finish(self, seq: int) -> None:
        """A letter that was taken is dealt with."""
        self._taken[seq] = True
        self._ahead.add(seq)
        while self._taken and self._taken[first := next(iter(self._taken))]:
            del self._taken[first]
            self._ahead.discard(first)
            self.position = first

    def settings(self) -> list[CursorSetting]:
        """What the cursor has to be told; only if it is where it was."""
        ahead = dict(enumerate(sorted(self._ahead), 1))
        changed = [
            CursorSetting(seq, slot) for slot, seq in ahead.items() if self._noted.get(slot) != seq
        ]
        was = self._noted.get(0, 0)
        if not changed and self.position == was:
            return []
        return [CursorSetting(self.position, 0, was), *changed]

    def noted(self, settings: Sequence[CursorSetting]) -> None:
        """The cursor was told."""
        self._noted.update((each.partition, each.seq) for each in settings)
