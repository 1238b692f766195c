"""What a receiver does with a POST: a function of its settings, of what came before and of chance.
Pure.

Capacity is a bucket: ``burst_s`` of it is saved while nothing comes. What is beyond it is answered
``beyond_status``, and costs nothing of it.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from enum import Enum

import msgspec

SERIES_MS = 100
SERIES_MAX = 36_000  # an hour
FALTERED_MAX = 1_000_000


class Behavior(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How an endpoint behaves. Shares are of the POSTs that it has the capacity for; of records,
    one in ``refused_every`` is refused whenever it comes, and one in ``faltered_every`` the first
    time, with everything that comes in the same POST."""

    capacity_per_s: float | None = None
    burst_s: float = 0.1
    beyond_status: int = 503
    retry_after: str = ""  # for what is beyond its capacity
    latency_ms: float = 0.0
    status: int = 200
    refused_status: int = 400
    error_share: float = 0.0  # is answered 500
    silent_share: float = 0.0  # is never answered
    cut_share: float = 0.0  # the first bytes of the answer come, then the connection ends
    lost_share: float = 0.0  # it is dealt with, and the connection ends without an answer
    refused_every: int = 0
    faltered_every: int = 0


class Way(Enum):
    """How an answer gets to the sender."""

    WHOLE = "whole"
    SILENT = "silent"
    CUT = "cut"
    LOST = "lost"


class Verdict(msgspec.Struct, frozen=True):
    """The answer to a POST."""

    status: int
    way: Way = Way.WHOLE
    retry_after: str = ""


class Counts(msgspec.Struct):
    """What an endpoint was sent and answered; ``series`` has, for each SERIES_MS of the monotonic
    clock in which something came, the number of POSTs that were served and of the others."""

    posts: int = 0
    events: int = 0
    statuses: dict[int, int] = {}
    ways: dict[str, int] = {}
    connections: int = 0
    under_way: int = 0
    under_way_max: int = 0
    series: dict[int, tuple[int, int]] = {}


class Endpoint:
    """One endpoint of a receiver."""

    def __init__(self, rng: random.Random) -> None:
        self.behavior = Behavior()
        self.counts = Counts()
        self._rng = rng
        self._full_ns = 0  # when the bucket will be full again, if nothing comes
        self._faltered: set[str] = set()

    def behave(self, behavior: Behavior) -> None:
        """Behaves like this from now on; a capacity that grew does not bring a burst."""
        self.behavior = behavior

    def post(self, now_ns: int, events: int, texts: Sequence[str] = ()) -> Verdict:
        """The verdict on a POST that has come. ``texts``: its records, if they were read."""
        verdict = self._verdict(now_ns, texts)
        counts = self.counts
        counts.posts += 1
        counts.events += events
        counts.statuses[verdict.status] = counts.statuses.get(verdict.status, 0) + 1
        if verdict.way is not Way.WHOLE:
            counts.ways[verdict.way.value] = counts.ways.get(verdict.way.value, 0) + 1
        at = now_ns // (SERIES_MS * 1_000_000)
        served, others = counts.series.get(at, (0, 0))
        is_served = verdict.status < 300 and verdict.way is Way.WHOLE
        counts.series[at] = (served + is_served, others + (not is_served))
        if len(counts.series) > SERIES_MAX:
            del counts.series[next(iter(counts.series))]
        return verdict

    def _verdict(self, now_ns: int, texts: Sequence[str]) -> Verdict:
        behavior = self.behavior
        if not self._takes(now_ns):
            return Verdict(behavior.beyond_status, retry_after=behavior.retry_after)
        refused = [self._refuses(text) for text in texts]  # all of them falter together
        if any(refused):
            return Verdict(behavior.refused_status)
        number = self._rng.random()
        for share, verdict in (
            (behavior.error_share, Verdict(500)),
            (behavior.silent_share, Verdict(0, Way.SILENT)),
            (behavior.cut_share, Verdict(behavior.status, Way.CUT)),
            (behavior.lost_share, Verdict(behavior.status, Way.LOST)),
        ):
            if number < share:
                return verdict
            number -= share
        return Verdict(behavior.status)

    def _takes(self, now_ns: int) -> bool:
        capacity = self.behavior.capacity_per_s
        if capacity is None:
            return True
        if capacity <= 0:
            return False
        step_ns = int(1e9 / capacity)
        burst_ns = max(int(self.behavior.burst_s * 1e9), step_ns)
        full_ns = max(self._full_ns, now_ns)
        if full_ns + step_ns - now_ns > burst_ns:
            return False
        self._full_ns = full_ns + step_ns
        return True

    def _refuses(self, text: str) -> bool:
        number = zlib.crc32(text.encode())
        behavior = self.behavior
        if behavior.refused_every and number % behavior.refused_every == 0:
            return True
        if behavior.faltered_every and number % behavior.faltered_every == 1:
            if text in self._faltered or len(self._faltered) >= FALTERED_MAX:
                return False
            self._faltered.add(text)
            return True
        return False
