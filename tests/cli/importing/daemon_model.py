"""A daemon and its senders as discrete events, to run control laws against.

The daemon has a ring, one CPU, and uploads side by side. A pull takes what waits once it is an
object, or once the oldest request has waited a commit window; a lone request of an idle daemon
goes immediately. The window widens with pressure (the fuller of CPU and ring), as docs/pressure.md
says, whatever the reason for the pressure. A full ring refuses; so does an outage of the store.
Senders always have more to send, unless they are given a pace.

Time is virtual, and randomness comes from a seed.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable

from msgspec import Struct

from commands.importing.budget_leases import InFlightBudget, Leases
from tests.cli.importing.fixed_budget import FixedBudget

MIB = 1 << 20


class IntervalLaw(FixedBudget):
    """AIMD on processing time over arrival interval: more if a block is processed before the next
    one arrives, half if not. With a backlog the next block has always arrived."""

    FLOOR_BYTES = 1 * MIB

    def __init__(self, limit_bytes: int, interval_s: float) -> None:
        super().__init__(limit_bytes)
        self._limit = limit_bytes
        self._interval_s = interval_s

    def acked(self, count: int, latency_s: float, now: float) -> None:
        if latency_s > self._interval_s:
            self.bytes = max(self.FLOOR_BYTES, self.bytes // 2)
        else:
            self.bytes = min(self._limit, self.bytes + MIB)


class SmallestLatencyLaw(FixedBudget):
    """Twice the rate times the smallest latency of the last ten seconds, as congestion control
    for networks computes it. A window that all requests wait for looks like a queue to it."""

    FLOOR_BYTES = 1 * MIB

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(self.FLOOR_BYTES)
        self._limit = limit_bytes
        self._acks: deque[tuple[float, int, float]] = deque()

    def acked(self, count: int, latency_s: float, now: float) -> None:
        self._acks.append((now, count, latency_s))
        while self._acks[0][0] < now - 10:
            self._acks.popleft()
        span_s = max(now - self._acks[0][0], latency_s)
        rate = sum(size for _, size, _ in self._acks) / span_s
        smallest_s = min(latency for _, _, latency in self._acks)
        self.bytes = int(min(self._limit, max(self.FLOOR_BYTES, 2 * rate * smallest_s)))


class Site(Struct, frozen=True):
    """A daemon and its store."""

    cpu_bytes_per_s: float = 200e6
    ring_bytes: int = 64 * MIB
    object_bytes: int = 4 * MIB
    uploads_max: int = 4
    put_s: float = 0.080
    put_spread: float = 0.3  # sigma of the logarithm
    stream_bytes_per_s: float = 100e6  # of one PUT
    window_min_s: float = 0.2
    window_max_s: float = 1.0
    retry_after_s: float = 0.5


S3 = Site()
DIRECTORY = Site(put_s=0.004, window_min_s=0.0005, window_max_s=0.010, stream_bytes_per_s=400e6)
# So much parallel upload that only the window and the CPU limit it.
WIDE = Site(uploads_max=64, cpu_bytes_per_s=400e6, put_s=0.030)


class Sender:
    """One client. ``pace_bytes_per_s`` limits its source."""

    def __init__(
        self,
        law: InFlightBudget,
        request_bytes: int = MIB,
        pace_bytes_per_s: float = 0,
        begin_s: float = 0,
    ) -> None:
        self.leases = Leases(law)
        self.request_bytes = request_bytes
        self.interval_s = request_bytes / pace_bytes_per_s if pace_bytes_per_s else 0.0
        self.begin_s = begin_s
        self.next_s = begin_s
        self.refusals = 0
        self.acked: list[tuple[float, int]] = []

    def goodput(self, from_s: float, to_s: float) -> float:
        """Bytes acknowledged per second in a span."""
        return sum(size for at, size in self.acked if from_s < at <= to_s) / (to_s - from_s)


class _Request:
    __slots__ = ("arrived_s", "sender", "sent_s")

    def __init__(self, sender: Sender, sent_s: float) -> None:
        self.sender = sender
        self.sent_s = sent_s
        self.arrived_s = sent_s


class Conditions(Struct, frozen=True):
    """What changes with time: the speed of CPU and store, whether the store answers, and, if it is
    given, the pressure that the window follows."""

    speed: Callable[[float], float] = lambda now_s: 1.0
    store_up: Callable[[float], bool] = lambda now_s: True
    pressure: Callable[[float], float] | None = None


STEADY = Conditions()


class SimulatedDaemon:
    """Runs senders against a site."""

    TICK_S = 0.1

    def __init__(
        self,
        site: Site,
        senders: list[Sender],
        seed: int,
        how: Conditions = STEADY,
    ) -> None:
        self.site = site
        self.senders = senders
        self.now_s = 0.0
        self.window_s = site.window_min_s
        self.ring_used = 0
        self._random = random.Random(seed)
        self._how = how
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._cpu_free_s = 0.0
        self._cpu_busy_s = 0.0
        self._busy = 0.0
        self._backlog: deque[_Request] = deque()
        self._backlog_bytes = 0
        self._uploads = 0
        self._pulled_s = -math.inf
        self._wake_s = math.inf  # when the window of the oldest request ends

    def run(self, until_s: float) -> None:
        for sender in self.senders:
            self._at(sender.begin_s, lambda sender=sender: self._send(sender))  # type: ignore[misc]
        self._at(self.TICK_S, self._tick)
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, act = heapq.heappop(self._events)
            act()

    def _at(self, when_s: float, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (when_s, self._count, act))

    def _tick(self) -> None:
        share = min(1.0, self._cpu_busy_s / self.TICK_S)
        self._cpu_busy_s = 0.0
        self._busy = (self._busy + share) / 2
        ring = self.ring_used / self.site.ring_bytes
        level = self._how.pressure(self.now_s) if self._how.pressure else max(self._busy, ring)
        span_s = self.site.window_max_s - self.site.window_min_s
        widened = min(1.0, max(0.0, (level - 0.4) / 0.6))
        self.window_s = self.site.window_min_s + span_s * widened
        self._at(self.now_s + self.TICK_S, self._tick)

    def _send(self, sender: Sender) -> None:
        while sender.next_s <= self.now_s and sender.leases.take(sender.request_bytes):
            if sender.interval_s:
                sender.next_s = max(sender.next_s + sender.interval_s, self.now_s)
                self._at(sender.next_s, lambda: self._send(sender))
            self._offer(_Request(sender, self.now_s))

    def _offer(self, request: _Request) -> None:
        """A request arrives; refused ones come back."""
        size = request.sender.request_bytes
        request.sent_s = self.now_s
        down = not self._how.store_up(self.now_s)
        if down or self.ring_used + size > self.site.ring_bytes:
            request.sender.refusals += 1
            wait_s = self.site.retry_after_s * (1 + self._random.random() / 2)
            request.sender.leases.budget.refused(self.site.retry_after_s, self.now_s)
            self._at(self.now_s + wait_s, lambda: self._offer(request))
            return
        self.ring_used += size
        taken_s = size / (self.site.cpu_bytes_per_s * self._how.speed(self.now_s))
        self._cpu_free_s = max(self._cpu_free_s, self.now_s) + taken_s
        self._cpu_busy_s += taken_s
        self._at(self._cpu_free_s, lambda: self._published(request))

    def _published(self, request: _Request) -> None:
        request.arrived_s = self.now_s
        self._backlog.append(request)
        self._backlog_bytes += request.sender.request_bytes
        self._pull()

    def _pull(self) -> None:
        site = self.site
        while self._backlog and self._uploads < site.uploads_max:
            oldest_s = self._backlog[0].arrived_s
            due_s = max(self._pulled_s, oldest_s) + self.window_s
            if self._pulled_s + self.window_s < oldest_s:
                due_s = oldest_s  # the daemon was idle
            if self._backlog_bytes < site.object_bytes and self.now_s < due_s - 1e-9:
                if due_s < self._wake_s:
                    self._wake_s = due_s
                    self._at(due_s, self._wake)
                return
            taken: list[_Request] = []
            size = 0
            while self._backlog and (not taken or size < site.object_bytes):
                request = self._backlog.popleft()
                taken.append(request)
                size += request.sender.request_bytes
            self._backlog_bytes -= size
            self._pulled_s = self.now_s
            self._uploads += 1
            self._put(taken, size)

    def _wake(self) -> None:
        self._wake_s = math.inf
        self._pull()

    def _put(self, taken: list[_Request], size: int) -> None:
        if not self._how.store_up(self.now_s):
            self._at(self.now_s + 0.5, lambda: self._put(taken, size))
            return
        spread = self._random.lognormvariate(0.0, self.site.put_spread)
        took_s = self.site.put_s * spread + size / self.site.stream_bytes_per_s
        self._at(
            self.now_s + took_s / self._how.speed(self.now_s), lambda: self._committed(taken, size)
        )

    def _committed(self, taken: list[_Request], size: int) -> None:
        self._uploads -= 1
        self.ring_used -= size
        for request in taken:
            sender = request.sender
            sender.acked.append((self.now_s, sender.request_bytes))
            latency_s = self.now_s - request.sent_s
            sender.leases.budget.acked(sender.request_bytes, latency_s, self.now_s)
            sender.leases.give_back(sender.request_bytes)
        for sender in dict.fromkeys(request.sender for request in taken):
            self._send(sender)
        self._pull()
