"""A ready set without bands, for comparison: first come, first served, whatever the priority."""

from __future__ import annotations

from collections import OrderedDict

from delivery.ready import EntryKey, EntryView, PriorityInputs, Turn

BUDGET_BYTES = 256 << 10  # of a turn: a large topic does not hold back the others for longer


class FifoReadySet:
    """Entries in the order in which they became ready."""

    def __init__(self) -> None:
        # When the entry was put in, and when the oldest commit that it waits for was published.
        self._waiting: OrderedDict[EntryKey, tuple[int, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def mark(self, key: EntryKey, inputs: PriorityInputs, published_ns: int, now_ns: int) -> bool:
        """Puts an entry in, unless it is there; returns whether it was not."""
        if key in self._waiting:
            return False
        self._waiting[key] = (now_ns, published_ns)
        return True

    def take(self, now_ns: int) -> Turn | None:
        """The turn of the entry that has waited longest."""
        if not self._waiting:
            return None
        key, (enqueued_ns, published_ns) = self._waiting.popitem(last=False)
        return Turn(key, BUDGET_BYTES, published_ns, enqueued_ns, now_ns - enqueued_ns)

    def finish(self, turn: Turn, cost_bytes: int, more: bool, now_ns: int) -> None:
        """The turn is over. With ``more``, the entry waits again, after all others."""
        if more and turn.key not in self._waiting:
            self._waiting[turn.key] = (now_ns, turn.published_ns)

    def next_due_ns(self) -> int | None:
        """0 if an entry waits: it may be taken at any time."""
        return 0 if self._waiting else None

    def set_pressure(self, coalesce_ns: int, deferring: bool, now_ns: int) -> None:
        """Nothing waits deliberately here."""

    def forget(self, key: EntryKey) -> None:
        """Takes an entry out, if it is there."""
        self._waiting.pop(key, None)

    def oldest_wait_ns(self, now_ns: int) -> int:
        """How long the oldest entry has waited; 0 for none."""
        for enqueued_ns, _ in self._waiting.values():
            return now_ns - enqueued_ns
        return 0

    def depths(self) -> list[int]:
        """All that wait."""
        return [len(self._waiting)]

    def deferred(self) -> int:
        """Nothing is."""
        return 0

    def view(self, key: EntryKey) -> EntryView | None:
        """What ``status`` shows of an entry that waits; None for others."""
        waits = self._waiting.get(key)
        return None if waits is None else EntryView(0, waits[0], False)
