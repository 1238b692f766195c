"""How many records of its source a router lacks, and what it stands still at.

Its part of the invariant of ``delivery/standstill.py``. Pure; a router's receiver is its
destination, which has room unless something says why not.
"""

from __future__ import annotations

from collections.abc import Callable

from delivery.routers.router_plan import HOLD_NS, RouterPlan
from delivery.standstill import LOOK_NS, UNKNOWN, FirstUnfinished, Fronts, Since, Standstill, Why


class RouterStanding:
    """Looks at one router's plan, about once a second."""

    __slots__ = ("_fronts", "_held", "_held_ns", "_moved", "lag", "looked_ns", "stands")

    def __init__(self) -> None:
        self.looked_ns = 0
        self.lag = 0  # offsets of the source that are not dealt with
        self.stands: Standstill | None = None
        self._fronts = Fronts()
        self._moved = Since()
        self._held = ""
        self._held_ns = 0

    def hold(self, reason: str, now_ns: int) -> None:
        """The router waits, for a reason that may come and go while a part of it moves on."""
        if reason:
            self._held, self._held_ns = reason, now_ns

    def look(
        self,
        plan: RouterPlan,
        stored: Callable[[int], int],
        head: Callable[[int], int | None],
        gated: str,
        now_ns: int,
    ) -> None:
        """``stored`` is a position that the ledger had, for lanes that do not know theirs yet."""
        self.looked_ns = now_ns
        self.lag = moved = 0
        first: dict[int, int] = {}
        for partition, lane in enumerate(plan.lanes):
            position = lane.position or stored(partition)
            left = (head(partition) or 0) - position
            moved += position
            if left > 0:
                self.lag += left
                first[partition] = position + 1
        self._moved.look(moved, now_ns)
        if plan.paused:
            self._fronts.clear()
            self.stands = None
            return

        def why(front: FirstUnfinished) -> Why:
            if plan.stopped:
                return Why(f"waits forever: {plan.stopped}")
            if held := plan.barred or gated or plan.held:
                return Why(f"waits: {held}")
            if now_ns - self._held_ns < LOOK_NS + HOLD_NS:
                return Why(f"waits: {self._held}")
            lane = plan.lanes[front.partition]
            since_ns = self._moved.since_ns
            if lane.in_flight:
                return Why("was copied, and waits for the commit", since_ns)
            if lane.busy:
                return Why("is being read", since_ns)
            if lane.needs_bytes:
                return Why("waits for room in the ring of its shard", since_ns)
            return Why(UNKNOWN, since_ns)

        found = self._fronts.look(first, now_ns, why)
        self.stands = found and found._replace(text=f"record {found.text}")
